"""The gradient of the data misfit, the physics that every block sees; one small class per noise model.

Inside, the operator is scaled to norm 1 and the gradient multiplied by an explicit `scale`, so that nothing depends on the
unit of length or on the number of views. The scale matters: a cascade fed with the plain unit-norm gradient stalls.
Inside autocast both keep their precision, whatever the operator does there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_positive
from bdgd.operators import LinearOperator, operator_norm


@dataclass(frozen=True)
class GaussianMisfit:
    """D(y, A x) = |A x - y|^2 / 2 for Gaussian noise."""

    A: LinearOperator
    scale: float
    norm: float

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """scale * A1'(A1 x - y1) with A1 = A / ||A||, y1 = y / ||A||: (B, *domain_shape)."""
        return self.gradient_of(self.residual(x, y))

    def gradient_of(self, residual: Tensor) -> Tensor:
        """The gradient where the residual (B, *range_shape) is known already."""
        with torch.autocast(residual.device.type, enabled=False):
            return (self.scale / self.norm**2) * self.A.T(residual)

    def residual(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.A(x) - y

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "gaussian", "scale": self.scale}


@dataclass(frozen=True)
class PoissonMisfit(GaussianMisfit):
    """D = sum of expected - counts * log(expected) for photon counts with mean photons * exp(-attenuation * A x).

    Divided by photons * attenuation^2 its gradient is A'((exp(-attenuation y) - exp(-attenuation A x)) / attenuation):
    that of the Gaussian misfit for weak attenuation, with less weight on rays that few photons survive.
    """

    attenuation: float = 1.0

    def residual(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return (torch.exp(-self.attenuation * y) - torch.exp(-self.attenuation * self.A(x))) / self.attenuation

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "poisson", "scale": self.scale, "attenuation": self.attenuation}


Misfit = GaussianMisfit


def make_misfit(A: LinearOperator, kind: str = "gaussian", scale: float = 80.0, attenuation: float = 1.0) -> Misfit:
    """The misfit of that kind on `A`; ||A|| comes from power iteration."""
    norm = require_positive(operator_norm(A), "the norm of the operator")
    scale = require_positive(scale, "gradient_scale")
    if kind == "gaussian":
        return GaussianMisfit(A, scale, norm)
    if kind == "poisson":
        return PoissonMisfit(A, scale, norm, require_positive(attenuation, "attenuation"))
    raise InputError(f"misfit must be 'gaussian' or 'poisson', got {kind!r}")
