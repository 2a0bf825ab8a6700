"""Whether the most uncertain pixels are the most wrong ones: the sparsification curve over all pixels of a set, and its AUSE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdgd.metrics.streaming import LogBins, chosen, require_pixels

#: Fractions of the pixels that are removed.
REMOVED = tuple(percent / 100 for percent in range(0, 95, 5))


@dataclass(frozen=True)
class SparsificationCurve:
    """RMSE of the pixels that remain when the fraction `removed` is left out: the most uncertain ones, and the most wrong ones."""

    removed: tuple[float, ...]
    by_std: tuple[float, ...]
    by_error: tuple[float, ...]

    @property
    def ause(self) -> float:
        """Mean of the gap between the two curves, over the RMSE of all pixels; 0 is a perfect order, and also that of no error at all."""
        gaps = [std - error for std, error in zip(self.by_std, self.by_error, strict=True)]
        return sum(gaps) / len(gaps) / self.by_std[0] if self.by_std[0] else 0.0


class Sparsification:
    """The streaming form of `bdgd.ause`, over all pixels of a set together.

    Squared errors are summed in fine logarithmic bins of the std, and of the error; pixels of one bin count as their mean,
    as those of one std do in the exact form.
    """

    def __init__(self, bins: LogBins | None = None):
        self.bins = bins or LogBins()
        self._sums = torch.zeros(2, 2, self.bins.count, dtype=torch.float64)  # by std, by error; pixels, squared error

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        centre, spread, true = chosen(mask, mean, std, truth)
        error = (true - centre).abs()
        for sums, key in zip(self._sums, (spread, error), strict=True):
            index = self.bins.index(key)
            sums += torch.stack([self.bins.sums(index), self.bins.sums(index, error**2)])

    def merge(self, other: Sparsification) -> None:
        self.bins.require_same(other.bins)
        self._sums = self._sums + other._sums

    def result(self) -> SparsificationCurve:
        pixels = require_pixels(float(self._sums[0, 0].sum()))
        kept = [max(1, round(pixels * (1 - removed))) for removed in REMOVED]
        by_std, by_error = (tuple(_rmse_of_first(counts, squares, n) for n in kept) for counts, squares in self._sums)
        return SparsificationCurve(REMOVED, by_std, by_error)


def _rmse_of_first(counts: Tensor, squares: Tensor, number: int) -> float:
    """RMSE of the first `number` pixels in bins of growing key; the bin in which they end counts in part."""
    before = counts.cumsum(0) - counts
    part = ((number - before) / counts.clamp(min=1)).clamp(0, 1)
    return float(((part * squares).sum() / number).sqrt())
