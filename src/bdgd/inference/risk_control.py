"""Conformal risk control with the image as the unit: thresholds with a finite-sample guarantee, from histograms alone.

Pixels of one image are not exchangeable, images are. The loss of image i at threshold q is the share of its pixels with a score
above q. For n exchangeable calibration images and one new one,

    q = the smallest with  n / (n + 1) * mean_i loss_i(q) + 1 / (n + 1) <= 1 - level   =>   E[loss of the new image] <= 1 - level

(Angelopoulos, Bates, Fisch, Lei, Schuster 2022). The mean over images of the losses is all that it needs, so scores are never
kept: only the mean over images of each image's histogram.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from bdgd.models.calibration import Row, Table

#: The levels of a calibration: every percent, and 99.5 %.
LEVELS: Row = (*(percent / 100 for percent in range(1, 100)), 0.995)

#: Upper edges of the cells for z, about 0.7 % apart; a score counts as its cell's upper edge, so that rounding never favours us.
Z_EDGES = torch.logspace(-3, 4, 2284, dtype=torch.float64)
#: Edges of the cells for the predicted standard deviation, 5 % apart; strata are made of whole cells.
STD_EDGES = torch.logspace(-5, 1, 281, dtype=torch.float64)
#: Candidates for the factor by which all strata's thresholds are multiplied together.
_FACTORS = torch.logspace(-1.2, 1.2, 2401, dtype=torch.float64)

_ROUNDING = 1e-9  # 0.1 * 10 - 1 is not 0 in floating point


class ScoreHistogram:
    """The mean over images of the share of each image's pixels in every cell of (predicted std, z): (std cells, z cells), streamed."""

    def __init__(self) -> None:
        self.images = 0
        self._sum = torch.zeros(len(STD_EDGES) + 1, len(Z_EDGES) + 1, dtype=torch.float64)

    def add(self, std: Tensor, z: Tensor, inside: Tensor) -> None:
        """Pixels (B, 1, H, W) where `inside` is true; an image without any has no loss."""
        self.images += len(z)
        count = inside.flatten(1).sum(1).clamp(min=1)
        weight = inside.double() / count[:, None, None, None]
        row = torch.bucketize(std.double(), STD_EDGES.to(std.device))
        column = torch.bucketize(z.double(), Z_EDGES.to(z.device))  # cell j holds edge[j - 1] < z <= edge[j]
        cell = (row * self._sum.shape[1] + column).flatten()
        self._sum += torch.bincount(cell.cpu(), weight.flatten().cpu(), self._sum.numel()).reshape(self._sum.shape)

    def mean(self) -> Tensor:
        return self._sum / max(self.images, 1)


def allowed_loss(level: float, images: int) -> float:
    """The largest mean loss over the calibration images that the guarantee lets pass; below 0 where there are too few images."""
    return ((1 - level) * (images + 1) - 1) / images


def stratified_thresholds(shape: ScoreHistogram, guarantee: ScoreHistogram, levels: Row, strata: int) -> tuple[Row, Row, Table]:
    """(levels, std_edges, z): the levels that can be held, the edges of the strata, and z (levels, strata).

    On the images of `shape` each stratum of predicted std gets the quantiles of its own scores, so that small and large error
    bars are right, each. On the images of `guarantee`, which no quantile has seen, one factor per level is then chosen by risk control.
    """
    cuts = _cuts(shape.mean().sum(1), strata)
    quantiles = torch.stack([_quantiles(row, levels) for row in _merged(shape.mean(), cuts)], 1)  # (L, strata)
    below = torch.nn.functional.pad(_merged(guarantee.mean(), cuts)[:, :-1].cumsum(1), (1, 0))  # (strata, cells): share below each edge
    held, rows = [], []
    for level, row in zip(levels, quantiles, strict=True):
        reached = torch.bucketize(_FACTORS[:, None] * row, Z_EDGES, right=True)  # (factors, strata) cells that are covered whole
        loss = float(guarantee.mean().sum()) - below.gather(1, reached.T).sum(0)  # (factors,), falling
        good = (loss <= allowed_loss(level, guarantee.images) + _ROUNDING).nonzero()
        if len(good) == 0:
            break  # higher levels need more images still
        held.append(level)
        rows.append(float(_FACTORS[good[0]]) * row)
    rising = torch.stack(rows).cummax(0).values if rows else torch.zeros(0, len(cuts) + 1)  # wider keeps the guarantee
    return tuple(held), tuple(STD_EDGES[cuts].tolist()), tuple(tuple(row) for row in rising.tolist())


def _cuts(shares: Tensor, strata: int) -> Tensor:
    """Numbers of the std edges that cut the pixels into strata of about equal share, each with some of them."""
    wanted = shares.sum() * torch.arange(1, strata, dtype=torch.float64) / strata
    cuts = torch.searchsorted(shares.cumsum(0), wanted).clamp(max=len(STD_EDGES) - 1).unique()
    return cuts[shares.sum() - shares.cumsum(0)[cuts] > 1e-12]  # nothing lies above a cut where many share the largest std


def _merged(table: Tensor, cuts: Tensor) -> Tensor:
    """Rows of (std cells, n) summed to strata: (len(cuts) + 1, n). Cell c lies below edge c."""
    ends = [0, *(int(cut) + 1 for cut in cuts), len(table)]
    return torch.stack([table[a:b].sum(0) for a, b in itertools.pairwise(ends)])


def _quantiles(row: Tensor, levels: Row) -> Tensor:
    """The smallest z edge with at least that share of the row below it, per level; the last edge where there is none."""
    share = row.cumsum(0) / row.sum().clamp(min=1e-300)
    cell = torch.searchsorted(share, torch.tensor(levels, dtype=torch.float64) - 1e-12)
    return Z_EDGES[cell.clamp(max=len(Z_EDGES) - 1)]


def threshold_per_level(scores: Tensor, levels: Row) -> tuple[Row, Row]:
    """(levels that can be held, thresholds) from scores (images, items): the loss of an image is the share of its items above."""
    images = len(scores)
    ordered = scores.double().flatten().sort().values
    held, thresholds = [], []
    for level in levels:
        if (allowed := allowed_loss(level, images)) < -_ROUNDING:
            break
        most = int((allowed + _ROUNDING) * len(ordered))  # items that may lie above
        held.append(level)
        thresholds.append(float(ordered[len(ordered) - 1 - most]))
    return tuple(held), tuple(thresholds)
