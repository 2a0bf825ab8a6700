"""A Gaussian scale mixture per pixel: the heavy-tailed predictive of the truth around the posterior mean, with a finite variance.

    p(x | mean) = sum_m w_m N(x; mean, v_m),    sum_m w_m = 1

Most pixels are almost exact and a few are far off, which no single Gaussian says. Epistemic variance is added to every v_m:
that is the exact convolution with a Gaussian, so the variances of the two parts add up. One component is a plain Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Halvings that solve for a half width: 60 shrink an interval of a factor of 1e4 to less than a float64's rounding.
_HALVINGS = 60
#: The logarithm of a probability below which a float64 runs out of digits.
FAR = -600.0


@dataclass(frozen=True, eq=False)
class ScaleMixture:
    """log_weights and variances (B, M, H, W), M components per pixel; the weights of a pixel sum to 1."""

    log_weights: Tensor
    variances: Tensor

    @classmethod
    def gaussian(cls, variance: Tensor) -> ScaleMixture:
        """One component with the variance (B, 1, H, W)."""
        return cls(torch.zeros_like(variance), variance)

    def plus(self, variance: Tensor) -> ScaleMixture:
        """The mixture blurred by an independent Gaussian of that variance (B, 1, H, W)."""
        return ScaleMixture(self.log_weights, self.variances + variance)

    def variance(self) -> Tensor:
        """sum_m w_m v_m: (B, 1, H, W)."""
        return (self.log_weights.exp() * self.variances).sum(1, keepdim=True)

    def log_density(self, error: Tensor) -> Tensor:
        """log p of errors (B, 1, H, W), per pixel and in nats."""
        gaussian = -0.5 * (error**2 / self.variances + self.variances.log() + math.log(2 * math.pi))
        return torch.logsumexp(self.log_weights + gaussian, 1, keepdim=True)

    def z(self, error: Tensor) -> Tensor:
        """The errors (B, 1, H, W) as Gaussian standard deviations, z >= 0, in float64: P(|e| > |error|) = P(|n| > z), n standard normal.

        Where the mixture is right, z is half-normal in every pixel, whatever its scale and shape; for one component z = |error| / std.
        """
        size = error.double().abs()
        if self.variances.shape[1] == 1:
            return size / self.variances.double().sqrt()
        return _gaussian_z(self._log_tail(size))

    def above(self, gap: Tensor) -> Tensor:
        """P(e > gap) per pixel, for gaps (B, 1, H, W) of either sign."""
        half = self._log_tail(gap.double().abs()).exp() / 2
        return torch.where(gap > 0, half, 1 - half).to(gap.dtype)

    def half_width(self, z: Tensor) -> Tensor:
        """The inverse of `z`: the half width (B, 1, H, W) of the central interval that reaches to z, by bisection."""
        z = z.double().expand_as(self.variances[:, :1])
        std = self.variances.double().sqrt()
        if std.shape[1] == 1:
            return (z * std).to(self.variances.dtype)
        wanted = math.log(2) + torch.special.log_ndtr(-z)
        # Every component alone brackets the answer; log scale, since the components may lie decades apart.
        low, high = (std.amin(1, keepdim=True) * z).clamp(min=1e-30).log(), (std.amax(1, keepdim=True) * z).clamp(min=1e-30).log()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            outside = self._log_tail(middle.exp()) > wanted
            low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
        return high.exp().where(z > 0, 0.0).to(self.variances.dtype)

    def _log_tail(self, size: Tensor) -> Tensor:
        """log P(|e| > size) in float64: P itself would be 0 beyond 38 standard deviations, and all larger errors the same."""
        sides = math.log(2) + torch.special.log_ndtr(-size / self.variances.double().sqrt())
        return torch.logsumexp(self.log_weights.double() + sides, 1, keepdim=True)


def _gaussian_z(log_tail: Tensor) -> Tensor:
    """z >= 0 with log P(|n| > z) = log_tail, n standard normal: by the inverse of Phi where that has digits, beyond by Newton's method."""
    log_tail = log_tail.clamp(max=0.0)
    near = -torch.special.ndtri(log_tail.clamp(min=FAR).exp() / 2)
    z = (-2 * log_tail.clamp(max=FAR)).sqrt()
    for _ in range(4):  # the tail is nearly exp(-z^2 / 2), so the first guess is good to a few percent and each step doubles the digits
        log_below = torch.special.log_ndtr(-z)
        slope = torch.exp(-0.5 * (z**2 + math.log(2 * math.pi)) - log_below)  # -d/dz of log_below, about z
        z = z + (math.log(2) + log_below - log_tail) / slope
    return torch.where(log_tail > FAR, near, z)
