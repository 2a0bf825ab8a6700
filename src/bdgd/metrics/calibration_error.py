"""Whether errors are as large as the error bars say, at every size of error bar: reliability, UCE and ENCE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdgd.checks import require_count
from bdgd.metrics.ordered import OrderedSums, group_numbers
from bdgd.metrics.streaming import chosen, require_pixels


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
        """Expected normalised calibration error: mean over groups of |actual - predicted| / predicted; infinite for errors at std 0."""
        if any(actual and not predicted for predicted, actual in zip(self.predicted, self.actual, strict=True)):
            return math.inf
        groups = [(predicted, actual) for predicted, actual in zip(self.predicted, self.actual, strict=True) if predicted]
        return math.fsum(abs(actual - predicted) / predicted for predicted, actual in groups) / len(self.pixels)


class CalibrationError:
    """Squared errors against predicted variances, in at most `groups` groups of about equally many pixels by growing std.

    Pixels of one std stay together, so fewer groups come out where many share one.
    """

    def __init__(self, groups: int = 20, *, least_std: float = 0.0):
        self.groups, self.least_std = require_count(groups, "groups"), least_std
        self._ordered = OrderedSums(2)  # variance, squared error

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        centre, spread, true = chosen(mask, mean, std, truth)
        spread = spread.clamp(min=self.least_std)
        self._ordered.add(spread, spread**2, (true - centre) ** 2)

    def merge(self, other: CalibrationError) -> None:
        self._ordered.merge(other._ordered)

    def result(self) -> Reliability:
        fine = self._ordered.result()  # (3, G)
        require_pixels(float(fine[0].sum()))
        number = group_numbers(torch.arange(fine.shape[1]), fine[0], self.groups)
        pixels, variance, squares = torch.zeros(3, int(number.max()) + 1, dtype=torch.float64).index_add_(1, number, fine)
        predicted, actual = (variance / pixels).sqrt(), (squares / pixels).sqrt()
        return Reliability(tuple(map(round, pixels.tolist())), tuple(predicted.tolist()), tuple(actual.tolist()))
