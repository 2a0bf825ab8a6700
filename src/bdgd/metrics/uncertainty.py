"""How well error bars agree with errors: log-likelihood, coverage, sparsification. One value per image.

The posterior may be any object with `mean` and `std` (B, 1, H, W) and `interval(level)`.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite


class HasPosterior(Protocol):
    @property
    def mean(self) -> Tensor: ...
    @property
    def std(self) -> Tensor: ...
    def interval(self, level: float) -> tuple[Tensor, Tensor]: ...


def pixel_mask(mask: Tensor, like: Tensor, *, allow_empty: bool = False) -> Tensor:
    """`mask` (H, W), (1, 1, H, W) or (B, 1, H, W) as (B, 1, H, W) for the images `like`.

    Raise unless it is boolean and, without `allow_empty`, has a pixel in every image.
    """
    expected = f"mask must be a boolean tensor of shape {tuple(like.shape[2:])}, {(1, *like.shape[1:])} or {tuple(like.shape)}"
    if not isinstance(mask, Tensor):
        raise InputError(f"{expected}, got {type(mask).__name__}; convert it with torch.as_tensor")
    shapes = (like.shape[2:], (1, *like.shape[1:]), like.shape)
    if mask.dtype != torch.bool or mask.shape not in shapes:
        raise InputError(f"{expected}, got {mask.dtype} of shape {tuple(mask.shape)}")
    inside = mask.to(like.device).expand_as(like)
    if not allow_empty and not bool(inside.flatten(1).any(1).all()):
        raise InputError("mask is empty for at least one image; it needs at least one pixel in each")
    return inside


def nll(posterior: HasPosterior, truth: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B,) negative log-likelihood per pixel of the truth under N(mean, std^2), over the pixels of `mask` (all without one).

    A std of 0 has no density, whatever the truth, and is refused in the pixels that count.
    """
    std = _std(posterior, truth).double()
    none = (std <= 0) if mask is None else (std <= 0) & pixel_mask(mask, std)
    if bool(none.any()):
        raise InputError(f"std must be above 0 for a likelihood, it is not in {int(none.sum())} pixels; leave them out with a mask")
    z = (truth.double() - posterior.mean.double()) / std
    return _mean_over(0.5 * z**2 + std.log() + 0.5 * math.log(2 * math.pi), mask)


def coverage(posterior: HasPosterior, truth: Tensor, level: float = 0.95, mask: Tensor | None = None) -> Tensor:
    """(B,) the part of the pixels whose truth lies in `posterior.interval(level)`; well calibrated where it is `level`."""
    _require_pair(posterior.mean, truth)
    lower, upper = posterior.interval(level)
    if bool((lower.isnan() | upper.isnan()).any()):
        raise InputError("the interval has NaN in it, which covers nothing; a model has none before it is trained")
    return _mean_over(((lower <= truth) & (truth <= upper)).double(), mask)


def ause(posterior: HasPosterior, truth: Tensor) -> Tensor:
    """(B,) area under the sparsification error: does removing the most uncertain pixels remove the largest errors?

    Mean over f = 0, 5, ... 90 % of [RMSE without the fraction f of largest std] - [RMSE without the fraction f of largest
    error], divided by the RMSE of all pixels. 0 is a perfect order, also of an image without error. Pixels of the same std have no
    order: each counts as their mean.
    """
    std = _std(posterior, truth)
    squares = ((truth.double() - posterior.mean.double()) ** 2).flatten(1)  # (B, P)
    by_std = _ordered(squares, std.flatten(1))
    by_error = squares.sort(dim=1).values
    kept = [max(1, round(squares.shape[1] * (1 - f / 100))) for f in range(0, 95, 5)]
    differences = [by_std[:, :n].mean(1).sqrt() - by_error[:, :n].mean(1).sqrt() for n in kept]
    rmse = squares.mean(1).sqrt()
    return torch.where(rmse > 0, torch.stack(differences).mean(0) / rmse, 0.0)


def _ordered(values: Tensor, key: Tensor) -> Tensor:
    """The values (B, P) by growing key; where keys are equal, the mean of their values."""
    key, order = key.sort(dim=1)
    group = torch.nn.functional.pad((key[:, 1:] != key[:, :-1]).long().cumsum(1), (1, 0))  # (B, P) number of the distinct key
    sums, counts = torch.zeros(2, *values.shape, dtype=values.dtype, device=values.device)
    sums.scatter_add_(1, group, values.gather(1, order))
    counts.scatter_add_(1, group, torch.ones_like(values))
    return (sums / counts).gather(1, group)


def _mean_over(values: Tensor, mask: Tensor | None) -> Tensor:
    """(B,) the mean over each image's pixels, or over those of its mask."""
    if mask is None:
        return values.flatten(1).mean(1)
    inside = pixel_mask(mask, values)
    return values.where(inside, 0).flatten(1).sum(1) / inside.flatten(1).sum(1)


def _std(posterior: HasPosterior, truth: Tensor) -> Tensor:
    """The standard deviation of every pixel (B, 1, H, W), also where one stands for several; truth and posterior belong together."""
    mean, std = posterior.mean, posterior.std
    _require_pair(mean, truth)
    require_finite(mean, "the mean")
    require_finite(std, "std")
    try:
        return std.expand_as(mean)
    except RuntimeError:
        raise InputError(f"std must have the shape of the mean, {tuple(mean.shape)}, got {tuple(std.shape)}") from None


def _require_pair(mean: Tensor, truth: Tensor) -> None:
    require_batch(truth, mean.shape[1:], "the truth")
    if len(truth) != len(mean):
        raise InputError(f"posterior and truth must be pairs, got {len(mean)} and {len(truth)} images; repeat one of them with .expand")
    if truth.device != mean.device:
        raise InputError(f"the posterior is on {mean.device}, the truth on {truth.device}; move one with .to")
    require_finite(truth, "the truth")
