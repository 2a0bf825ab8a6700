"""The noise of a measured scan, from the scan alone.

An object is smooth along the detector almost everywhere and noise is not, so differences of neighbouring detectors show the noise.
Edges, and the staircase of a pixel image, are rough too: a low quantile leaves out most edges, and rays of about equal value are looked
at together, since rays through air are smooth whatever the object.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch
from bdgd.data.noise import GaussianNoise, PoissonNoise

_ORDER = 3  # of the differences; their variance is that of the noise times binomial(2 n, n) = 20
_GROUPS, _ENOUGH = 6, 300  # groups of equal value, and rays that a group needs
_RISE, _SPAN = 0.5, 0.7  # photon noise rises as exp(y / 2): at least so much of that rise, over a range of y at least so wide


def estimate_noise(sinograms: Tensor) -> GaussianNoise | PoissonNoise:
    """The noise in sinograms (B, 1, V, D), taken as independent from ray to ray.

    Photon counting, where the noise rises with the line integral y as exp(y / 2) does: then 1 / sigma^2 = photons * exp(-y). Else
    normal noise of one size, relative to the mean of |y|. Noise that a detector spreads over its neighbours is underestimated;
    an object that is rough in every ray is taken for noise.
    """
    require_batch(sinograms, sinograms.shape[1:], "the sinogram")
    if sinograms.shape[-1] <= _ORDER:
        raise InputError(f"the noise cannot be estimated from {sinograms.shape[-1]} detectors; give it with --noise")
    y = sinograms.double()
    level, sigma = _by_level(y)
    rise = _slope(level, sigma)
    if rise > _RISE and float(level[-1] - level[0]) > _SPAN:
        photons = (torch.exp(level) / sigma.clamp_min(1e-12) ** 2).quantile(0.75)  # what is rough makes sigma larger, photons fewer
        return PoissonNoise(float(f"{float(photons):.3g}"))
    relative = float(sigma.min() / y.abs().mean().clamp_min(1e-300))
    return GaussianNoise(float(f"{relative:.3g}"))


def _by_level(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean value and noise of groups of rays with about the same value, in rising order: two tensors (groups,)."""
    rough = torch.diff(y, n=_ORDER).flatten().abs()
    value = y.unfold(-1, _ORDER + 1, 1).mean(-1).flatten()
    groups = max(1, min(_GROUPS, len(value) // _ENOUGH))
    parts = value.argsort().tensor_split(groups)
    return torch.stack([value[part].mean() for part in parts]), torch.stack([_sigma(rough[part]) for part in parts])


def _sigma(rough: Tensor, share: float = 0.25) -> Tensor:
    """Standard deviation of the noise from |differences|, by their quantile of that share."""
    quantile = rough.kthvalue(max(int(share * len(rough)), 1)).values
    return quantile / (NormalDist().inv_cdf(0.5 + share / 2) * math.sqrt(math.comb(2 * _ORDER, _ORDER)))


def _slope(level: Tensor, sigma: Tensor) -> float:
    """By how much log sigma rises with y / 2; 1 for photon noise, 0 for noise of one size."""
    if len(level) < 3 or float(level[-1] - level[0]) <= 0 or float(sigma.min()) <= 0:
        return 0.0
    x, z = level / 2, sigma.log()
    return float(((x - x.mean()) * (z - z.mean())).sum() / ((x - x.mean()) ** 2).sum())
