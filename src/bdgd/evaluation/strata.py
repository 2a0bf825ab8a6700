"""Kinds of pixels that are scored apart, and all the scores of one kind, gathered batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bdgd.metrics import (
    CalibrationError,
    ErrorDetection,
    ErrorQuantiles,
    Intervals,
    IntervalScores,
    PatchLikelihood,
    PixelMean,
    PixelScore,
    Reliability,
    Sparsification,
    SparsificationCurve,
    squared_z,
)
from bdgd.metrics.streaming import LogBins, PixelFunction

_SMALL = 1e-6  # a true value, or a step between two, below this is none, in multiples of the unit
LEAST_STD = 1e-4  # in multiples of the unit: no pixel is taken for more certain than this


class PosteriorLike(Protocol):
    """All that is asked of a posterior, so that a calibrated one is judged by the same code."""

    @property
    def mean(self) -> Tensor: ...
    @property
    def std(self) -> Tensor: ...
    @property
    def epistemic(self) -> Tensor: ...
    @property
    def aleatoric(self) -> Tensor: ...
    def interval(self, level: float) -> tuple[Tensor, Tensor]: ...
    def draws(self) -> Iterator[Tensor]: ...


def object_pixels(truth: Tensor, unit: float = 1.0) -> Tensor:
    """(B, 1, H, W) true where the truth is above 1e-6 of the unit: the pixels of the object, all others are background."""
    return truth / unit > _SMALL


def strata(truth: Tensor, unit: float = 1.0) -> dict[str, Tensor]:
    """Masks (B, 1, H, W) by name: "all", "object" (truth > 1e-6), "background" (the rest), "edges" (both sides of every step of the truth).

    An edge pixel is one whose value differs from that of at least one of its four neighbours. unit: the image value that counts as 1.
    """
    inside, edges = object_pixels(truth, unit), torch.zeros_like(truth, dtype=torch.bool)
    for axis in (2, 3):
        step = truth.diff(dim=axis).abs() / unit > _SMALL
        length = step.shape[axis]
        edges.narrow(axis, 0, length).logical_or_(step)
        edges.narrow(axis, 1, length).logical_or_(step)
    return {"all": torch.ones_like(inside), "object": inside, "background": ~inside, "edges": edges}


@dataclass(frozen=True)
class StratumScores:
    """The scores of one kind of pixel, pooled over all images; NLL in nats per pixel, RMSE, MAE, CRPS and widths in the image's unit.

    nll_constant: of the best Gaussian of one constant std, so nll_constant - nll is what knowing where the errors are is worth.
    constant_widths: of intervals of one constant width that cover as much as those of each level (not cut off at 0).
    patch_nll: by the side of the patch, over patches that lie in this kind of pixel as a whole. epistemic_part: of the variance.
    """

    pixels: int
    rmse: float
    mae: float
    nll: float
    nll_constant: float
    crps: float
    draws_crps: float | None
    squared_z: float
    error_auroc: float
    epistemic_part: float
    intervals: tuple[IntervalScores, ...]
    constant_widths: tuple[float, ...]
    patch_nll: dict[int, float]
    reliability: Reliability
    sparsification: SparsificationCurve

    @property
    def ause(self) -> float:
        return self.sparsification.ause

    @property
    def ence(self) -> float:
        return self.reliability.ence

    @property
    def uce(self) -> float:
        return self.reliability.uce

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file, with those that are derived."""
        return {**asdict(self), "ause": self.ause, "uce": self.uce, "ence": self.ence}


class Stratum:
    """Gathers the scores of one kind of pixel; memory does not grow with the number of images but for a few numbers each.

    unit: the image value that counts as 1. A pixel counts as certain to LEAST_STD of it at the most.
    """

    def __init__(self, levels: Sequence[float], patches: Sequence[int], *, nll: PixelFunction, crps: PixelFunction, unit: float = 1.0):
        self.pixels, least_std = 0, LEAST_STD * unit
        self._nll, self._crps = PixelScore(nll, least_std=least_std), PixelScore(crps, least_std=least_std)
        self._z, self._square, self._size = PixelScore(squared_z, least_std=least_std), PixelScore(_square), PixelScore(_size)
        self._calibration, self._order = CalibrationError(least_std=least_std), Sparsification()
        self._detection = ErrorDetection(bins=LogBins(1e-7 * unit, 1e2 * unit, 50))
        self._errors = ErrorQuantiles(LogBins(1e-8 * unit, 1e2 * unit))
        self._intervals = [Intervals(level) for level in levels]
        self._patches = [PatchLikelihood(side, least_std=least_std) for side in patches]
        self._epistemic, self._aleatoric, self._draws = PixelMean(), PixelMean(), PixelMean()

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor) -> None:
        """What needs mean and std alone."""
        self.pixels += int(mask.sum())
        pixelwise = (self._nll, self._crps, self._z, self._square, self._size)
        for metric in (*pixelwise, self._calibration, self._order, self._detection, self._errors):
            metric.add(mean, std, truth, mask)

    def add_parts(self, epistemic: Tensor, aleatoric: Tensor, mask: Tensor) -> None:
        self._epistemic.add(epistemic, mask)
        self._aleatoric.add(aleatoric, mask)

    def add_intervals(self, mean: Tensor, intervals: Sequence[tuple[Tensor, Tensor]], truth: Tensor, mask: Tensor) -> None:
        """One (lower, upper) for each level."""
        for metric, interval in zip(self._intervals, intervals, strict=True):
            metric.add(mean, interval, truth, mask)

    def add_draws(self, mean: Tensor, covariances: Sequence[Tensor], aleatoric: Tensor, truth: Tensor, crps: Tensor, mask: Tensor) -> None:
        """The covariance of the draws in patches of each side, and the CRPS of the draws (B, 1, H, W)."""
        for metric, covariance in zip(self._patches, covariances, strict=True):
            metric.add(mean, covariance, aleatoric, truth, mask)
        self._draws.add(crps, mask)

    def nll_so_far(self) -> float:
        return self._nll.result().pooled if self.pixels else math.nan

    def result(self) -> StratumScores:
        mean_square = self._square.result().pooled
        epistemic, aleatoric = self._epistemic.result().pooled, self._aleatoric.result().pooled
        intervals = tuple(metric.result() for metric in self._intervals)
        return StratumScores(
            pixels=self.pixels,
            rmse=math.sqrt(mean_square),
            mae=self._size.result().pooled,
            nll=self._nll.result().pooled,
            nll_constant=0.5 * math.log(2 * math.pi * math.e * max(mean_square, self._nll.least_std**2)),
            crps=self._crps.result().pooled,
            draws_crps=self._draws.result().pooled if self._draws.pixels else None,
            squared_z=self._z.result().pooled,
            error_auroc=self._detection.result(),
            epistemic_part=epistemic / ((epistemic + aleatoric) or 1.0),
            intervals=intervals,
            constant_widths=tuple(2 * self._errors.result(interval.coverage) for interval in intervals),
            patch_nll={metric.side: metric.result().pooled for metric in self._patches if metric.patches},
            reliability=self._calibration.result(),
            sparsification=self._order.result(),
        )


def _square(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
    return (truth - mean) ** 2


def _size(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
    return (truth - mean).abs()
