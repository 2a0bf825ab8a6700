"""Text in images: centred, readable the right way around, as high as promised, and nothing else is changed."""

from __future__ import annotations

import pytest
import torch

from bdgd.checks import InputError
from bdgd.data.phantoms import shepp_logan
from bdgd.data.text import with_text


def extent(mask: torch.Tensor, axis: int) -> tuple[int, int]:
    hit = mask[0, 0].any(1 - axis).nonzero()
    return int(hit.min()), int(hit.max())


def test_only_the_mask_is_set() -> None:
    x = torch.cat((shepp_logan(128), 0.5 * shepp_logan(128)))
    before = x.clone()
    written, mask = with_text(x, "ICPR 2020", value=0.7, return_mask=True)
    assert mask.shape == (1, 1, 128, 128) and mask.dtype == torch.bool
    assert torch.equal(x, before)
    assert torch.equal(written, torch.where(mask, torch.tensor(0.7), x))
    assert torch.equal(with_text(x, "ICPR 2020", value=0.7), written)


@pytest.mark.parametrize("size", [128, 256])
def test_capitals_are_an_eighth_high_and_centred(size: int) -> None:
    _, mask = with_text(torch.zeros(1, 1, size, size), "HIH", return_mask=True)
    for axis in (0, 1):
        low, high = extent(mask, axis)
        assert abs((low + high) / 2 - (size - 1) / 2) <= 1
    assert abs(extent(mask, 1)[1] - extent(mask, 1)[0] + 1 - size / 8) <= 1


def test_reads_to_the_right_and_upward() -> None:
    _, mask = with_text(torch.zeros(1, 1, 128, 128), "L", return_mask=True)
    (left, right), (bottom, top) = extent(mask, 0), extent(mask, 1)
    letter = mask[0, 0, left : right + 1, bottom : top + 1]
    assert letter[0].all() and letter[:, 0].all()  # the stem at the left, the foot at the bottom
    assert not letter[-1, -1] and not letter[right - left, (top - bottom) // 2]
    _, two = with_text(torch.zeros(1, 1, 128, 128), "I.", return_mask=True)
    heights = two[0, 0, extent(two, 0)[0] : extent(two, 0)[1] + 1].sum(1)
    assert heights[0] > heights[-1]  # first letter first


def test_holes_stay_open() -> None:
    _, mask = with_text(torch.zeros(1, 1, 256, 256), "O", return_mask=True)
    assert not mask[0, 0, 127:129, 127:129].any()


@pytest.mark.parametrize(("height", "width"), [(128, 128), (60, 200)])
def test_long_text_shrinks_to_the_width(height: int, width: int) -> None:
    _, mask = with_text(torch.zeros(1, 1, height, width), "an unusually long text", return_mask=True)
    low, high = extent(mask, 0)
    assert 0.75 * height < high - low + 1 <= 0.9 * height + 1


def test_dollars_are_letters() -> None:
    _, mask = with_text(torch.zeros(1, 1, 128, 128), "$x$", return_mask=True)
    _, bare = with_text(torch.zeros(1, 1, 128, 128), "x", return_mask=True)
    assert mask.sum() > 2 * bare.sum()


def test_device_and_dtype_stay(device: torch.device) -> None:
    written = with_text(torch.zeros(1, 1, 64, 64, dtype=torch.float64, device=device), "A")
    assert written.dtype == torch.float64 and written.device.type == device.type and written.max() == 1


@pytest.mark.parametrize(
    ("x", "text", "message"),
    [
        (torch.zeros(64, 64), "A", r"shape \(B, 1, H, W\), got torch.float32 \(64, 64\)"),
        (torch.zeros(1, 3, 64, 64), "A", r"got torch.float32 \(1, 3, 64, 64\)"),
        (torch.zeros(1, 1, 64, 64, dtype=torch.int64), "A", "floating-point"),
        ([[0.0]], "A", "got list"),
        (torch.zeros(1, 1, 64, 64), "", "something to show"),
        (torch.zeros(1, 1, 64, 64), " \u200b ", "something to show"),
        (torch.zeros(1, 1, 64, 64), "漢", "DejaVu Sans cannot show"),
        (torch.zeros(1, 1, 64, 64), 7, "text must be a string"),
        (torch.zeros(1, 1, 2, 2), "a very long text", "larger image"),
    ],
)
def test_bad_input_is_named(x: torch.Tensor, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_text(x, text)


def test_bad_value_is_named() -> None:
    with pytest.raises(InputError, match="value must be finite"):
        with_text(torch.zeros(1, 1, 64, 64), "A", value=float("nan"))
