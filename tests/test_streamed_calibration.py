"""Intervals and calibration errors over a set: closed forms, and the exact values of all sorted pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from predictions import Gaussian, heavy_case, some_mask, streamed
from scipy import stats

from bdgd.metrics import CalibrationError, ErrorQuantiles, Intervals, PixelScore, coverage, squared_z

# --- Intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_and_width_are_pooled_and_per_image(level: float) -> None:
    mean, std, truth = heavy_case()
    mask = some_mask(mean.shape)
    found, posterior = streamed(Intervals(level), (mean, std, truth), mask).result(), Gaussian(mean, std)
    lower, upper = posterior.interval(level)
    assert found.coverage_per_image == pytest.approx(coverage(posterior, truth, level, mask).tolist())
    assert found.coverage == pytest.approx(float(((lower <= truth) & (truth <= upper))[mask].double().mean()))
    assert found.width == pytest.approx(float((upper - lower)[mask].double().mean()))
    assert found.worst_coverage == min(found.coverage_per_image)


def test_the_interval_score_is_least_for_the_true_quantiles() -> None:
    mean, std, _ = heavy_case(1, 200)
    truth = mean + std * torch.randn(mean.shape, generator=torch.Generator().manual_seed(4))
    scores = [streamed(Intervals(0.9), (mean, c * std, truth), batches=(1,)).result().score for c in (0.8, 1.0, 1.25)]
    # In closed form 2 phi(z) / alpha * std per end, where [mean - z std, mean + z std] is the interval of level 1 - 2 alpha.
    expected = 2 * 2 * stats.norm.pdf(stats.norm.ppf(0.95)) / 0.1 * float(std.double().mean())
    assert scores[1] < scores[0] and scores[1] < scores[2] and scores[1] == pytest.approx(expected, rel=0.02)


def test_error_quantiles_are_those_of_all_pixels() -> None:
    mean, std, truth = heavy_case()
    metric, errors = streamed(ErrorQuantiles(), (mean, std, truth)), (truth - mean).abs().double().flatten()
    for part in (0.5, 0.68, 0.9, 0.95):
        assert metric.result(part) == pytest.approx(float(errors.quantile(part)), rel=5e-3)


# --- Calibration -----------------------------------------------------------------------------------------------------


def test_uce_and_ence_in_closed_form() -> None:
    """Two sizes of error bar, one right, one half of what it should be."""
    std = torch.tensor([1.0, 1.0, 2.0, 2.0]).reshape(1, 1, 1, 4)
    truth = torch.tensor([1.0, -1.0, 4.0, -4.0]).reshape(1, 1, 1, 4)
    metric = CalibrationError(groups=2)
    metric.add(torch.zeros_like(std), std, truth)
    found = metric.result()
    assert found.pixels == (2, 2) and found.predicted == pytest.approx((1, 2)) and found.actual == pytest.approx((1, 4))
    assert found.uce == pytest.approx((0 + 12) / 2) and found.ence == pytest.approx((0 + 1) / 2)


def test_groups_are_those_of_the_sorted_pixels() -> None:
    mean, std, truth = heavy_case()
    found = streamed(CalibrationError(groups=10), (mean, std, truth)).result()
    order = std.flatten().argsort()
    squares, variance = ((truth - mean).double().flatten()[order] ** 2).chunk(10), (std.double().flatten()[order] ** 2).chunk(10)
    predicted, actual = (np.array([float(part.mean()) for part in parts]) for parts in (variance, squares))
    ence = np.mean(np.abs(np.sqrt(actual) - np.sqrt(predicted)) / np.sqrt(predicted))
    assert np.allclose(found.pixels, mean.numel() / 10, rtol=0.02)
    assert found.uce == pytest.approx(np.mean(np.abs(actual - predicted)), rel=0.02) and found.ence == pytest.approx(ence, rel=0.02)


def test_calibrated_error_bars_have_little_calibration_error_and_squared_z_one() -> None:
    mean, std, _ = heavy_case(1, 300)
    truth = mean + std * torch.randn(mean.shape, generator=torch.Generator().manual_seed(4))
    found = streamed(CalibrationError(), (mean, std, truth), batches=(1,)).result()
    twice = streamed(CalibrationError(), (mean, std / 2, truth), batches=(1,)).result()
    assert found.ence < 0.02 and twice.ence == pytest.approx(1, abs=0.03)
    z2 = streamed(PixelScore(squared_z), (mean.double(), std.double(), truth.double()), batches=(1,)).result().pooled
    assert z2 == pytest.approx(1, abs=4 * math.sqrt(2 / mean.numel()))


def test_constant_error_bars_are_one_group() -> None:
    mean, std, truth = heavy_case()
    found = streamed(CalibrationError(), (mean, torch.full_like(std, 0.01), truth)).result()
    assert found.pixels == (mean.numel(),)
    assert found.uce == pytest.approx(abs(float((truth - mean).double().square().mean()) - 1e-4))
