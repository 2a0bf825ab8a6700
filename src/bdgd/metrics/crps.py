"""Continuous ranked probability score: the mean absolute error of a whole distribution, in the unit of the image.

CRPS(F, y) = integral of (F(t) - [t >= y])^2 dt = E|X - y| - E|X - X'| / 2 with X, X' independent of distribution F.
It is least for the true distribution, and unlike the log-likelihood it does not explode for a pixel that is far off.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics.likelihood import student_t_scale
from bdgd.metrics.streaming import PixelFunction


def gaussian_crps(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
    """std (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)) with z = (truth - mean) / std, elementwise; |truth - mean| for std 0."""
    std = std.clamp(min=1e-30)
    z = (truth - mean) / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def student_t_crps(degrees: float) -> PixelFunction:
    """CRPS of Student's t of that many degrees of freedom, above 2, with that mean and that standard deviation; |truth - mean| for std 0.

    At scale 1 and mean 0: z (2 F(z) - 1) + 2 f(z) (d + z^2) / (d - 1) - 2 sqrt(d) / (d - 1) B(1/2, d - 1/2) / B(d/2, 1/2)^2.
    """
    unit = student_t_scale(degrees)
    log_density_0 = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    spread = 2 * math.sqrt(degrees) / (degrees - 1) * math.exp(_log_beta(0.5, degrees - 0.5) - 2 * _log_beta(degrees / 2, 0.5))

    def score(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
        from scipy.special import stdtr

        scale = unit * std.clamp(min=1e-30)
        z = (truth - mean) / scale
        below = torch.as_tensor(stdtr(degrees, z.detach().cpu().numpy()), dtype=z.dtype, device=z.device)
        density = degrees * torch.exp(log_density_0 - (degrees - 1) / 2 * torch.log1p(z**2 / degrees))  # f(z) (d + z^2), finite for any z
        return scale * (z * (2 * below - 1) + 2 * density / (degrees - 1) - spread)

    return score


def draws_crps(draws: Tensor, truth: Tensor) -> Tensor:
    """CRPS of the distribution that draws (S, ...) came from, elementwise, as (...) of the truth.

    Mean of |x_s - truth| minus half the mean of |x_s - x_r| over the S (S - 1) pairs of different draws: that is unbiased, so
    that few and many draws can be compared. One draw gives the absolute error.
    """
    if draws.ndim != truth.ndim + 1 or draws.shape[1:] != truth.shape or not len(draws):
        raise InputError(f"draws must be (S, *{tuple(truth.shape)}), got {tuple(draws.shape)}; stack them along a first axis")
    number, distance = len(draws), (draws.double() - truth.double()).abs().mean(0)
    if number == 1:
        return distance
    # With the draws in order, the sum of |x_s - x_r| over s < r is that of (2 s - S - 1) x_(s), s from 1.
    weight = 2 * torch.arange(1, number + 1, device=draws.device, dtype=torch.float64) - number - 1
    pairs = torch.tensordot(weight, draws.double().sort(dim=0).values, dims=1)
    return distance - pairs / (number * (number - 1))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
