"""What all streaming metrics have in common: neither batches nor merging count, only the pixels of the mask do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from predictions import heavy_case, some_mask, streamed

from bdgd.checks import InputError
from bdgd.metrics import (
    CalibrationError,
    ErrorDetection,
    ErrorQuantiles,
    Intervals,
    LogBins,
    PixelScore,
    Sparsification,
    gaussian_crps,
    gaussian_nll,
)

METRICS: list[Callable[[], Any]] = [
    lambda: PixelScore(gaussian_nll),
    lambda: PixelScore(gaussian_crps),
    lambda: Intervals(0.9),
    CalibrationError,
    Sparsification,
    ErrorDetection,
]
NAMES = ["nll", "crps", "intervals", "calibration", "sparsification", "error detection"]


def numbers(result: Any) -> list[float]:
    """Every number of a result, in order."""
    if isinstance(result, int | float):
        return [float(result)]
    parts = result if isinstance(result, tuple) else tuple(vars(result).values())
    return [number for part in parts for number in numbers(part)]


@pytest.mark.parametrize("make", METRICS, ids=NAMES)
def test_batches_and_merging_do_not_change_a_result(make: Callable[[], Any]) -> None:
    case = heavy_case()
    mask = some_mask(case[0].shape)
    whole = streamed(make(), case, mask, batches=(4,)).result()
    assert numbers(streamed(make(), case, mask).result()) == pytest.approx(numbers(whole), rel=1e-12)
    first, second = (streamed(make(), tuple(t[part] for t in case), mask[part], (2,)) for part in (slice(0, 2), slice(2, 4)))  # type: ignore[arg-type]
    first.merge(second)
    assert numbers(first.result()) == pytest.approx(numbers(whole), rel=1e-12)


@pytest.mark.parametrize("make", METRICS, ids=NAMES)
def test_only_the_pixels_of_the_mask_count(make: Callable[[], Any]) -> None:
    mean, std, truth = heavy_case()
    mask = some_mask(mean.shape)
    mask[2] = False  # an image without a pixel in the mask is no error
    expected = streamed(make(), (mean, std, truth), mask).result()
    spoiled = (mean.where(mask, 3.0), std.where(mask, 1e-3), truth.where(mask, -2.0))
    assert numbers(streamed(make(), spoiled, mask).result()) == pytest.approx(numbers(expected), rel=1e-12)


@pytest.mark.parametrize("make", METRICS, ids=NAMES)
def test_no_pixel_gives_no_result_and_shapes_must_agree(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=r"no pixel has been added|one kind is missing"):
        make().result()
    mean, std, truth = heavy_case()
    with pytest.raises(InputError, match=r"must have one shape \(B, 1, H, W\), got"):
        streamed(make(), (mean, std, truth[:, :, :30].repeat(1, 1, 1, 1)))
    with pytest.raises(InputError, match="mask must be a boolean tensor"):
        streamed(make(), (mean, std, truth), torch.ones_like(mean))


def test_bins_hold_what_lies_outside_them_and_other_bins_do_not_merge() -> None:
    bins = LogBins(1e-3, 1e2, 10)
    assert bins.count == 50
    assert bins.index(torch.tensor([0.0, 1e-9, 1.05e-3, 1.3e-3, 1.05, 1e5])).tolist() == [0, 0, 0, 1, 30, 49]
    with pytest.raises(InputError, match="the same bins"):
        ErrorQuantiles(bins).merge(ErrorQuantiles())


def test_a_histogram_counts_finite_values_alone() -> None:
    mean, std, truth = heavy_case()
    std[1, 0, 3, 4] = math.nan
    with pytest.raises(InputError, match="must be finite, but 1 of"):
        streamed(Sparsification(), (mean, std, truth))
