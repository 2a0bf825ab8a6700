"""The ray transform against ASTRA's, where astra-toolbox is installed (pip install bdgd[reference]): an independent implementation.

How the arrays belong together, for both beams:

    image     ours[i, j] has x growing with i and y growing with j; an ASTRA volume has columns along x and rows from the
              largest y down to the smallest, so volume = ours.T[::-1] = np.rot90(ours), and ours = np.rot90(volume, -1).
              create_vol_geom takes rows first: (W, H, x_min, x_max, y_min, y_max).
    sinogram  the same array (V, D) on both sides, no flip.
    angles    as they are: ASTRA's 'parallel' and 'fanflat' have the detector along (cos, sin) at theta and the source of a
              fan at source_to_axis * (sin, -cos), as we have.
    offset    ASTRA's plain geometries have none; its vector geometries take the middle of the detector as a point.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdgd.data import Ellipses, ellipse_sinogram, rasterise, shepp_logan_ellipses
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform

astra = pytest.importorskip("astra", reason="astra-toolbox is not installed; pip install bdgd[reference]", exc_type=ImportError)

WITHIN = 0.01  # relative
RANDOM = np.random.default_rng(5).uniform(0, 2 * math.pi, 20)
CIRCLE = np.arange(24) * math.pi / 12

CASES: dict[str, Geometry] = {
    "parallel, the paper's": ParallelBeam.sparse(image_size=128, views=30),
    "parallel, two sides": ParallelBeam(image_size=(70, 101), angles=RANDOM, detectors=140, detector_spacing=0.45, pixel_size=0.5),
    "parallel, axis off": ParallelBeam(image_size=(70, 101), angles=RANDOM, detectors=140, detector_offset=-6.3),
    "fan": FanBeam(image_size=128, angles=CIRCLE, detectors=200, detector_spacing=1.5, source_to_axis=256.0, source_to_detector=384.0),
    "fan, two sides": FanBeam(
        image_size=(128, 90),
        angles=RANDOM,
        detectors=280,
        detector_spacing=0.4,
        pixel_size=0.3,
        source_to_axis=100.0,
        source_to_detector=150.0,
    ),
    "fan, axis off": FanBeam(
        image_size=(90, 128), angles=RANDOM, detectors=280, detector_offset=8.2, source_to_axis=200.0, source_to_detector=290.0
    ),
}

every_case = pytest.mark.parametrize("geometry", CASES.values(), ids=CASES.keys())


def ellipses() -> Ellipses:
    """Three images of six medium ellipses each, no symmetry."""
    u = torch.rand((3, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Ellipses(value=0.2 + u[..., 0], half_axes=0.2 + 0.3 * u[..., 1:3], centre=u[..., 3:5] - 0.5, rotation=math.pi * u[..., 5])


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


class Astra:
    """ASTRA's 'linear' (parallel) or 'line_fanflat' (fan) projector of a geometry, in our arrays."""

    def __init__(self, geometry: Geometry):
        (h, w), pixel = geometry.image_size, geometry.pixel_size
        self.volumes = astra.create_vol_geom(w, h, -h * pixel / 2, h * pixel / 2, -w * pixel / 2, w * pixel / 2)
        self.kind = "line_fanflat" if isinstance(geometry, FanBeam) else "linear"
        self.projections = _with_offset(geometry) if geometry.detector_offset else _plain(geometry)

    def __enter__(self) -> Astra:
        self.projector = astra.create_projector(self.kind, self.projections, self.volumes)
        return self

    def __exit__(self, *error: object) -> None:
        astra.projector.delete(self.projector)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self._run(astra.create_sino, np.rot90(image[0].numpy())) for image in x])

    def transpose(self, y: Tensor) -> Tensor:
        return torch.stack([self._run(astra.create_backprojection, sinogram[0].numpy()).rot90(-1, (1, 2)) for sinogram in y])

    def _run(self, algorithm: Any, array: np.ndarray) -> Tensor:
        handle, result = algorithm(np.ascontiguousarray(array), self.projector)
        astra.data2d.delete(handle)
        return torch.from_numpy(np.array(result))[None]


def _plain(geometry: Geometry) -> dict[str, Any]:
    detector = (geometry.detector_spacing, geometry.detectors, np.array(geometry.angles))
    if isinstance(geometry, FanBeam):
        behind = geometry.source_to_detector - geometry.source_to_axis
        return astra.create_proj_geom("fanflat", *detector, geometry.source_to_axis, behind)
    return astra.create_proj_geom("parallel", *detector)


def _with_offset(geometry: Geometry) -> dict[str, Any]:
    theta = np.array(geometry.angles)
    along, ray = np.stack((np.cos(theta), np.sin(theta)), 1), np.stack((-np.sin(theta), np.cos(theta)), 1)
    middle, step = geometry.detector_offset * along, geometry.detector_spacing * along
    if isinstance(geometry, FanBeam):
        behind = geometry.source_to_detector - geometry.source_to_axis
        source = -geometry.source_to_axis * ray
        return astra.create_proj_geom("fanflat_vec", geometry.detectors, np.hstack((source, behind * ray + middle, step)))
    return astra.create_proj_geom("parallel_vec", geometry.detectors, np.hstack((ray, middle, step)))


@every_case
def test_sinograms_agree(geometry: Geometry) -> None:
    x = rasterise(ellipses(), geometry.image_size, supersample=8)
    with Astra(geometry) as reference:
        ours, theirs = RayTransform(geometry)(x), reference.forward(x)
    error = relative(ours, theirs)
    assert error < WITHIN
    if isinstance(geometry, ParallelBeam):
        assert error < 1e-4  # the same discretisation: only rounding is left


@every_case
def test_no_other_orientation_agrees(geometry: Geometry) -> None:
    x = rasterise(ellipses(), geometry.image_size, supersample=8)
    with Astra(geometry) as reference:
        theirs = reference.forward(x)
    A = RayTransform(geometry)
    square = geometry.image_size[0] == geometry.image_size[1]
    turned = [flipped.rot90(k, (2, 3)) for flipped in (x, x.flip(2)) for k in (range(4) if square else (0, 2))][1:]
    assert min(relative(A(image.contiguous()), theirs) for image in turned) > 5 * WITHIN
    assert relative(A(x).flip(3), theirs) > 5 * WITHIN


@every_case
def test_transposes_agree(geometry: Geometry) -> None:
    y = ellipse_sinogram(ellipses(), geometry)
    with Astra(geometry) as reference:
        ours, theirs = RayTransform(geometry).T(y), reference.transpose(y)
    if isinstance(geometry, ParallelBeam):
        assert relative(ours, theirs) < WITHIN
    else:  # the length of a line in a pixel against interpolation between two: alike on average only
        assert relative(ours, theirs) < 0.1 and float(ours.sum()) == pytest.approx(float(theirs.sum()), rel=WITHIN)


@every_case
def test_as_near_to_the_exact_integrals_as_astra(geometry: Geometry) -> None:
    """Also on the thin skull of Shepp-Logan, where every projector of pixels is further off than on medium ellipses."""
    for objects in (ellipses(), shepp_logan_ellipses()):
        x, exact = rasterise(objects, geometry.image_size, supersample=8), ellipse_sinogram(objects, geometry)
        with Astra(geometry) as reference:
            theirs = relative(reference.forward(x), exact)
        assert relative(RayTransform(geometry)(x), exact) < 1.05 * theirs
