"""The matrix-free strategy on a GPU: tables for the kernels of `ray_kernels`, and their launches."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bdgd.operators.geometry import FanBeam, Geometry


class Tile(NamedTuple):
    """What one program of a kernel computes: rays of neighbouring `views` and `detectors`, and `pixels`, with so many warps."""

    views: int
    detectors: int
    ray_warps: int
    pixels: int
    pixel_warps: int


#: By the images of one program, at most 16, found by measurement on an H200: for few images, one number per thread.
TILES = {1: Tile(2, 16, 1, 32, 1), 2: Tile(2, 8, 1, 32, 2), 4: Tile(2, 8, 2, 32, 4), 8: Tile(2, 8, 4, 32, 4), 16: Tile(2, 16, 4, 128, 4)}
MOST_IMAGES = max(TILES)
#: The transpose shares its views among programs until there are so many threads, one per pixel and image, which fill a large GPU.
THREADS = 2**18
#: Added to the reach of the transpose, so that rounding cannot lose a ray; rays too far get weight 0 anyway.
MARGIN = 1e-2


class OnTheFly:
    """Weights are computed where they are used; beside input and output only three numbers per ray are kept."""

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype):
        self.geometry, self.fan = geometry, isinstance(geometry, FanBeam)
        self.rays = ray_table(geometry).to(device, dtype)
        self.axes, self.depths = (table.to(device, dtype) for table in _pixel_tables(geometry))
        self.reach = _reach(geometry) + MARGIN

    def forward(self, images: Tensor) -> Tensor:
        """(H * W, B) -> (V * D, B)."""
        from bdgd.operators import ray_kernels

        (height, width), views, detectors = self.geometry.image_size, self.geometry.views, self.geometry.detectors
        wanted, images = images.shape[1], _aligned(images)
        batch, together = images.shape[1], _together(images.shape[1])
        tile = TILES[together]
        sinograms = torch.empty(views * detectors, batch, device=images.device, dtype=images.dtype)
        grid = (-(-detectors // tile.detectors), -(-views // tile.views), -(-batch // together))
        ray_kernels.project[grid](
            images, self.rays, sinograms, height, width, views, detectors, batch,
            VIEWS=tile.views, DETECTORS=tile.detectors, IMAGES=together, num_warps=tile.ray_warps,
        )  # fmt: skip
        return sinograms[:, :wanted]

    def transpose(self, sinograms: Tensor) -> Tensor:
        """(V * D, B) -> (H * W, B)."""
        from bdgd.operators import ray_kernels

        (height, width), views, detectors = self.geometry.image_size, self.geometry.views, self.geometry.detectors
        wanted, sinograms = sinograms.shape[1], _aligned(sinograms)
        batch, together = sinograms.shape[1], _together(sinograms.shape[1])
        tile, parts = TILES[together], _parts(height * width * batch, views)
        images = torch.empty(parts, height * width, batch, device=sinograms.device, dtype=sinograms.dtype)
        grid = (-(-height * width // tile.pixels), -(-batch // together), parts)
        ray_kernels.backproject[grid](
            sinograms, self.rays, self.axes, self.depths, images, height, width, views, detectors, batch, self.reach,
            FAN=self.fan, CANDIDATES=math.floor(2 * self.reach) + 1, PIXELS=tile.pixels, IMAGES=together, num_warps=tile.pixel_warps,
        )  # fmt: skip
        return (images.sum(0) if parts > 1 else images[0])[:, :wanted]


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
    """How many detector cells from where a pixel is seen a ray can end that passes within one pixel of it."""
    if not isinstance(geometry, FanBeam):
        return geometry.pixel_size / geometry.detector_spacing
    nearest = geometry.source_to_axis - geometry.image_radius
    widest = math.asin(geometry.image_radius / geometry.source_to_axis)
    turned = min(widest + math.asin(min(geometry.pixel_size / nearest, 1.0)), 1.5)
    return geometry.source_to_detector * (math.tan(turned) - math.tan(widest)) / geometry.detector_spacing


def _aligned(columns: Tensor) -> Tensor:
    """(n, B) with zeros up to a number of columns that programs share evenly: rows that start anywhere are read number by number."""
    batch = columns.shape[1]
    return torch.nn.functional.pad(columns, (0, missing)) if (missing := -batch % _together(batch)) else columns


def _together(batch: int) -> int:
    """Images of one program: a power of two."""
    return min(MOST_IMAGES, 1 << (batch - 1).bit_length())


def _parts(values: int, views: int) -> int:
    """Among how many programs the views of every pixel are shared, for so many pixels times images."""
    return max(1, min(THREADS // max(values, 1), views // 4))
