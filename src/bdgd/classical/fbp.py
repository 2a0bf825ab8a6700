"""Filtered back-projection for parallel and fan beam.

For parallel rays, x = sum over views of dtheta_v * (ramp * y_v)(s) with s the detector coordinate of the pixel; the sum
is the transpose A' of the ray transform, as in the paper (interpolating instead would give another image, 0.4 dB apart
on the paper's sparse views). For a fan with a flat detector, scaled to the axis at distance R from the source, a ray is
first multiplied by its cosine and its redundancy weight, and a pixel at depth U below the source receives (R / U)^2
times the filtered value (Kak and Slaney, "Principles of Computerized Tomographic Imaging", section 3.4.2), a factor
that A' does not have: there the filtered views are interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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

#: Images that are back-projected together: enough to fill a device, few enough to stay in a cache.
BATCH = 64


@torch.no_grad()
def fbp(A: LinearOperator, y: Tensor, filter: str = "ram-lak") -> Tensor:
    """The image (B, 1, H, W) of sinograms y (B, 1, V, D) by filtered back-projection on the geometry of `A`.

    A disc of value 1 comes back as 1 inside. An arc shorter than half a circle is scaled by pi / arc, as ODL does.
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
    filtered = _ramp_filter(_ray_weights(geometry).to(y) * y, filter)
    if isinstance(geometry, FanBeam):
        return torch.cat([_back_project(geometry, part[:, 0] / geometry.axis_spacing) for part in filtered.split(BATCH)])
    return A.T(filtered) / geometry.pixel_size**2  # a column of A sums to pixel_size^2 / detector_spacing in a view


def _ray_weights(geometry: Geometry) -> Tensor:
    """(V, D) what each ray counts in the integral over views: its angle, its share among equal rays, and its cosine.

    The angles sum to pi along the central ray: every line once, whatever the arc.
    """
    angle = geometry.view_weights[:, None]
    if not isinstance(geometry, FanBeam):
        return (angle * math.pi / angle.sum()).expand(-1, geometry.detectors)
    fan_angle = torch.atan(geometry.detector_positions() / geometry.source_to_detector)
    theta = torch.tensor(geometry.angles, dtype=torch.float64)[:, None]
    # The ray (theta, gamma) is the same line as (theta + pi - 2 gamma, -gamma); both share one line's weight (Noo et al. 2002).
    own, opposite = _arc_window(geometry, theta), _arc_window(geometry, theta + math.pi - 2 * fan_angle)
    share = own / (own + opposite)
    central = own / (own + _arc_window(geometry, theta + math.pi))
    return angle * share * math.pi / (angle * central).sum() * torch.cos(fan_angle)


def _arc_window(geometry: Geometry, theta: Tensor) -> Tensor:
    """1 inside the measured arc, falling smoothly to 0 over its last 10 degrees on either side, 0 outside; 1 on a full circle."""
    start, arc = geometry.arc
    if arc > geometry.period - 1e-6:
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


def _back_project(geometry: FanBeam, y: Tensor) -> Tensor:
    """Sum over views of (R / U)^2 y (B, V, D) at every pixel's detector coordinate, linear between detectors; (B, 1, H, W)."""
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
        image += values * ((part.source_to_axis / part.depths(points)[0]) ** 2).to(y.dtype)[:, None]
    return image.T.reshape(batch, 1, *geometry.image_size)
