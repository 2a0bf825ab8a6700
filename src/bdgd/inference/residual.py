"""Whether an image explains its measurement: the residual A x - y beside the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import Correction, GaussianNoise, Noise, PoissonNoise, noise_from_dict
from bdgd.data.estimates import noise_of_one_size
from bdgd.operators import LinearOperator


@dataclass(frozen=True)
class Residual:
    """Root mean squares over all rays, in the sinogram's unit: of A x - y, of the noise, and of y."""

    rms: float
    noise: float
    signal: float
    estimated: bool  # the noise comes from the sinogram itself, not from its file, and is rather too large

    @property
    def ratio(self) -> float:
        """1 where what the image leaves unexplained is as large as the noise; NaN where the noise is not known."""
        return self.rms / self.noise if self.noise > 0 else math.nan

    def verdict(self) -> str:
        """What the ratio means, in a sentence."""
        if not math.isfinite(self.ratio):
            return "The noise of this scan is not known, so the residual has nothing to be compared with."
        if self.estimated and self.ratio < 1.15:
            return "So far the image explains the measurement to within its noise."
        if self.ratio < 0.9:
            return "The image follows the measurement more closely than the noise allows, so it carries some of the noise."
        if self.ratio < 1.15:
            return "The image explains the measurement to within its noise."
        if self.ratio < 2:
            return "The image leaves a little more than the noise unexplained."
        return "The image leaves much more than the noise unexplained: object or scanner are not what the model assumes."


@torch.no_grad()
def residual(A: LinearOperator, x: Tensor, y: Tensor, noise: Noise | None, correction: Correction | None = None) -> Residual:
    """Of one image x (1, 1, H, W) against its sinogram y (1, 1, V, D).

    correction: what was done to y. Noise is what was measured before it, so both are compared there; correcting would stretch it.
    """
    predicted, y = A(x.to(y)).double(), y.double()
    if correction is not None:
        predicted, y = correction.undone(predicted), correction.undone(y)
    std = noise_std(noise, predicted)
    return Residual(_rms(predicted - y), noise_of_one_size(y) if std is None else _rms(std), _rms(y), std is None)


def noise_std(noise: Noise | None, y: Tensor) -> Tensor | None:
    """The standard deviation of the noise in each ray of sinograms y (B, ...), broadcastable to them; None where its law is not known.

    y: clean, or as measured. Photon counts N have the variance N, so -log(N / photons) / attenuation has 1 / (N attenuation^2).
    """
    law = known_noise(noise.to_dict()) if noise is not None else None
    if isinstance(law, GaussianNoise):
        # Images are not negative, so the mean of the clean |y| is that of the clean y, which noise leaves unbiased.
        return law.relative * y.mean(tuple(range(1, y.ndim)), keepdim=True).abs()
    if isinstance(law, PoissonNoise):
        return torch.exp(0.5 * law.attenuation * y) / (law.attenuation * law.photons**0.5)
    return None


def known_noise(values: dict[str, Any] | None) -> GaussianNoise | PoissonNoise | None:
    """The noise that `to_dict` described; None for a noise of somebody's own, whose law is not known here, and where none was stated."""
    try:
        return noise_from_dict(values) if values is not None else None
    except InputError:
        return None


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
