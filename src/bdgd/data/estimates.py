"""The noise of a measured scan, from the scan alone.

    estimate_noise     the law: photon counting or normal noise, with its parameter; what scans are simulated with
    noise_on           the same on the detectors of another geometry
    noise_of_one_size  one standard deviation for all rays, whatever the law; what a residual is compared with
    photon_noise       the standard deviation of a ray through air, where it is known that photons were counted

An object is smooth along the detector almost everywhere and noise is not, so differences of neighbouring detectors show the noise.
Edges, and the staircase of a pixel image, are rough too: a low quantile leaves out most edges, and rays of about equal value are looked
at together, since rays through air are smooth whatever the object. In all of them sigma comes from third differences d:
a quarter of the |d| lies below 0.3186 sigma sqrt(20), whatever the edges do among the others. The alarm's `residual_noise` is another
quantity: the noise in what an image leaves of its scan, where hardly an object is left to mislead it.
"""

from __future__ import annotations

import math
from statistics import NormalDist, median

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite
from bdgd.data.noise import GaussianNoise, PoissonNoise
from bdgd.data.scans import Scans
from bdgd.operators import Geometry

_ORDER = 3  # of the differences; their variance is that of the noise times binomial(2 n, n) = 20
_SHARE = 0.25  # of the |differences| that lies below the quantile that is taken
_BELOW = NormalDist().inv_cdf(0.5 + _SHARE / 2)  # such a share of all |n|, n standard normal, lies below it
_FINE = 256  # detectors: on fewer, wider ones an object is rough itself
_GROUPS, _ENOUGH = 6, 300  # groups of equal value, and rays that a group needs
_ENOUGH_ALONE = 4 * _ENOUGH  # rays of an image that is judged by itself: groups for a rise, and the ends of views
_RISE, _SPAN = 0.5, 0.7  # photon noise rises as exp(y / 2): at least so much of that rise, over a range of y at least so wide


def estimate_noise(sinograms: Tensor) -> GaussianNoise | PoissonNoise:
    """The noise in sinograms (B, 1, V, D), taken as independent from ray to ray.

    Photon counting, where the noise rises with the line integral y as exp(y / 2) does: then 1 / sigma^2 = photons * exp(-y). Else
    normal noise of one size, relative to the mean of |y|. Noise that a detector spreads over its neighbours is underestimated;
    an object that is rough in every ray is taken for noise. Each image is judged by itself, and of several the median counts, where
    they have enough rays for that; those that are empty do not.
    """
    require_batch(sinograms, (1, *sinograms.shape[-2:]), "the sinogram")
    require_finite(sinograms, "the sinogram")
    if sinograms.shape[-1] <= _ORDER:
        raise InputError(f"the noise cannot be estimated from {sinograms.shape[-1]} detectors; give it with --noise")
    y = sinograms.double()
    full = y[[bool((image != image.flatten()[0]).any()) for image in y]]
    y = full if len(full) else y
    found = [_noise_of(image) for image in y] if y[0].numel() >= _ENOUGH_ALONE else [_noise_of(y)]
    photons = [noise.photons for noise in found if isinstance(noise, PoissonNoise)]
    if 2 * len(photons) > len(found):
        return PoissonNoise(three_digits(median(photons)))
    return GaussianNoise(three_digits(median(noise.relative for noise in found if isinstance(noise, GaussianNoise))))


def _noise_of(y: Tensor) -> GaussianNoise | PoissonNoise:
    """`estimate_noise` of one image (1, V, D), or of several together."""
    level, sigma = _by_level(y)
    rise = _slope(level, sigma)
    if rise > _RISE and float(level[-1] - level[0]) > _SPAN:
        photons = (torch.exp(level) / sigma.clamp_min(1e-12) ** 2).quantile(0.75)  # what is rough makes sigma larger, photons fewer
        return PoissonNoise(three_digits(float(photons)))
    relative = float(sigma.min() / y.abs().mean().clamp_min(1e-300))
    return GaussianNoise(three_digits(relative))


def noise_on(scan: Scans, geometry: Geometry) -> GaussianNoise | PoissonNoise:
    """The noise of the scan's first slice on the detectors of a geometry, from all its views.

    It is estimated on no fewer than 256 detectors where the scan has them, since an object is rough on wide ones; joining k more
    into one leaves a normal noise smaller by sqrt(k), and k times the photons.
    """
    assert scan.geometry is not None
    wanted = max(geometry.detector_spacing / scan.geometry.detector_spacing, 1.0)
    already = max(1, min(int(wanted), scan.geometry.detectors // _FINE))
    whole = scan.geometry.detectors // already * already
    noise = estimate_noise(scan.sinograms[:1, ..., :whole].unflatten(-1, (-1, already)).mean(-1))
    joined = wanted / already
    if isinstance(noise, PoissonNoise):
        return PoissonNoise(three_digits(noise.photons * joined), noise.attenuation)
    return GaussianNoise(three_digits(noise.relative / math.sqrt(joined)))


def noise_of_one_size(y: Tensor) -> float:
    """Standard deviation of the noise in y (..., D), over all rays together, in their unit; NaN where D < 4 or all rays are alike.

    What is rough in every ray counts as noise: up to twice too much where pixels are coarse and noise is 1 %.
    """
    differences = torch.diff(y.double(), n=_ORDER).abs().flatten()
    differences = differences[differences > 0]  # values that were repeated beyond the end of a detector were not measured
    return float(_sigma(differences)) if len(differences) else math.nan


def photon_noise(y: Tensor) -> float:
    """Standard deviation of a ray through air in y (1, 1, V, D), if photons are counted: a line integral p then has it times e^(p/2).

    One over its square is the number of photons. Rays of all values count, each with its difference times e^(-p/2).
    """
    if y.shape[-1] <= _ORDER:
        raise InputError(f"the noise cannot be estimated from {y.shape[-1]} detectors; at least {_ORDER + 1} are needed")
    p = y.double()
    as_in_air = torch.diff(p, n=_ORDER).abs() * torch.exp(-p[..., 1:-2].clamp(min=0) / 2)
    return float(_sigma(as_in_air.flatten()))


def three_digits(value: float) -> float:
    """No more are known of what is estimated, and a file with them reads well."""
    return float(f"{value:.3g}")


def _by_level(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean value and noise of groups of rays with about the same value, in rising order: two tensors (groups,)."""
    rough = torch.diff(y, n=_ORDER).flatten().abs()
    value = y.unfold(-1, _ORDER + 1, 1).mean(-1).flatten()
    groups = max(1, min(_GROUPS, len(value) // _ENOUGH))
    parts = value.argsort().tensor_split(groups)
    return torch.stack([value[part].mean() for part in parts]), torch.stack([_sigma(rough[part]) for part in parts])


def _sigma(rough: Tensor) -> Tensor:
    """Standard deviation of the noise from |differences| (n,), by their quantile."""
    quantile = rough.kthvalue(max(int(_SHARE * len(rough)), 1)).values
    return quantile / (_BELOW * math.sqrt(math.comb(2 * _ORDER, _ORDER)))


def _slope(level: Tensor, sigma: Tensor) -> float:
    """By how much log sigma rises with y / 2; 1 for photon noise, 0 for noise of one size."""
    if len(level) < 3 or float(level[-1] - level[0]) <= 0 or float(sigma.min()) <= 0:
        return 0.0
    x, z = level / 2, sigma.log()
    return float(((x - x.mean()) * (z - z.mean())).sum() / ((x - x.mean()) ** 2).sum())
