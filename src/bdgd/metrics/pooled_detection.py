"""Detection over all pixels of a set together, in bounded memory: of the pixels of a mask, and of those of largest error."""

from __future__ import annotations

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics.ordered import OrderedSums, group_numbers
from bdgd.metrics.streaming import LogBins, chosen, inside_of, require_pixels


class Detection:
    """AUROC of a score for the pixels of a mask, over all pixels of a set together."""

    def __init__(self) -> None:
        self._ordered = OrderedSums(1)

    def add(self, score: Tensor, target: Tensor, mask: Tensor | None = None) -> None:
        """score (B, 1, H, W), target the pixels to be found, mask the pixels that count."""
        self._ordered.add(*chosen(mask, score, inside_of(target, score).to(score.dtype)))

    def merge(self, other: Detection) -> None:
        self._ordered.merge(other._ordered)

    def result(self) -> float:
        pixels, inside = self._ordered.result()
        return auroc_of_histograms(inside, pixels - inside)


class ErrorDetection:
    """AUROC of the std for the pixels of largest absolute error, `worst` of all pixels of a set together.

    Which errors are the largest is known at the end only, so a table counts the pixels of each group of std in each bin of
    error. Pixels of the bin in which the limit lies are wanted in part, so that exactly the fraction `worst` is.
    """

    def __init__(self, worst: float = 0.05, *, room: int = 250_000, groups: int = 4000, bins: LogBins | None = None):
        if not 0 < worst < 1:
            raise InputError(f"worst must lie between 0 and 1, got {worst!r}; 0.05 is the worst twentieth of the pixels")
        self.worst, self.room, self.groups, self.bins = worst, room, groups, bins or LogBins(1e-7, 1e2, 50)
        self._pending: list[tuple[Tensor, Tensor]] = []  # std and number of the error's bin, (N,) each
        self._keys = torch.zeros(0, dtype=torch.float64)  # (G,) mean std of the groups
        self._table = torch.zeros(0, self.bins.count, dtype=torch.float64)  # (G, bins of error)

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        centre, spread, true = chosen(mask, mean, std, truth)
        self._pending.append((spread, self.bins.index((true - centre).abs())))
        if sum(len(keys) for keys, _ in self._pending) > self.room:
            self._settle()

    def merge(self, other: ErrorDetection) -> None:
        self.bins.require_same(other.bins)
        other._settle()
        self._settle()
        self._join(other._keys, other._table)

    def result(self) -> float:
        self._settle()
        errors = self._table.sum(0)
        wanted = self.worst * require_pixels(float(errors.sum()))
        larger = errors.flip(0).cumsum(0).flip(0) - errors  # pixels in bins of larger error
        part = ((wanted - larger) / errors.clamp(min=1)).clamp(0, 1)  # of each error bin
        return auroc_of_histograms(self._table @ part, self._table @ (1 - part))

    def _settle(self) -> None:
        """Move the pending pixels into the table."""
        if self._pending:
            keys, errors = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
            self._pending = []
            number = group_numbers(keys, torch.ones_like(keys), self.groups)
            groups = int(number.max()) + 1 if len(number) else 0
            counts = torch.bincount(number, minlength=groups).double()
            means = torch.zeros(groups, dtype=torch.float64).index_add_(0, number, keys) / counts
            table = torch.bincount(number * self.bins.count + errors, minlength=groups * self.bins.count).double()
            self._join(means, table.reshape(groups, self.bins.count))

    def _join(self, keys: Tensor, table: Tensor) -> None:
        keys, table = torch.cat([self._keys, keys]), torch.cat([self._table, table])
        pixels = table.sum(1)
        number = group_numbers(keys, pixels, self.groups)
        groups = int(number.max()) + 1 if len(number) else 0
        self._table = torch.zeros(groups, self.bins.count, dtype=torch.float64).index_add_(0, number, table)
        self._keys = torch.zeros(groups, dtype=torch.float64).index_add_(0, number, keys * pixels) / self._table.sum(1)


def auroc_of_histograms(inside: Tensor, outside: Tensor) -> float:
    """AUROC from the counts (N,) of both kinds of pixel in bins of growing score."""
    if not (float(inside.sum()) and float(outside.sum())):
        raise InputError("a detection needs pixels inside and outside of what is to be found, but one kind is missing; add more images")
    below = outside.cumsum(0) - outside / 2
    return float((inside * below).sum() / (inside.sum() * outside.sum()))
