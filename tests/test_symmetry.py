"""Flips and turns commute with A'A for every symmetry that is claimed, and none is missed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from geometries import GEOMETRIES

from bdgd.operators import Geometry, ParallelBeam, RayTransform, Symmetry, symmetries

ALL = [Symmetry(t, x, y) for t in (False, True) for x in (False, True) for y in (False, True)]
TURNED = [3.0, 33.0, 93.0, 123.0]  # degrees: a quarter turn maps them onto each other, a flip does not

#: geometry, and how many symmetries it has
CASES: dict[str, tuple[Geometry, int]] = {
    "sparse": (ParallelBeam.sparse(image_size=16, views=30), 8),  # has views at exactly 45 and 135 degrees
    "sparse-odd": (ParallelBeam.sparse(image_size=15, views=12, pixel_size=0.3), 8),
    "sparse-not-even-views": (ParallelBeam.sparse(image_size=16, views=5), 4),  # symmetric to the axes, but not to the diagonal
    "limited-120": (ParallelBeam.limited(image_size=16, degrees=120), 2),
    "limited-90": (ParallelBeam.limited(image_size=16, degrees=90), 4),
    "not-square": (ParallelBeam.sparse(image_size=(12, 17), views=12), 4),
    "not-square-limited": (ParallelBeam.limited(image_size=(12, 17), degrees=60), 2),
    "quarter-turns-only": (ParallelBeam(image_size=14, angles=np.deg2rad(TURNED), detectors=21), 4),
    "one-view-twice": (ParallelBeam(image_size=12, angles=[0.4, -0.4, -0.4], detectors=17), 2),
    "beyond-one-turn": (ParallelBeam(image_size=12, angles=[0.4, -0.4 + 3 * math.pi], detectors=17), 4),
}
every_case = pytest.mark.parametrize(("geometry", "count"), CASES.values(), ids=CASES.keys())


def mismatch(A: RayTransform, symmetry: Symmetry, x: torch.Tensor) -> float:
    """Largest |A'A s(x) - s(A'A x)|, relative to the largest value."""
    turned, straight = A.T(A(symmetry(x))), symmetry(A.T(A(x)))
    return float((turned - straight).abs().max() / straight.abs().max())


@every_case
def test_every_symmetry_commutes_and_no_other_flip_does(geometry: Geometry, count: int, generator: torch.Generator) -> None:
    A = RayTransform(geometry, dtype=torch.float64)
    x = torch.rand(2, *A.domain_shape, generator=generator, dtype=torch.float64)
    found = symmetries(geometry)
    assert len(found) == count and found[0] == Symmetry()
    possible = [s for s in ALL if not s.transpose or geometry.image_size[0] == geometry.image_size[1]]
    for symmetry in possible:
        if symmetry in found:
            assert mismatch(A, symmetry, x) < 1e-9
        else:
            assert mismatch(A, symmetry, x) > 1e-3


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if name.startswith("fan") or "offset" in name])
def test_fan_beams_and_shifted_detectors_have_only_the_identity(name: str) -> None:
    assert symmetries(GEOMETRIES[name]) == [Symmetry()]


def test_without_a_geometry_there_is_only_the_identity() -> None:
    assert symmetries(None) == [Symmetry()]


@pytest.mark.parametrize("symmetry", ALL, ids=str)
def test_a_symmetry_moves_pixels_and_loses_none(symmetry: Symmetry, generator: torch.Generator) -> None:
    x = torch.rand(2, 1, 5, 5, generator=generator)
    moved = symmetry(x)
    assert torch.equal(moved.flatten(1).sort().values, x.flatten(1).sort().values)
    assert torch.equal(moved, x) == (symmetry == Symmetry())
