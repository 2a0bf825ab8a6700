"""How well a map of scores finds a region: one value per image."""

from __future__ import annotations

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite
from bdgd.metrics.uncertainty import pixel_mask


def auroc(score: Tensor, mask: Tensor, among: Tensor | None = None) -> Tensor:
    """(B,) area under the ROC curve: the chance that a pixel of the mask has a higher score than one outside; ties count half.

    score (B, 1, H, W). mask, true where there is something to be found, and `among`, the pixels that count (all without it),
    are boolean, (H, W), (1, 1, H, W) or (B, 1, H, W). 1 is a perfect detector, 1/2 chance, below 1/2 the wrong way round.

    With the n inside scores at the ranks r_i among all, equal scores sharing their mean rank, and m scores outside:
    (sum r_i - n (n + 1) / 2) / (n m), the statistic of Mann and Whitney.
    """
    if isinstance(score, Tensor) and score.ndim != 4:
        raise InputError(f"score must have shape (B, 1, H, W), got {tuple(score.shape)}; add axes with [None]")
    require_batch(score, score.shape[1:] if isinstance(score, Tensor) else (), "score")
    require_finite(score, "score")
    inside = pixel_mask(mask, score)
    counted = torch.ones_like(inside) if among is None else pixel_mask(among, score)
    return torch.stack([_auroc(*image) for image in zip(score, inside, counted, strict=True)])


def _auroc(score: Tensor, inside: Tensor, counted: Tensor) -> Tensor:
    """The area for the counted pixels of one image."""
    score, inside = score[counted], inside[counted]
    n, m = int(inside.sum()), int((~inside).sum())
    if n == 0 or m == 0:
        raise InputError(f"a region is found among others: {n} pixels that count lie in the mask and {m} outside; both need at least one")
    _, group, sizes = score.unique(return_inverse=True, return_counts=True)  # sorted
    sizes = sizes.double()
    rank = sizes.cumsum(0) - (sizes - 1) / 2  # the mean rank, counted from 1, of each distinct score
    return (rank[group][inside].sum() - n * (n + 1) / 2) / (n * m)
