"""Geometries and comparisons that the tests of the ray transform share."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bdgd.operators import FanBeam, RayTransform

STRATEGIES = ("matrix", "matrix-free")
RANDOM = np.random.default_rng(3).uniform(0, 2 * math.pi, 17)


def full_circle(views: int) -> np.ndarray:
    return 0.1 + np.arange(views) * 2 * math.pi / views


def fan(size: int, views: int) -> FanBeam:
    """A fan that sees the whole square image; its rays are one pixel apart at the axis."""
    return FanBeam(
        image_size=size,
        angles=full_circle(views),
        detectors=3 * size // 2 + 1,
        detector_spacing=1.5,
        source_to_axis=2.0 * size,
        source_to_detector=3.0 * size,
    )


def normal(shape: tuple[int, ...], A: RayTransform, generator: torch.Generator) -> Tensor:
    return torch.randn((3, *shape), generator=generator, dtype=torch.float64).to(A.device, A.dtype)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).double().norm() / expected.double().norm())
