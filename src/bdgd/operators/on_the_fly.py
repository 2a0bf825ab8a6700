"""The matrix-free strategy on a GPU: tables for the kernels of `ray_kernels`, and their launches."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bdgd.operators.geometry import FanBeam, Geometry

#: What one program computes, by the number of images it takes along, found by measurement on an H200: neighbouring rays as (views,
#: detectors, warps), and pixels as (pixels, warps), fewer of them where programs share the views of a pixel.
RAYS = {1: (4, 8, 1), 2: (2, 8, 1), 4: (1, 8, 1), 16: (2, 16, 4)}
FEW_PIXELS, PIXELS = {1: (64, 2), 2: (32, 1), 4: (32, 1), 16: (16, 2)}, (128, 4)
MOST_IMAGES = max(RAYS)
#: The transpose of few images shares its views among programs until there are so many sums to make, but no more than so many.
SUMS, MOST_PARTS = 2**20, 16
#: Added to the reach of the transpose, so that rounding cannot lose a ray; rays too far get weight 0 anyway.
MARGIN = 1e-2
#: Radians from the central ray beyond which a detector is so far away that its cells are not counted.
GRAZING = 1.5
#: A reach of so many detector cells is no burden, however small the detector.
FEW = 64


class OnTheFly:
    """Weights are computed where they are used; beside input and output only three numbers per ray are kept."""

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype):
        self.geometry, self.fan = geometry, isinstance(geometry, FanBeam)
        self.rays = ray_table(geometry).to(device, dtype)
        self.axes, self.depths = (table.to(device, dtype) for table in _pixel_tables(geometry))
        self.reach = _reach(geometry) + MARGIN
        self.most_images = _countable(max(math.prod(geometry.image_size), len(self.rays)))

    @staticmethod
    def handles(geometry: Geometry) -> bool:
        """Whether the transpose finds all rays of a pixel by looking at few of them, or at no more than there are."""
        return _reach(geometry) <= max(geometry.detectors, FEW)

    def forward(self, images: Tensor) -> Tensor:
        """(H * W, B) -> (V * D, B)."""
        return self._in_parts(self._project, images)

    def transpose(self, sinograms: Tensor) -> Tensor:
        """(V * D, B) -> (H * W, B)."""
        return self._in_parts(self._backproject, sinograms)

    def _in_parts(self, kernel: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
        """The kernel's result; for more images than there are 32-bit numbers for their values, in parts."""
        if columns.shape[1] <= self.most_images:
            return kernel(columns)
        return torch.cat([kernel(part.contiguous()) for part in columns.split(self.most_images, 1)], 1)

    def _project(self, images: Tensor) -> Tensor:
        from bdgd.operators import ray_kernels

        wanted, images = images.shape[1], _aligned(images)
        (height, width), views, detectors, batch = *self._sizes, images.shape[1]
        together = _together(batch)
        v, d, warps = RAYS[together]
        sinograms = torch.empty(views * detectors, batch, device=images.device, dtype=images.dtype)
        grid = (-(-detectors // d), -(-views // v), -(-batch // together))
        ray_kernels.project[grid](
            images, self.rays, sinograms, height, width, views, detectors, batch,
            VIEWS=v, DETECTORS=d, IMAGES=together, num_warps=warps,
        )  # fmt: skip
        return sinograms[:, :wanted]

    def _backproject(self, sinograms: Tensor) -> Tensor:
        from bdgd.operators import ray_kernels

        wanted, sinograms = sinograms.shape[1], _aligned(sinograms)
        (height, width), views, detectors, batch = *self._sizes, sinograms.shape[1]
        together, parts = _together(batch), _parts(height * width * batch, views)
        pixels, warps = FEW_PIXELS[together] if parts > 1 else PIXELS
        images = torch.empty(parts, height * width, batch, device=sinograms.device, dtype=sinograms.dtype)
        grid = (-(-height * width // pixels), -(-batch // together), parts)
        ray_kernels.backproject[grid](
            sinograms, self.rays, self.axes, self.depths, images, height, width, views, detectors, batch, self.reach,
            FAN=self.fan, CANDIDATES=math.floor(2 * self.reach) + 1, PIXELS=pixels, IMAGES=together, num_warps=warps,
        )  # fmt: skip
        return (images.sum(0) if parts > 1 else images[0])[:, :wanted]

    @property
    def _sizes(self) -> tuple[tuple[int, int], int, int]:
        """Of an image, and the number of views and of detectors."""
        return self.geometry.image_size, self.geometry.views, self.geometry.detectors


def ray_table(geometry: Geometry) -> Tensor:
    """(V * D, 3) in float64: crossing at step 0, change per step, both in pixels, and length per step, negative for steps along x."""
    points, directions = (tensor.reshape(-1, 2) for tensor in geometry.rays())
    size = torch.tensor(geometry.image_size, dtype=torch.float64)
    along_y = directions[:, 1].abs() >= directions[:, 0].abs()
    step = along_y.long()[:, None]

    def split(values: Tensor) -> tuple[Tensor, Tensor]:
        return values.gather(1, step)[:, 0], values.gather(1, 1 - step)[:, 0]

    (along, across), (direction, aside) = split(points), split(directions)
    middle_along, middle_across = split(((size - 1) / 2).expand(len(points), 2))
    slope = aside / direction
    start = (across - slope * along) / geometry.pixel_size - slope * middle_along + middle_across
    length = geometry.pixel_size / direction.abs()
    return torch.stack((start, slope, torch.where(along_y, length, -length)), 1)


def _pixel_tables(geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Where pixel [i, j] is seen, in detector cells: (a0 i + a1 j + a2) / (d0 i + d1 j + d2) + a3, each table (V, 4)."""
    h, w = geometry.image_size
    along_detector, along_ray = geometry.axes()  # (V, 2) each
    pixel, middle = geometry.pixel_size, torch.tensor([(h - 1) / 2, (w - 1) / 2], dtype=torch.float64)

    def affine(direction: Tensor, constant: float, shift: float) -> Tensor:
        offset = constant - pixel * direction @ middle
        return torch.cat((pixel * direction, offset[:, None], torch.full_like(offset[:, None], shift)), 1)

    shift = (geometry.detectors - 1) / 2 - geometry.detector_offset / geometry.detector_spacing
    magnified = geometry.source_to_detector if isinstance(geometry, FanBeam) else 1.0
    axes = affine(along_detector * magnified / geometry.detector_spacing, 0.0, shift)
    depths = affine(along_ray, geometry.source_to_axis if isinstance(geometry, FanBeam) else 1.0, 0.0)
    return axes, depths


def _reach(geometry: Geometry) -> float:
    """How many detector cells from where a pixel is seen a ray can end that passes within one pixel of it; inf for no bound.

    With a source so near that rays graze the image, a pixel may be seen anywhere.
    """
    if not isinstance(geometry, FanBeam):
        return geometry.pixel_size / geometry.detector_spacing
    nearest = geometry.source_to_axis - geometry.image_radius
    widest = math.asin(geometry.image_radius / geometry.source_to_axis)
    turned = widest + math.asin(min(geometry.pixel_size / nearest, 1.0))
    if turned > GRAZING:
        return math.inf
    return geometry.source_to_detector * (math.tan(turned) - math.tan(widest)) / geometry.detector_spacing


def _aligned(columns: Tensor) -> Tensor:
    """(n, B) with zeros up to as many columns as programs take along: rows that start anywhere are read number by number."""
    missing = -columns.shape[1] % _together(columns.shape[1])
    return torch.nn.functional.pad(columns, (0, missing)) if missing else columns


def _together(batch: int) -> int:
    """Images of one program. Five to fifteen are fastest as sixteen."""
    return next(images for images in RAYS if images >= min(batch, MOST_IMAGES))


def _countable(values: int) -> int:
    """Images of so many values each that kernels, which count with 32 bits, can take at once, a number that `_aligned` leaves alone."""
    images = (2**31 - 1) // values
    return images // MOST_IMAGES * MOST_IMAGES or max((few for few in RAYS if few <= images), default=1)


def _parts(sums: int, views: int) -> int:
    """Among how many programs the views are shared when there are so many sums, one per pixel and image; each gets a few."""
    return max(1, min(SUMS // max(sums, 1), MOST_PARTS, views // 4))
