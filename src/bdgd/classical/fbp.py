"""Filtered back-projection for parallel and fan beam.

For parallel rays, x = sum over views of dtheta_v * (ramp * y_v)(s) with s the detector coordinate of the pixel; the sum
is the transpose A' of the ray transform, as in the paper (interpolating instead would give another image, 0.4 dB apart
on the paper's sparse views). Between detectors wider than `WIDE` pixels values are interpolated all the same, since A' would
leave pixels between their rays empty. For a fan with a flat detector, scaled to the axis at distance R from the source, a ray
is first multiplied by its cosine and its redundancy weight, and a pixel at depth U below the source receives (R / U)^2 times
the filtered value (Kak and Slaney, "Principles of Computerized Tomographic Imaging", section 3.4.2), a factor that A' does not
have: there the filtered views are interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_choice, require_finite
from bdgd.operators import FanBeam, Geometry, LinearOperator

#: Windows on the ramp, as functions of the frequency divided by the Nyquist frequency.
FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "ram-lak": torch.ones_like,
    "shepp-logan": lambda f: torch.sinc(f / 2),
    "cosine": lambda f: torch.cos(f * math.pi / 2),
    "hann": lambda f: torch.cos(f * math.pi / 2) ** 2,
    "hamming": lambda f: 0.54 + 0.46 * torch.cos(f * math.pi),
}

#: Pixels: between wider detectors of a parallel beam the filtered views are interpolated.
WIDE = 1.25
#: Images that are back-projected together: enough to fill a device, few enough to stay in a cache.
BATCH = 64


def fbp(A: LinearOperator, y: Tensor, filter: str = "ram-lak") -> Tensor:
    """The image (B, 1, H, W) of sinograms y (B, 1, V, D) by filtered back-projection on the geometry of `A`.

    A disc of value 1 comes back as 1 inside, in a full turn also where the detector has the longer side of every view only.
    An arc shorter than half a circle is scaled by pi / arc, as ODL does. It is linear in y, and differentiable.
    filter: "ram-lak", "shepp-logan", "cosine", "hann" or "hamming".
    """
    geometry = getattr(A, "geometry", None)
    if not isinstance(geometry, Geometry):
        raise InputError(
            f"fbp needs an operator with a geometry, such as bdgd.RayTransform; {A} has none: start a model from"
            " another image, as by DeepGradientDescent(A, initial=lambda A, y: A.T(y))"
        )
    require_batch(y, A.range_shape, "the sinogram")
    if (y.dtype, y.device.type) != (A.dtype, A.device.type):
        raise InputError(f"the sinogram is {y.dtype} on {y.device}, but {A} works in {A.dtype} on {A.device}; convert it with .to")
    require_finite(y, "the sinogram")
    require_choice(filter, tuple(FILTERS), "filter")
    weighted, one_sided = _ray_weights(geometry).to(y) * y, _one_sided(geometry)
    if one_sided:
        geometry, weighted = _both_sides(geometry, weighted)
    filtered = _ramp_filter(weighted, filter)
    if one_sided or isinstance(geometry, FanBeam) or geometry.detector_spacing > WIDE * geometry.pixel_size:
        return torch.cat([_back_project(geometry, part[:, 0] / geometry.axis_spacing) for part in filtered.split(BATCH)])
    return A.T(filtered) / geometry.pixel_size**2  # a column of A sums to pixel_size^2 / detector_spacing in a view


def _ray_weights(geometry: Geometry) -> Tensor:
    """(V, D) what each ray counts in the integral over views: its angle, its share among equal rays, and its cosine.

    The angles sum to pi along the central ray: every line once, whatever the arc.
    """
    s, around = geometry.detector_positions(), geometry.turn_weights if _one_sided(geometry) else None
    angle = (geometry.view_weights if around is None else around)[:, None]
    here, mirrored = _detector_window(geometry, s), _detector_window(geometry, -s)
    if not isinstance(geometry, FanBeam):
        if around is not None:
            return angle * here / (here + mirrored)  # the ray (theta, s) is the same line as (theta + pi, -s)
        return (angle * math.pi / angle.sum()).expand(-1, geometry.detectors)
    fan_angle = torch.atan(s / geometry.source_to_detector)
    theta = torch.tensor(geometry.angles, dtype=torch.float64)[:, None]
    # The ray (theta, gamma) is the same line as (theta + pi - 2 gamma, -gamma); both share one line's weight (Noo et al. 2002).
    own, opposite = _arc_window(geometry, theta), _arc_window(geometry, theta + math.pi - 2 * fan_angle)
    central = own / (own + _arc_window(geometry, theta + math.pi))
    share = own * here / (own * here + opposite * mirrored)
    return angle * share * math.pi / (angle * central).sum() * torch.cos(fan_angle)


def _one_sided(geometry: Geometry) -> bool:
    """Whether, in a full turn, the detector is moved so far to one side that its shorter side misses a part of the image."""
    shorter = (geometry.detectors * geometry.detector_spacing / 2 - abs(geometry.detector_offset)) / geometry.detector_spacing
    half_image = max(geometry.image_size) * geometry.pixel_size / 2
    moved = abs(geometry.detector_offset) > geometry.detector_spacing
    return moved and shorter * geometry.axis_spacing < half_image and geometry.turn_weights is not None


def _both_sides(geometry: Geometry, y: Tensor) -> tuple[Geometry, Tensor]:
    """Sinograms (B, 1, V, D) with zeros beyond the shorter side, as far as the longer one: room for what the ramp spreads there."""
    offset = geometry.detector_offset
    more = math.ceil(2 * abs(offset) / geometry.detector_spacing)
    y = torch.nn.functional.pad(y, (more, 0) if offset > 0 else (0, more))
    middle = offset - math.copysign(more * geometry.detector_spacing / 2, offset)
    return replace(geometry, detectors=geometry.detectors + more, detector_offset=middle), y


def _detector_window(geometry: Geometry, s: Tensor) -> Tensor:
    """How much a ray at s counts beside the same line from the other side, at -s: 0 off the detector, rising smoothly from its ends.

    So lines that only one side sees count in full (Wang 2002). 1 on a detector that sees the image from both sides.
    """
    if not _one_sided(geometry):
        return torch.ones_like(s)
    width = geometry.detectors * geometry.detector_spacing
    seen_twice = max(width - 2 * abs(geometry.detector_offset), geometry.detector_spacing)
    inside = width / 2 - (s - geometry.detector_offset).abs()  # from the nearer end
    return torch.sin((inside / min(seen_twice, width / 4)).clamp(0, 1) * math.pi / 2) ** 2


def _arc_window(geometry: Geometry, theta: Tensor) -> Tensor:
    """1 inside the measured arc, falling smoothly to 0 over its last 10 degrees on either side, 0 outside; 1 on a full circle.

    1 also where the detector sees one side of every view only: a gap in its turn is filled by its neighbours.
    """
    start, arc = geometry.arc
    if arc > geometry.period - 1e-6 or _one_sided(geometry):
        return torch.ones_like(theta)
    inside = (theta - start).remainder(geometry.period)  # angle since the start of the arc
    edge = torch.minimum(inside, arc - inside).clamp(min=0)
    ramp = min(math.radians(10), arc / 4)
    return torch.sin((edge / ramp).clamp(max=1) * math.pi / 2) ** 2


def _ramp_filter(y: Tensor, filter: str) -> Tensor:
    """y (..., D) convolved with the ramp |f|, f in cycles per detector, under the window of `filter`.

    As in ODL the ramp is sampled half a frequency bin off zero, so that the mean value survives the padding; half a bin
    off is a factor (-1)^k on the kernel. ODL's length of 2 D - 1 leaves about 1 % too much inside a disc, 4 D - 1 a quarter of it.
    """
    from scipy.fft import next_fast_len  # slow to import, and not everybody filters

    detectors = y.shape[-1]
    length = 4 * detectors - 1
    frequency = torch.arange(length, dtype=torch.float64) / length - 0.5
    ramp = frequency.abs() * FILTERS[filter](2 * frequency.abs())
    kernel = torch.fft.ifft(ramp).real[:detectors]
    kernel[1::2] *= -1
    padded = next_fast_len(length, real=True)
    symmetric = torch.zeros(padded, dtype=torch.float64)
    symmetric[:detectors] = kernel
    symmetric[padded - detectors + 1 :] = kernel[1:].flip(0)
    transfer = torch.fft.rfft(symmetric).real.to(y)
    return torch.fft.irfft(torch.fft.rfft(y, n=padded) * transfer, n=padded)[..., :detectors]


def _back_project(geometry: Geometry, y: Tensor) -> Tensor:
    """Sum over views of (R / U)^2 y (B, V, D) at every pixel's detector coordinate, linear between detectors; (B, 1, H, W).

    Parallel rays come from far away: R / U is 1.
    """
    batch, views, detectors = y.shape
    # One zero at either end of the detector: what falls beside it reads that zero. Batch last, to read it in one go.
    padded = torch.nn.functional.pad(y, (1, 1)).permute(1, 2, 0).contiguous()  # (V, D + 2, B)
    points = torch.cartesian_prod(*geometry.pixel_centres()).to(y.device)  # (P, 2)
    image = torch.zeros(len(points), batch, dtype=y.dtype, device=y.device)
    for view in range(views):
        part = geometry[view]
        index = (part.detector_coordinates(points)[0] - part.detector_offset) / part.detector_spacing + (detectors - 1) / 2 + 1
        index = index.clamp(0, detectors + 1 - 1e-9)
        lower = index.long()
        values = torch.lerp(padded[view, lower], padded[view, lower + 1], (index - lower).to(y.dtype)[:, None])
        if isinstance(part, FanBeam):
            values = values * ((part.source_to_axis / part.depths(points)[0]) ** 2).to(y.dtype)[:, None]
        image += values
    return image.T.reshape(batch, 1, *geometry.image_size)
