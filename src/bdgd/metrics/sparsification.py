"""Whether the most uncertain pixels are the most wrong ones: the sparsification curve over all pixels of a set, and its AUSE."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bdgd.metrics.ordered import OrderedSums
from bdgd.metrics.streaming import chosen, require_pixels

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
    """The streaming form of `bdgd.ause`, over all pixels of a set together: pixels of one std, or of one group, count as their mean."""

    def __init__(self) -> None:
        self._by_std, self._by_error = OrderedSums(1), OrderedSums(1)  # squared errors

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        centre, spread, true = chosen(mask, mean, std, truth)
        squares = (true - centre) ** 2
        self._by_std.add(spread, squares)
        self._by_error.add(squares, squares)

    def merge(self, other: Sparsification) -> None:
        self._by_std.merge(other._by_std)
        self._by_error.merge(other._by_error)

    def result(self) -> SparsificationCurve:
        by_std, by_error = self._by_std.result(), self._by_error.result()
        pixels = require_pixels(float(by_std[0].sum()))
        kept = [max(1, round(pixels * (1 - removed))) for removed in REMOVED]
        curves = [tuple(_rmse_of_first(sums, n) for n in kept) for sums in (by_std, by_error)]
        return SparsificationCurve(REMOVED, curves[0], curves[1])


def _rmse_of_first(sums: Tensor, number: int) -> float:
    """RMSE of the first `number` pixels in groups of growing key; the group in which they end counts in part."""
    counts, squares = sums
    before = counts.cumsum(0) - counts
    part = ((number - before) / counts.clamp(min=1)).clamp(0, 1)
    return float(((part * squares).sum() / number).sqrt())
