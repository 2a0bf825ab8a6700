"""Negative log-likelihood of the truth, in nats: of a pixel by itself, and of patches of pixels that vary together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.metrics.streaming import Average, PixelFunction, PixelMean, inside_of, require_alike


def gaussian_nll(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
    """-log N(truth; mean, std^2), elementwise."""
    return 0.5 * ((truth - mean) / std) ** 2 + std.log() + 0.5 * math.log(2 * math.pi)


def student_t_nll(degrees: float) -> PixelFunction:
    """-log of Student's t of that many degrees of freedom, above 2, with that mean and that standard deviation."""
    scale = student_t_scale(degrees)
    constant = math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2) + 0.5 * math.log(degrees * math.pi)

    def score(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
        z = (truth - mean) / (scale * std)
        return constant + (scale * std).log() + (degrees + 1) / 2 * torch.log1p(z**2 / degrees)

    return score


def student_t_scale(degrees: float) -> float:
    """The scale at which Student's t has standard deviation 1: sqrt((degrees - 2) / degrees)."""
    if not degrees > 2:
        raise InputError(f"Student's t has a standard deviation above 2 degrees of freedom only, got {degrees!r}")
    return math.sqrt((degrees - 2) / degrees)


class PatchCovariance:
    """Mean and covariance of the draws within patches of side x side pixels, one draw at a time (Welford's update).

    An image (B, 1, H, W) is cut into N = (H // side) (W // side) patches of n = side^2 pixels; what is left over is not used.
    """

    def __init__(self, side: int):
        self.side, self.count = require_count(side, "side"), 0
        self._mean, self._products = torch.empty(0), torch.empty(0)

    def add(self, draw: Tensor) -> None:
        values = patches(draw, self.side).double()  # (B, N, n)
        self.count += 1
        if self.count == 1:
            self._mean, self._products = values, values.new_zeros(*values.shape, values.shape[-1])
            return
        step = values - self._mean
        self._mean = self._mean + step / self.count
        self._products += step[..., :, None] * (values - self._mean)[..., None, :]

    def result(self) -> Tensor:
        """(B, N, n, n), S - 1 in the denominator; 0 for one draw."""
        if not self.count:
            raise InputError("no draw has been added, so there is no covariance; add every draw of the posterior")
        return self._products / max(self.count - 1, 1)


class PatchLikelihood:
    """-log N(truth; mean, C + diag(aleatoric)) of patches, C the covariance of the draws, in nats per pixel.

    The draws give C the rank S - 1, the diagonal makes it definite. With side 1 it is the pixels' own likelihood.
    """

    def __init__(self, side: int, *, least_std: float = 0.0):
        self.side, self.least_std, self._mean = require_count(side, "side"), least_std, PixelMean()

    def add(self, mean: Tensor, covariance: Tensor, aleatoric: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        """mean, aleatoric, truth (B, 1, H, W), covariance of the draws (B, N, n, n); only patches that lie in the mask as a whole count."""
        require_alike(mean, aleatoric, truth)
        inside = patches(inside_of(mask, mean), self.side).all(-1)  # (B, N)
        error = patches(truth.double() - mean.double(), self.side)[inside]  # (M, n)
        variance = patches(aleatoric.double(), self.side)[inside].clamp(min=self.least_std**2)
        values = torch.zeros(inside.shape, dtype=torch.float64, device=inside.device)
        values[inside] = _gaussian(error, covariance[inside] + torch.diag_embed(variance)) / self.side**2
        self._mean.add(values[:, None, None], inside[:, None, None])

    def merge(self, other: PatchLikelihood) -> None:
        if other.side != self.side:
            raise InputError(f"only likelihoods of equal patches can be merged, got sides {self.side} and {other.side}")
        self._mean.merge(other._mean)

    @property
    def patches(self) -> int:
        """How many have been counted so far."""
        return self._mean.pixels

    def result(self) -> Average:
        """`pixels` counts patches here."""
        return self._mean.result()


def patches(image: Tensor, side: int) -> Tensor:
    """(B, N, side^2): the image (B, 1, H, W) cut into patches, row by row."""
    high, wide = image.shape[2] // side, image.shape[3] // side
    if not high or not wide:
        raise InputError(
            f"patches of {side} x {side} pixels do not fit into images of {image.shape[2]} x {image.shape[3]}; take smaller ones"
        )
    cut = image[:, 0, : high * side, : wide * side].unflatten(1, (high, side)).unflatten(3, (wide, side))  # (B, high, side, wide, side)
    return cut.transpose(2, 3).reshape(len(image), high * wide, side * side)


def _gaussian(error: Tensor, covariance: Tensor) -> Tensor:
    """(M,) -log N(error; 0, covariance) from (M, n) and (M, n, n), by Cholesky."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise InputError("the covariance of a patch is singular: its aleatoric variance is 0; give a least_std above 0")
    white = torch.linalg.solve_triangular(factor, error[..., None], upper=False)[..., 0]
    log_root = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * white.square().sum(-1) + log_root + 0.5 * error.shape[-1] * math.log(2 * math.pi)
