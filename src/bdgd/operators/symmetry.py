"""Flips and turns of the image that a parallel-beam geometry cannot tell from another image: its exact symmetries.

Where A(flipped x) is A(x) with its views and detectors reordered, a flipped image with its flipped gradient is as good a
training pair as the original one: more variety from the same scans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bdgd.operators.geometry import Geometry, ParallelBeam


@dataclass(frozen=True)
class Symmetry:
    """Swap the axes, then reverse x, then reverse y."""

    transpose: bool = False
    flip_x: bool = False
    flip_y: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        """The flipped images (B, 1, H, W)."""
        images = images.transpose(-2, -1) if self.transpose else images
        return images.flip([axis for axis, wanted in ((-2, self.flip_x), (-1, self.flip_y)) if wanted])

    def moved(self, angles: np.ndarray) -> np.ndarray:
        """Where views go: theta -> pi/2 - theta, pi - theta, -theta for the three parts."""
        angles = math.pi / 2 - angles if self.transpose else angles
        angles = math.pi - angles if self.flip_x else angles
        return -angles if self.flip_y else angles


def symmetries(geometry: Geometry | None) -> list[Symmetry]:
    """All symmetries of the geometry, the identity first; only the identity for other than centred parallel beams."""
    candidates = [Symmetry(t, x, y) for t in (False, True) for x in (False, True) for y in (False, True)]
    if not isinstance(geometry, ParallelBeam) or geometry.detector_offset != 0:
        return candidates[:1]
    square = geometry.image_size[0] == geometry.image_size[1]
    angles = np.array(geometry.angles)
    return [candidate for candidate in candidates if (square or not candidate.transpose) and _same_lines(angles, candidate.moved(angles))]


def _same_lines(angles: np.ndarray, others: np.ndarray) -> bool:
    """Whether both have every view equally often."""
    return bool((_occurrences(angles, angles) == _occurrences(angles, others)).all())


def _occurrences(angles: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How often each of the angles is among the others, modulo pi."""
    distance = np.abs(angles[:, None] - others[None]) % math.pi
    return (np.minimum(distance, math.pi - distance) < 1e-9).sum(1)
