"""How well a map finds pixels: the area under the ROC curve, for each image exactly and over a whole set by histograms."""

from __future__ import annotations

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite
from bdgd.metrics.streaming import LogBins, chosen, inside_of, require_pixels
from bdgd.metrics.uncertainty import pixel_mask


def auroc(score: Tensor, mask: Tensor) -> Tensor:
    """(B,) probability that a pixel of the mask has a larger score than a pixel outside; where both are equal, half.

    score (B, 1, H, W), mask (H, W), (1, 1, H, W) or (B, 1, H, W), with pixels inside and outside in every image.
    The rank statistic U / (n_in n_out), U = (sum of the ranks inside) - n_in (n_in + 1) / 2, with mean ranks for ties.
    """
    require_batch(score, (1, *score.shape[2:]), "score")
    require_finite(score, "score")
    inside = pixel_mask(mask, score)
    if bool(inside.flatten(1).all(1).any()):
        raise InputError("mask is all of at least one image; a detection needs pixels outside it too")
    return torch.stack([_rank_statistic(s.flatten(), m.flatten()) for s, m in zip(score, inside, strict=True)])


def _rank_statistic(score: Tensor, inside: Tensor) -> Tensor:
    _, group, counts = score.unique(return_inverse=True, return_counts=True)  # group (P,): number of the distinct score, growing
    last = counts.cumsum(0).double()  # rank of the last of each group, from 1
    rank = (last - (counts - 1) / 2)[group]
    n_in, n_out = inside.sum().double(), (~inside).sum().double()
    return (rank[inside].sum() - n_in * (n_in + 1) / 2) / (n_in * n_out)


class Detection:
    """AUROC of a score that is nowhere negative for the pixels of a mask, over all pixels of a set together.

    Scores are sorted into logarithmic bins; two in the same bin count as equal.
    """

    def __init__(self, bins: LogBins | None = None):
        self.bins = bins or LogBins()
        self._inside, self._outside = torch.zeros(2, self.bins.count, dtype=torch.float64)

    def add(self, score: Tensor, target: Tensor, mask: Tensor | None = None) -> None:
        """score (B, 1, H, W), target the pixels to be found, mask the pixels that count."""
        values, wanted = chosen(mask, score, inside_of(target, score).to(score.dtype))
        index = self.bins.index(values)
        self._inside += self.bins.sums(index[wanted > 0])
        self._outside += self.bins.sums(index[wanted == 0])

    def merge(self, other: Detection) -> None:
        self.bins.require_same(other.bins)
        self._inside, self._outside = self._inside + other._inside, self._outside + other._outside

    def result(self) -> float:
        return auroc_of_histograms(self._inside, self._outside)


class ErrorDetection:
    """AUROC of the std for the pixels of largest absolute error, `worst` of all pixels of a set together.

    Which errors are the largest is known at the end only, so std and error are counted together, in a two-dimensional
    histogram. Pixels of the bin in which the limit lies are wanted in part, so that exactly the fraction `worst` is.
    """

    def __init__(self, worst: float = 0.05, bins: LogBins | None = None):
        if not 0 < worst < 1:
            raise InputError(f"worst must lie between 0 and 1, got {worst!r}; 0.05 is the worst twentieth of the pixels")
        self.worst, self.bins = worst, bins or LogBins(per_decade=100)
        self._counts = torch.zeros(self.bins.count * self.bins.count, dtype=torch.float64)

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        centre, spread, true = chosen(mask, mean, std, truth)
        joint = self.bins.index(spread) * self.bins.count + self.bins.index((true - centre).abs())
        self._counts.index_add_(0, joint, torch.ones(len(joint), dtype=torch.float64))

    def merge(self, other: ErrorDetection) -> None:
        self.bins.require_same(other.bins)
        self._counts = self._counts + other._counts

    def result(self) -> float:
        counts = self._counts.reshape(self.bins.count, self.bins.count)  # std x error
        errors = counts.sum(0)
        wanted = self.worst * require_pixels(float(errors.sum()))
        larger = errors.flip(0).cumsum(0).flip(0) - errors  # pixels in bins of larger error
        part = ((wanted - larger) / errors.clamp(min=1)).clamp(0, 1)  # of each error bin
        return auroc_of_histograms(counts @ part, counts @ (1 - part))


def auroc_of_histograms(inside: Tensor, outside: Tensor) -> float:
    """AUROC from the counts (N,) of both kinds of pixel in bins of growing score."""
    if not (float(inside.sum()) and float(outside.sum())):
        raise InputError("a detection needs pixels inside and outside of what is to be found, but one kind is missing; add more images")
    below = outside.cumsum(0) - outside / 2
    return float((inside * below).sum() / (inside.sum() * outside.sum()))
