"""Which of a scan's views serve a model's: the nearest angles, from either side of a parallel beam, and after one rotation of all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bdgd.operators.geometry import FanBeam, Geometry

_ROUNDING = 1e-6  # radians: smaller differences between angles come from how they were written, and decide nothing
_EDGE = 0.5  # pixels at the edge of the image that a wrong angle may move


@dataclass(frozen=True)
class Views:
    """Which of the scan's views serve the model's V views; a flipped one is a parallel view from the other side."""

    numbers: np.ndarray  # (V,)
    flipped: np.ndarray  # (V,)
    rotation: float  # radians by which the scan's angles exceed the model's
    deviation: float  # radians, the largest


def allowed_deviation(theirs: Geometry, tolerance: float) -> float:
    spacing = float(theirs.view_weights.median()) if theirs.views > 1 else math.inf
    return max(min(tolerance * spacing, 2 * _EDGE / max(theirs.image_size)), 1e-6)


def deviations(ours: Geometry, theirs: Geometry) -> np.ndarray:
    """(V,) how far, in radians, each of the model's angles is from the nearest view of the scan, unrotated."""
    known, _ = _choices(ours)
    wanted = _turned(np.asarray(theirs.angles))
    off: np.ndarray = _apart(known[None], wanted[:, None]).min(1)
    return off


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The angle between two angles, at most pi."""
    apart: np.ndarray = np.abs(np.remainder(a - b + math.pi, 2 * math.pi) - math.pi)
    return apart


def _choices(ours: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """The angles in [0, 2 pi) at which the scan has a view, and the number of the view; a parallel one counts from both sides."""
    angles = np.asarray(ours.angles)
    if not isinstance(ours, FanBeam):
        angles = np.concatenate((angles, angles + math.pi))
    angles = _turned(angles)
    order = np.argsort(angles, kind="stable")  # of equal angles the first view, not flipped
    return angles[order], order


def _turned(angles: np.ndarray) -> np.ndarray:
    """Modulo 2 pi, without the last digits: 360 degrees are 0."""
    turned: np.ndarray = np.remainder(np.round(angles, 9), round(2 * math.pi, 9))
    return turned


def nearest_views(ours: Geometry, theirs: Geometry, rotations: np.ndarray) -> Views:
    """The nearest views for the first of the rotations that leaves the smallest deviation."""
    known, order = _choices(ours)
    best: Views | None = None
    for rotation in rotations:
        wanted = _turned(np.asarray(theirs.angles) + rotation)
        place = np.searchsorted(known, wanted)
        around = np.stack((place % len(known), (place - 1) % len(known)))  # an equal angle is the upper neighbour
        off = _apart(known[around], wanted)
        choice = np.take_along_axis(around, off.argmin(0)[None], 0)[0]
        deviation = float(off.min(0).max())
        if best is None or deviation < best.deviation - _ROUNDING:
            numbers = order[choice]
            best = Views(numbers % ours.views, numbers >= ours.views, float(rotation), deviation)
    assert best is not None
    return best


def possible_rotations(ours: Geometry, theirs: Geometry, allowed: float) -> np.ndarray:
    """(N,) rotations, smallest first, that bring the model's first views onto views of the scan; [0] where none does."""
    known, _ = _choices(ours)
    model = np.asarray(theirs.angles)
    rotations = np.remainder(known - model[0] + math.pi, 2 * math.pi) - math.pi
    for angle in model[1:8]:
        wanted = _turned(angle + rotations)
        place = np.searchsorted(known, wanted)
        off = np.stack([_apart(known[(place - k) % len(known)], wanted) for k in (0, 1)])
        rotations = rotations[off.min(0) <= 2 * allowed]
    rotations = rotations[np.argsort(np.abs(rotations), kind="stable")]
    return rotations if len(rotations) else np.zeros(1)
