"""Whether errors are as large as the error bars say, at every size of error bar: reliability, UCE and ENCE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdgd.checks import require_count
from bdgd.metrics.streaming import LogBins, chosen, require_pixels


@dataclass(frozen=True)
class Reliability:
    """Groups of pixels by growing predicted std: how many pixels each has, the predicted and the actual root mean square error."""

    pixels: tuple[int, ...]
    predicted: tuple[float, ...]
    actual: tuple[float, ...]

    @property
    def uce(self) -> float:
        """Uncertainty calibration error: sum over groups of (its part of the pixels) |actual^2 - predicted^2|."""
        groups = zip(self.pixels, self.predicted, self.actual, strict=True)
        return math.fsum(n * abs(actual**2 - predicted**2) for n, predicted, actual in groups) / sum(self.pixels)

    @property
    def ence(self) -> float:
        """Expected normalised calibration error: mean over groups of |actual - predicted| / predicted."""
        groups = zip(self.predicted, self.actual, strict=True)
        return math.fsum(abs(actual - predicted) / predicted for predicted, actual in groups) / len(self.pixels)


class CalibrationError:
    """Squared errors against predicted variances, in groups of about equally many pixels.

    Pixels are counted in fine logarithmic bins of the std; at the end neighbouring bins are joined to at most `groups`
    groups. Pixels of one std stay together, so fewer groups come out where many share one.
    """

    def __init__(self, groups: int = 20, *, least_std: float = 0.0, bins: LogBins | None = None):
        self.groups, self.least_std, self.bins = require_count(groups, "groups"), least_std, bins or LogBins()
        self._sums = torch.zeros(3, self.bins.count, dtype=torch.float64)  # pixels, variance, squared error

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        centre, spread, true = chosen(mask, mean, std, truth)
        spread = spread.clamp(min=max(self.least_std, self.bins.low))
        index = self.bins.index(spread)
        self._sums += torch.stack([self.bins.sums(index, weights) for weights in (None, spread**2, (true - centre) ** 2)])

    def merge(self, other: CalibrationError) -> None:
        self.bins.require_same(other.bins)
        self._sums = self._sums + other._sums

    def result(self) -> Reliability:
        counts = self._sums[0]
        middle = (counts.cumsum(0) - counts / 2) / require_pixels(float(counts.sum()))  # of each bin, in parts of all pixels
        group = (middle * self.groups).long().clamp(0, self.groups - 1)
        sums = torch.zeros(3, self.groups, dtype=torch.float64).index_add_(1, group, self._sums)
        pixels, variance, squares = sums[:, sums[0] > 0]
        predicted, actual = (variance / pixels).sqrt(), (squares / pixels).sqrt()
        return Reliability(tuple(map(int, pixels.tolist())), tuple(predicted.tolist()), tuple(actual.tolist()))
