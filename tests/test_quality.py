"""PSNR and SSIM against closed forms and the reference implementation."""

from __future__ import annotations

import math

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from bdgd.checks import InputError
from bdgd.metrics.quality import mean_psnr, psnr, ssim


def test_psnr_of_a_constant_error() -> None:
    truth = torch.rand(3, 1, 16, 20)
    estimate = truth + torch.tensor([0.1, 0.01, 0.0]).reshape(3, 1, 1, 1)
    torch.testing.assert_close(psnr(estimate, truth), torch.tensor([20.0, 40.0, math.inf], dtype=torch.float64), rtol=1e-5, atol=0)
    torch.testing.assert_close(psnr(estimate, truth, data_range=10)[:2], psnr(estimate, truth)[:2] + 20)


def test_the_mean_leaves_out_what_is_matched_exactly() -> None:
    truth = torch.rand(3, 1, 16, 20, dtype=torch.float64)
    estimate = truth + torch.tensor([0.1, 0.01, 0.0]).reshape(3, 1, 1, 1)
    assert mean_psnr(estimate, truth) == pytest.approx(30.0) and mean_psnr(truth, truth) == math.inf


def test_both_agree_with_scikit_image() -> None:
    truth, estimate = torch.rand(2, 3, 1, 16, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for i in range(3):
        pair = truth[i, 0].numpy(), estimate[i, 0].numpy()
        assert float(psnr(estimate, truth, 2.0)[i]) == pytest.approx(peak_signal_noise_ratio(*pair, data_range=2.0))
        assert float(ssim(estimate, truth, 2.0)[i]) == pytest.approx(structural_similarity(*pair, data_range=2.0))


def test_ssim_of_an_exact_match_is_one(device: torch.device) -> None:
    x = torch.rand(2, 1, 8, 9).to(device)
    value = ssim(x, x)
    assert value.device.type == device.type
    torch.testing.assert_close(value.cpu(), torch.ones(2, dtype=torch.float64))
    assert (ssim(x, 1 - x) < 1).all()


def test_single_and_double_precision_may_meet() -> None:
    x = torch.rand(1, 1, 8, 8)
    assert psnr(x, x.double()) == math.inf


@pytest.mark.parametrize("metric", [psnr, ssim])
@pytest.mark.parametrize(
    ("estimate", "truth", "message"),
    [
        (
            torch.zeros(2, 1, 8, 8),
            torch.zeros(8, 8),
            r"truth must be images of shape \(B, 1, H, W\), got \(8, 8\); add axes with \[None, None\]",
        ),
        (torch.zeros(2, 1, 8, 8), torch.zeros(2, 8, 8), r"got \(2, 8, 8\); add axes with \[:, None\]"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(1, 8, 8), r"got \(1, 8, 8\); add axes with \[None\]"),
        (torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8), "one channel at a time"),
        (torch.zeros(8, 8), torch.zeros(2, 1, 8, 8), r"estimate must have shape \(B, 1, 8, 8\), got \(8, 8\)"),
        (torch.zeros(2, 1, 8, 9), torch.zeros(2, 1, 8, 8), "estimate must have shape"),
        (torch.zeros(1, 1, 8, 8), torch.zeros(2, 1, 8, 8), "must be pairs, got 1 and 2 images"),
        (torch.zeros(0, 1, 8, 8), torch.zeros(0, 1, 8, 8), "empty"),
        (torch.full((1, 1, 8, 8), math.nan), torch.zeros(1, 1, 8, 8), "estimate must be finite"),
        (torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), math.inf), "truth must be finite"),
        (torch.zeros(1, 1, 8, 8), [0.0], "got list; convert it with torch.as_tensor"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.int32), torch.zeros(1, 1, 8, 8), "floating point"),
    ],
)
def test_bad_pairs_are_named(metric, estimate, truth, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        metric(estimate, truth)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_bad_data_range_is_named(metric) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="data_range must be above 0"):
        metric(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8), data_range=0)


def test_ssim_needs_room_for_its_window() -> None:
    with pytest.raises(InputError, match="at least 7 x 7 pixels, got 6 x 9"):
        ssim(torch.zeros(1, 1, 6, 9), torch.zeros(1, 1, 6, 9))
