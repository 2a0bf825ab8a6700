"""Whether an image explains its measurement: the residual A x - y beside the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bdgd.data import Correction, GaussianNoise, Noise, PoissonNoise
from bdgd.operators import LinearOperator

_QUARTER = NormalDist().inv_cdf(0.625)  # a quarter of all |n|, n standard normal, lies below it


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
    known = noise_level(noise, predicted)
    return Residual(_rms(predicted - y), estimated_noise(y) if known is None else known, _rms(y), known is None)


def noise_level(noise: Noise | None, clean: Tensor) -> float | None:
    """Standard deviation that the noise has on a clean sinogram, root mean square over its rays; None for a noise not known here.

    Photon counts N have the variance N, so -log(N / photons) / attenuation has 1 / (N attenuation^2).
    """
    if isinstance(noise, GaussianNoise):
        return noise.relative * float(clean.abs().mean())
    if isinstance(noise, PoissonNoise):
        return float((torch.exp(noise.attenuation * clean) / noise.photons).mean().sqrt() / noise.attenuation)
    return None


def estimated_noise(y: Tensor) -> float:
    """Standard deviation of independent noise in y (..., D), from the third differences of neighbouring detectors; NaN for D < 4.

    They remove what is smooth along the detector, and a low quantile leaves out most edges: a quarter of the |d| lies below
    0.3186 sigma sqrt(20). What is rough in every ray counts as noise: up to twice too much where pixels are coarse and noise is 1 %.
    """
    if y.shape[-1] < 4:
        return math.nan
    differences = torch.diff(y.double(), n=3).abs().flatten()
    differences = differences[differences > 0]  # values that were repeated beyond the end of a detector were not measured
    if len(differences) == 0:
        return math.nan
    quarter = differences.kthvalue(max(len(differences) // 4, 1)).values
    return float(quarter / (_QUARTER * math.sqrt(20)))


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
