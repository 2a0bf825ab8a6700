"""The posterior of a reconstruction: Monte-Carlo draws through the cascade (Algorithm 2 of the paper), kept as moments.

Draw s uses weights keyed by (seed, s, block), the same for every image: an image's result does not depend on the batch it
is in. Draws are never stored; `draws()` makes them again from the seed, one at a time, so memory stays flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.inference.regions import Area, Region, area_above, region_of, weights_of
from bdgd.models.calibration import Calibration, require_level
from bdgd.models.scale_mixture import ScaleMixture

__all__ = ["Area", "Origin", "Posterior", "Region"]


@dataclass(frozen=True, eq=False)
class Origin:
    """How the draws were made: of "weights" or "pixels", by a model with or without a calibration, through the complete cascade or not.

    unit: the image value that counts as 1, the model's value_scale. moved: an image was added to the draws (`explain_rest`).
    """

    draw: str = "weights"
    calibration: Calibration | None = None
    complete: bool = True
    unit: float = 1.0
    moved: bool = False


@dataclass(frozen=True, eq=False)
class Posterior:
    """Mean (B, 1, H, W) and two variances per pixel, in the squared unit of the image.

    epistemic: from the weights, the variance of the draws with S - 1 in the denominator. aleatoric: from the data, what one
    draw leaves open. `number` draws were made from `seed`; `replay` makes them again. mixture: the distribution whose variance
    is `aleatoric`; a Gaussian without one.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    number: int
    seed: int
    replay: Callable[[], Iterator[Tensor]]
    mixture: ScaleMixture | None = None
    origin: Origin = Origin()

    @property
    def std(self) -> Tensor:
        """The root of epistemic plus aleatoric variance, uncalibrated."""
        return (self.epistemic + self.aleatoric).sqrt()

    @property
    def predictive(self) -> ScaleMixture:
        """The distribution of truth - mean per pixel, both parts together; its variance is std^2."""
        return (self.mixture or ScaleMixture.gaussian(self.aleatoric)).plus(self.epistemic)

    @property
    def calibrated(self) -> bool:
        """Whether `interval` is calibrated: the model is, and nothing was added to its draws."""
        return self.origin.calibration is not None and not self.origin.moved

    def log_density(self, truth: Tensor) -> Tensor:
        """log p(truth) per pixel under the predictive, (B, 1, H, W) in nats."""
        return self.predictive.log_density(truth - self.mean)

    def interval(self, level: float = 0.95, *, calibrated: bool | None = None) -> tuple[Tensor, Tensor]:
        """(lower, upper) of the central interval of that level, each (B, 1, H, W); values below 0 cannot be and are cut off.

        Calibrated where the model is, and then refused where the calibration does not hold; calibrated=False takes the predictive as it is.
        Draws that were moved keep the widths of the calibration, which then promise nothing: calibrated=True is refused.
        """
        calibration = self.calibration_in_force(calibrated)
        z = calibration.z_at(level, self.std) if calibration else torch.tensor(gaussian_z(level), device=self.mean.device)
        half = self.predictive.half_width(z)
        return (self.mean - half).clamp(min=0), (self.mean + half).clamp(min=0)

    def calibration_in_force(self, wanted: bool | None = None) -> Calibration | None:
        """The calibration that intervals use; None where there is none or it is not `wanted`."""
        calibration = self.origin.calibration
        if wanted and self.origin.moved:
            raise InputError("the calibration holds for the model's own images, not with a rest added; ask before bdgd.explain_rest")
        if wanted and calibration is None:
            raise InputError("the model is not calibrated; calibrate it with model.with_calibration(bdgd.calibrate(model, scans))")
        if wanted is False or calibration is None:
            return None
        calibration.require(self.number, self.origin.draw, self.origin.complete)
        return calibration

    def draws(self) -> Iterator[Tensor]:
        """The draws (B, 1, H, W) that made the moments, one at a time."""
        return self.replay()

    def region(self, mask: Tensor, level: float = 0.95, *, calibrated: bool | None = None) -> Region:
        """The mean of the pixels where `mask` (H, W), (1, 1, H, W) or (B, 1, H, W) is true, with its interval.

        The epistemic part comes from the replayed draws, which keep the correlation between pixels. Of the aleatoric part a smooth
        share is common to all pixels (see `regions`); without a calibration all of it is taken as independent, which is far too narrow.
        """
        return region_of(self, weights_of(mask, self.mean), level, calibrated)

    def contrast(self, mask: Tensor, other: Tensor, level: float = 0.95, *, calibrated: bool | None = None) -> Region:
        """The mean of the pixels of `mask` minus that of `other`, with its interval; what both have in common cancels in every draw."""
        return region_of(self, weights_of(mask, self.mean), level, calibrated, minus=weights_of(other, self.mean))

    def area_above(self, threshold: float, mask: Tensor, level: float = 0.95, *, calibrated: bool | None = None) -> Area:
        """How many pixels of `mask` have a value above the threshold, with an interval; times pixel_size^2 it is an area."""
        return area_above(self, threshold, mask, level, calibrated)


def gaussian_z(level: float) -> float:
    """How many standard deviations the central Gaussian interval of that level reaches to either side."""
    return NormalDist().inv_cdf(0.5 + require_level(level) / 2)
