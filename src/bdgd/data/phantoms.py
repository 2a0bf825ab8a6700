"""Phantoms made of ellipses: as pictures, and as the exact line integrals of any geometry.

Phantom coordinates have their origin at the middle of the image, x along the first index, y along the second. `unit` is
the length of one phantom unit in pixels, and the one place where conventions differ:

    unit = (size - 1) / 2    [-1, 1] reaches from the first to the last pixel CENTRE: ODL's, so the paper's; the default
    unit = size / 2          [-1, 1] reaches from edge to edge of the image
    unit = 1                 phantom coordinates are pixels

`rasterise` and `ellipse_sinogram` take the same `unit`, so a picture and its line integrals belong together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count, require_finite, require_generator, require_number, require_positive
from bdgd.operators.geometry import Geometry

_FEWEST, _MOST = 5, 9  # ellipses per random image
_CHUNK = 2**23  # float64 values worked on at once, 64 MiB: few large steps, since on a busy machine threads wait at the end of each


@dataclass(frozen=True, eq=False)
class Ellipses:
    """B images of E ellipses each, in phantom units; where ellipses overlap, their values add up.

    value (B, E); half_axes (B, E, 2), above 0; centre (B, E, 2) as (x, y); rotation (B, E) in radians,
    from the x axis to the first half-axis, counter-clockwise. Kept in float64. A value of 0 is an ellipse that is not there.
    """

    value: Tensor
    half_axes: Tensor
    centre: Tensor
    rotation: Tensor

    def __post_init__(self) -> None:
        for name, pair in (("value", ()), ("half_axes", (2,)), ("centre", (2,)), ("rotation", ())):
            tensor = torch.as_tensor(getattr(self, name), dtype=torch.float64)
            expected = (*torch.as_tensor(self.value).shape[:2], *pair)
            if tensor.ndim != 2 + len(pair) or tuple(tensor.shape) != expected or tensor.numel() == 0:
                shape = "(B, E, 2)" if pair else "(B, E)"
                raise InputError(f"{name} of Ellipses must have shape {shape} with the B and E of value, got {tuple(tensor.shape)}")
            require_finite(tensor, f"{name} of Ellipses")
            object.__setattr__(self, name, tensor)
        if bool((self.half_axes <= 0).any()):
            raise InputError(f"half_axes of Ellipses must be above 0, got {float(self.half_axes.min()):g}; value 0 leaves an ellipse out")

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> Ellipses:
        """One image of E ellipses from E rows (value, first half-axis, second half-axis, x, y, rotation)."""
        table = torch.as_tensor(rows, dtype=torch.float64)
        if table.ndim != 2 or table.shape[1] != 6:
            raise InputError(f"rows must be E rows of (value, half-axis, half-axis, x, y, rotation), got shape {tuple(table.shape)}")
        return cls(table[None, :, 0], table[None, :, 1:3], table[None, :, 3:5], table[None, :, 5])

    def __len__(self) -> int:
        return self.value.shape[0]

    def __getitem__(self, images: slice) -> Ellipses:
        """The ellipses of some of the images."""
        return Ellipses(self.value[images], self.half_axes[images], self.centre[images], self.rotation[images])

    def to(self, device: torch.device | str) -> Ellipses:
        return Ellipses(self.value.to(device), self.half_axes.to(device), self.centre.to(device), self.rotation.to(device))


def draw_ellipses(count: int, generator: torch.Generator) -> Ellipses:
    """The paper's random ellipses for `count` images, 5 to 9 each with equal chance. Per ellipse:

    value |U(-1/2, 1/2)| Exp(mean 1/2), half-axes Exp(mean 1) / 2, centre U(-1/2, 1/2)^2, rotation U(0, 2 pi).

    Every image takes the same 1 + 9 * 7 numbers from the stream, so the first n images of a larger set are the same
    images, and two calls in a row give what one call for both would.
    """
    count = require_count(count, "count")
    require_generator(generator)
    if generator.device.type != "cpu":
        raise InputError(f"generator must be on the CPU, so that all devices give the same images, got {generator.device}")
    uniform = torch.rand((count, 1 + 7 * _MOST), generator=generator, dtype=torch.float64)
    present = _FEWEST + torch.floor(uniform[:, :1] * (_MOST - _FEWEST + 1))  # (B, 1) how many ellipses
    u = uniform[:, 1:].reshape(count, _MOST, 7)
    exponential = -torch.log1p(-u[..., :3])
    value = (u[..., 3] - 0.5).abs() * 0.5 * exponential[..., 0]
    return Ellipses(
        value=value.where(torch.arange(_MOST) < present, 0.0),
        half_axes=(0.5 * exponential[..., 1:]).clamp_min(1e-9),  # an exact 0 has chance 2^-53, and no area anyway
        centre=u[..., 4:6] - 0.5,
        rotation=2 * math.pi * u[..., 6],
    )


def random_ellipses(
    count: int, size: int | tuple[int, int] = 128, *, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Tensor:
    """(B, 1, H, W) float32 in [0, 1]: the paper's random ellipses, sampled at the pixel centres (not anti-aliased).

    Each image is shifted to minimum 0, then divided by its maximum; a constant image becomes 0. The parameters come from
    `draw_ellipses` on the CPU, so every device gives the same images.
    """
    shape, ellipses = _shape(size), draw_ellipses(count, generator)
    images = torch.empty((count, 1, *shape), device=device)
    for part in _parts(count, shape[0] * shape[1]):
        picture = _sample(ellipses[part].to(device), shape, 1, _unit(None, shape))
        bottom, top = picture.amin((1, 2), keepdim=True), picture.amax((1, 2), keepdim=True)
        images[part, 0] = picture.sub_(bottom).div_((top - bottom).where(top > bottom, 1.0))
    return images


def shepp_logan_ellipses() -> Ellipses:
    """The ten ellipses of the modified Shepp-Logan phantom (Toft's contrast): skull 1, brain 0.2, ventricles 0."""
    tilt = math.radians(18)
    return Ellipses.from_rows(
        [
            (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
            (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
            (-0.2, 0.11, 0.31, 0.22, 0.0, -tilt),
            (-0.2, 0.16, 0.41, -0.22, 0.0, tilt),
            (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
            (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
            (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
            (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
            (0.1, 0.023, 0.023, 0.0, -0.606, 0.0),
            (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
        ]
    )


def shepp_logan(size: int = 128) -> Tensor:
    """(1, 1, size, size) float32: the modified Shepp-Logan phantom, index [x, y], sampled at the pixel centres as in the paper."""
    return rasterise(shepp_logan_ellipses(), size)


def disc(size: int | tuple[int, int], radius: float, value: float = 1.0) -> Tensor:
    """(1, 1, H, W) float32: a centred disc of `radius` PIXELS with anti-aliased edge, for calibrating scales."""
    radius, value = require_positive(radius, "radius"), require_number(value, "value")
    return rasterise(Ellipses.from_rows([(value, radius, radius, 0.0, 0.0, 0.0)]), size, supersample=8, unit=1.0)


def rasterise(
    ellipses: Ellipses,
    size: int | tuple[int, int],
    supersample: int = 1,
    *,
    unit: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(B, 1, H, W): the ellipses sampled at the pixel centres, or averaged over supersample^2 points of every pixel.

    `unit` is the length of a phantom unit in pixels, see the top of this file; the default is (min(H, W) - 1) / 2.
    A point on the edge of an ellipse is inside.
    """
    shape, supersample = _shape(size), require_count(supersample, "supersample")
    images = torch.empty((len(ellipses), 1, *shape), dtype=dtype, device=ellipses.value.device)
    for part in _parts(len(ellipses), shape[0] * shape[1] * supersample):
        images[part, 0] = _sample(ellipses[part], shape, supersample, _unit(unit, shape)).to(dtype)
    return images


def ellipse_sinogram(ellipses: Ellipses, geometry: Geometry, *, unit: float | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, 1, V, D): the exact integrals of the ellipses along the rays of `geometry`, in its unit of length.

    One phantom unit is `unit` pixels, so unit * geometry.pixel_size long; the default is (min(H, W) - 1) / 2 as in `rasterise`.
    A ray at distance d from the centre of an ellipse with half-axes a, b that reaches h to either side of the ray's direction
    has the chord 2 a b sqrt(h^2 - d^2) / h^2. Rays are whole lines, and what lies outside the image counts too.
    """
    length = _unit(unit, geometry.image_size) * geometry.pixel_size
    device = ellipses.value.device
    points, directions = (tensor.to(device) for tensor in geometry.rays())
    points = points / length
    nx, ny = directions[..., 1], -directions[..., 0]  # (V, D) the unit normal of every ray
    along_normal = points[..., 0] * nx + points[..., 1] * ny
    sinograms = torch.empty((len(ellipses), 1, *nx.shape), dtype=dtype, device=device)
    for part in _parts(len(ellipses), nx.numel()):
        total = torch.zeros((len(ellipses[part]), *nx.shape), dtype=torch.float64, device=device)
        for e in range(ellipses.value.shape[1]):
            value, rotation = ellipses.value[part, e, None, None], ellipses.rotation[part, e, None, None]
            (a, b), (x, y) = ellipses.half_axes[part, e, :, None, None].unbind(1), ellipses.centre[part, e, :, None, None].unbind(1)
            reach2 = (a * (rotation.cos() * nx + rotation.sin() * ny)) ** 2 + (b * (rotation.cos() * ny - rotation.sin() * nx)) ** 2
            total += 2 * length * value * _half_chord(a, b, reach2, along_normal - x * nx - y * ny)
        sinograms[part, 0] = total.to(dtype)
    return sinograms


def _half_chord(a: Tensor, b: Tensor, reach2: Tensor, distance: Tensor) -> Tensor:
    """Half the length that a line at `distance` from the centre has inside an ellipse reaching sqrt(reach2) to its sides."""
    return a * b * (reach2 - distance**2).clamp_min(0).sqrt() / reach2


def _sample(ellipses: Ellipses, shape: tuple[int, int], supersample: int, unit: float) -> Tensor:
    """(B, H, W) float64 means over the sample points of every pixel.

    Row by row: an ellipse covers one interval of a row, so its value is added where the interval starts and subtracted
    where it ends, and the running sum along the row is the picture: the work per ellipse is that of its rows, not of its pixels.
    """
    (height, width), device = shape, ellipses.value.device
    rows, columns = height * supersample, width * supersample
    x = (torch.arange(rows, dtype=torch.float64, device=device) - (rows - 1) / 2) / (supersample * unit)
    cos, sin = ellipses.rotation.cos()[..., None], ellipses.rotation.sin()[..., None]  # (B, E, 1), and so on
    a, b = (axis[..., None] for axis in ellipses.half_axes.unbind(-1))
    distance = x - ellipses.centre[..., :1]  # (B, E, rows)
    reach2 = (a * cos) ** 2 + (b * sin) ** 2
    middle = ellipses.centre[..., 1:] + distance * (cos * sin * (a**2 - b**2) / reach2)
    half = _half_chord(a, b, reach2, distance)
    start = ((middle - half) * (supersample * unit) + (columns - 1) / 2).ceil().clamp(0, columns).long()
    stop = ((middle + half) * (supersample * unit) + (columns - 1) / 2).floor().add(1).clamp(0, columns).long()
    value = _coarse(ellipses.value)[..., None].where(distance**2 <= reach2, 0.0)

    steps = torch.zeros((len(ellipses), height, columns + 1), dtype=torch.float64, device=device)
    line = torch.arange(rows, device=device) // supersample  # sub-rows of a pixel row share its line
    line = (line + torch.arange(0, len(ellipses) * height, height, device=device)[:, None, None]) * (columns + 1)
    steps.view(-1).scatter_add_(0, (start + line).flatten(), value.flatten())
    steps.view(-1).scatter_add_(0, (stop + line).flatten(), -value.flatten())
    sums = steps.cumsum_(2)[..., :-1]
    return sums if supersample == 1 else sums.reshape(-1, height, width, supersample).sum(3) / supersample**2


def _coarse(value: Tensor) -> Tensor:
    """(B, E) values rounded to 2^-40 of each image's largest: sums of them are exact in float64, in any order.

    So what was added and subtracted again leaves exactly 0, and atomic additions on a GPU give the CPU's sums.
    """
    _, exponent = torch.frexp(value.abs().amax(1, keepdim=True))
    step = torch.ldexp(torch.ones_like(value[:, :1]), exponent - 40)
    return (value / step).round() * step


def _parts(count: int, values: int) -> Iterator[slice]:
    """Slices of `count` images of `values` values each that fit the working memory."""
    step = max(1, _CHUNK // values)
    return (slice(first, min(first + step, count)) for first in range(0, count, step))


def _shape(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if not isinstance(size, tuple) else size
    return require_count(height, "size"), require_count(width, "size")


def _unit(unit: float | None, shape: tuple[int, int]) -> float:
    if unit is None:
        return (min(shape) - 1) / 2 or 1.0  # an image one pixel wide: that pixel is the middle, as in ODL
    return require_positive(unit, "unit")
