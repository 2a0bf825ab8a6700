"""Regions of a posterior: their mean, contrast and area above a threshold, with intervals.

The error of a region's mean is sum_i w_i e_i. Errors of neighbouring pixels go together, so its variance is more than that of
independent errors. It is taken as

    variance of sum_i w_i x_i over the draws    +    sum_i w_i^2 s_i^2    +    (sum_i w_i r_i)^2

with s the aleatoric standard deviations and r_i the smallest of them in a window around pixel i. The second term is the rough part,
independent from pixel to pixel, as at edges. The third is the smooth part, which all pixels of a region share: an error that is
everywhere around, as large as the best pixels there have it. A contrast has a smooth part for either region. How many
such standard deviations an interval needs is measured on random discs (`calibrating_regions`). Without a calibration the smooth
part is left out, and the interval shrinks with the number of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.metrics.uncertainty import pixel_mask
from bdgd.models.calibration import RegionCalibration, require_level

if TYPE_CHECKING:
    from bdgd.inference.posterior import Posterior


@dataclass(frozen=True, eq=False)
class Region:
    """The mean value of a region of each image, or the contrast of two, with its interval: each (B,), or (B, R) for R regions."""

    mean: Tensor
    std: Tensor
    lower: Tensor
    upper: Tensor
    level: float


@dataclass(frozen=True, eq=False)
class Area:
    """How many pixels are above a threshold, each (B,): the expected number and an interval."""

    expected: Tensor
    lower: Tensor
    upper: Tensor
    level: float


def weights_of(mask: Tensor, like: Tensor) -> Tensor:
    """(B, 1, H, W): 1 / (number of pixels) inside the mask, 0 outside."""
    inside = pixel_mask(mask, like)
    return (inside / inside.sum((1, 2, 3), keepdim=True)).to(like.dtype)


def region_of(posterior: Posterior, weights: Tensor, level: float, calibrated: bool | None, minus: Tensor | None = None) -> Region:
    """The region with these weights (B, 1, H, W), minus another one's where given; each number (B,)."""
    found = regions_of(posterior, weights, level, calibrated, minus)
    return Region(found.mean[:, 0], found.std[:, 0], found.lower[:, 0], found.upper[:, 0], level)


def regions_of(posterior: Posterior, weights: Tensor, level: float, calibrated: bool | None, minus: Tensor | None = None) -> Region:
    """R regions of every image with weights (B, R, H, W) in one replay of the draws, minus others where given; each number (B, R)."""
    regions = _calibration(posterior, calibrated)
    mean, std = sums_of(posterior, weights if minus is None else weights - minus, regions)
    if regions is None:
        factor = torch.full_like(std, NormalDist().inv_cdf(0.5 + require_level(level) / 2))
    else:
        areas = (weights > 0).sum((2, 3)) if minus is None else torch.minimum((weights > 0).sum((2, 3)), (minus > 0).sum((2, 3)))
        factor = regions.factor("mean" if minus is None else "contrast", level, areas).to(std)
    lower, upper = mean - factor * std, mean + factor * std
    if minus is None:  # a mean cannot be below 0, a contrast can
        lower, upper = lower.clamp(min=0), upper.clamp(min=0)
    return Region(mean, std, lower, upper, level)


def sums_of(posterior: Posterior, weights: Tensor, regions: RegionCalibration | None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B, R) of R weighted sums of pixels, with weights (B, R, H, W), in one replay of the draws."""
    sums = torch.stack([(weights * draw).sum((2, 3)) for draw in posterior.draws()])  # (S, B, R)
    epistemic = sums.var(0) if len(sums) > 1 else torch.zeros_like(sums[0])
    variance = epistemic + (weights**2 * posterior.aleatoric).sum((2, 3))
    if regions is not None:
        variance = variance + smooth_variance(weights, posterior.aleatoric.sqrt(), regions.window)
    return sums.mean(0), variance.sqrt()


def smooth_variance(weights: Tensor, std: Tensor, window: int) -> Tensor:
    """(B, R): the variance of what pixels share, for weights (B, R, H, W) and std (B, 1, H, W); negative weights are another region."""
    shared = shared_std(std, window)
    return (weights.clamp(min=0) * shared).sum((2, 3)) ** 2 + (weights.clamp(max=0) * shared).sum((2, 3)) ** 2


def shared_std(std: Tensor, window: int) -> Tensor:
    """(B, 1, H, W) the smallest standard deviation in a window around each pixel: the r of the smooth part."""
    return -F.max_pool2d(-std, window, 1, window // 2)


def area_above(posterior: Posterior, threshold: float, mask: Tensor, level: float, calibrated: bool | None) -> Area:
    """The pixels of the mask above the threshold: at least those whose interval lies above it, at most those whose interval reaches it.

    The intervals reach to the z at which this held for the level of the calibration regions; without a calibration, to the
    Gaussian z, which bounds the area as if all errors went together.
    """
    threshold, level = require_number(threshold, "threshold"), require_level(level)
    inside = pixel_mask(mask, posterior.mean)
    regions = _calibration(posterior, calibrated)
    if regions is None:
        z = torch.full((len(inside),), NormalDist().inv_cdf(0.5 + level / 2), dtype=torch.float64, device=inside.device)
    else:
        z = regions.factor("area", level, inside.sum((1, 2, 3)))
    above, reach = reach_of(posterior, threshold)
    z = z[:, None, None, None]
    lower = (inside & above & (reach > z)).sum((1, 2, 3))
    upper = (inside & (above | (reach < z))).sum((1, 2, 3))
    expected = (posterior.predictive.above(threshold - posterior.mean) * inside).sum((1, 2, 3))
    return Area(expected, lower, upper, level)


def reach_of(posterior: Posterior, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """Which pixels have their mean above the threshold, and the z at which their interval reaches it: each (B, 1, H, W)."""
    gap = posterior.mean - threshold
    return gap > 0, posterior.predictive.z(gap)


def _calibration(posterior: Posterior, wanted: bool | None) -> RegionCalibration | None:
    calibration = posterior.calibration_in_force(wanted)
    if calibration is not None and calibration.regions is None:
        raise InputError(
            "the model's calibration has no regions; calibrate it anew with bdgd.calibrate(model, scans), or ask with calibrated=False"
        )
    return calibration.regions if calibration is not None else None
