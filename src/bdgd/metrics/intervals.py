"""Intervals over a whole set: how often they hold the truth, how wide they are, and one score for both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics.streaming import LogBins, PixelMean, chosen, require_alike, require_pixels


@dataclass(frozen=True)
class IntervalScores:
    """Of the intervals of one level: the part of the pixels covered (pooled and in each image), the mean width, the interval score."""

    level: float
    coverage: float
    width: float
    score: float
    coverage_per_image: tuple[float, ...]

    @property
    def worst_coverage(self) -> float:
        """The tenth percentile of the images' coverage: nine images in ten are covered at least as well."""
        ordered = sorted(self.coverage_per_image)
        return ordered[len(ordered) // 10]


class Intervals:
    """Coverage, mean width and mean interval score of the intervals of one level.

    The interval score (Winkler), width + 2 / (1 - level) * [distance of the truth to the interval], is least for the true
    quantiles: an interval cannot gain by being wide to cover, nor narrow to be short.
    """

    def __init__(self, level: float):
        if not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level!r}")
        self.level = level
        self._covered, self._width, self._score = PixelMean(), PixelMean(), PixelMean()

    def add(self, mean: Tensor, interval: tuple[Tensor, Tensor], truth: Tensor, mask: Tensor | None = None) -> None:
        """interval: (lower, upper), each (B, 1, H, W) like the mean, which plays no part here."""
        lower, upper = interval
        require_alike(mean, lower, upper, truth)
        lower, upper, truth, held = lower.double(), upper.double(), truth.double(), (lower <= truth) & (truth <= upper)
        missed = (lower - truth).clamp(min=0) + (truth - upper).clamp(min=0)
        self._covered.add(held.double(), mask)
        self._width.add(upper - lower, mask)
        self._score.add(upper - lower + 2 / (1 - self.level) * missed, mask)

    def merge(self, other: Intervals) -> None:
        if other.level != self.level:
            raise InputError(f"only intervals of one level can be merged, got {self.level} and {other.level}")
        for own, added in zip(self._means, other._means, strict=True):
            own.merge(added)

    def result(self) -> IntervalScores:
        covered, width, score = (mean.result() for mean in self._means)
        return IntervalScores(self.level, covered.pooled, width.pooled, score.pooled, covered.per_image)

    @property
    def _means(self) -> tuple[PixelMean, PixelMean, PixelMean]:
        return self._covered, self._width, self._score


class ErrorQuantiles:
    """Quantiles of the absolute error over all pixels of a set: twice one of them is the constant width that covers as much."""

    def __init__(self, bins: LogBins | None = None):
        self.bins = bins or LogBins()
        self._counts = torch.zeros(self.bins.count, dtype=torch.float64)

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        """The std plays no part here."""
        centre, true = chosen(mask, mean, truth)
        self._counts += self.bins.sums(self.bins.index((true - centre).abs()))

    def merge(self, other: ErrorQuantiles) -> None:
        self.bins.require_same(other.bins)
        self._counts = self._counts + other._counts

    def result(self, part: float) -> float:
        """The absolute error that the part `part` of the pixels does not exceed, to the width of a bin."""
        below = self._counts.cumsum(0)
        wanted = part * require_pixels(float(below[-1]))
        number = min(int((below < wanted).sum()), self.bins.count - 1)
        within = (wanted - float(below[number] - self._counts[number])) / max(float(self._counts[number]), 1.0)
        return self.bins.edge(number + within)
