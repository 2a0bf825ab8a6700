"""A few scans of random numbers with their images."""

from __future__ import annotations

import torch

from bdgd.data.noise import GaussianNoise
from bdgd.data.scans import Scans
from bdgd.operators.geometry import Geometry, ParallelBeam

PARALLEL = ParallelBeam(
    image_size=(6, 7), angles=[0.1, 0.7, 2.0], detectors=11, detector_spacing=0.9, detector_offset=-0.25, pixel_size=0.8
)


def some_scans(geometry: Geometry = PARALLEL, count: int = 10, dtype: torch.dtype = torch.float32) -> Scans:
    g = torch.Generator().manual_seed(5)
    sinograms = torch.rand(count, 1, geometry.views, geometry.detectors, generator=g, dtype=dtype)
    return Scans(sinograms, geometry, torch.rand(count, 1, *geometry.image_size, generator=g, dtype=dtype), GaussianNoise(0.02))
