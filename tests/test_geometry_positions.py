"""Pixels, detectors and rays lie exactly where design.md says, and the paper's detector is the paper's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from geometries import FAN, PARALLEL, every_geometry

from bdgd.operators import FanBeam, Geometry, ParallelBeam


def test_the_papers_detector() -> None:
    sparse, limited = ParallelBeam.sparse(image_size=128, views=30), ParallelBeam.limited(image_size=128, degrees=120)
    for geometry in (sparse, limited):
        assert geometry.detectors == 183
        assert geometry.detector_spacing == pytest.approx(0.98918, abs=5e-6)
        assert geometry.detectors * geometry.detector_spacing / 2 == pytest.approx(90.5097, abs=5e-5)  # half the image diagonal
        assert geometry.detector_offset == 0 and geometry.pixel_size == 1
    assert sparse.angles == pytest.approx([(v + 0.5) * math.pi / 30 for v in range(30)])
    assert limited.angles == pytest.approx([math.radians(v + 0.5) for v in range(120)])
    assert sparse == ParallelBeam.sparse() and limited == ParallelBeam.limited()


def test_the_papers_detector_grows_with_the_pixel_and_the_diagonal() -> None:
    geometry = ParallelBeam.sparse(image_size=(30, 40), views=3, pixel_size=0.2)
    assert geometry.detectors == 2 * 25 + 1
    assert geometry.detectors * geometry.detector_spacing == pytest.approx(50 * 0.2)
    assert geometry.image_radius == pytest.approx(25 * 0.2)


@every_geometry
def test_pixels_and_detectors_lie_where_the_design_says(geometry: Geometry) -> None:
    (h, w), d = geometry.image_size, geometry.detectors
    x, y = geometry.pixel_centres()
    assert x.tolist() == pytest.approx([(i - (h - 1) / 2) * geometry.pixel_size for i in range(h)])
    assert y.tolist() == pytest.approx([(j - (w - 1) / 2) * geometry.pixel_size for j in range(w)])
    positions = [(k - (d - 1) / 2) * geometry.detector_spacing + geometry.detector_offset for k in range(d)]
    assert geometry.detector_positions().tolist() == pytest.approx(positions)


@every_geometry
def test_rays_lie_where_the_design_says(geometry: Geometry) -> None:
    points, directions = geometry.rays()
    assert points.shape == directions.shape == (geometry.views, geometry.detectors, 2)
    assert torch.allclose(directions.norm(dim=-1), torch.ones((), dtype=torch.float64))
    s = geometry.detector_positions()
    for v, theta in enumerate(geometry.angles):
        cos, sin = math.cos(theta), math.sin(theta)
        if isinstance(geometry, FanBeam):
            behind = geometry.source_to_detector - geometry.source_to_axis
            start = torch.tensor([sin, -cos], dtype=torch.float64).expand(len(s), 2) * geometry.source_to_axis
            end = torch.stack((-behind * sin + s * cos, behind * cos + s * sin), -1)
        else:
            start = torch.stack((s * cos, s * sin), -1)
            end = start + torch.tensor([-sin, cos], dtype=torch.float64)
        for target in (start, end):  # each lies on its ray: what is left across the ray is zero
            away = target - points[v]
            assert (away[:, 0] * directions[v, :, 1] - away[:, 1] * directions[v, :, 0]).abs().max() < 1e-9
        assert (((end - start) * directions[v]).sum(-1) > 0).all()


@every_geometry
def test_a_point_on_a_ray_is_seen_by_its_detector(geometry: Geometry) -> None:
    points, directions = geometry.rays()
    reach = geometry.source_to_axis if isinstance(geometry, FanBeam) else 0.0  # about the middle of the image
    for distance in (reach - 1.5, reach, reach + 2.0):
        on_rays = points + distance * directions
        for v in range(geometry.views):
            seen = geometry[v].detector_coordinates(on_rays[v])[0]
            assert torch.allclose(seen, geometry.detector_positions(), atol=1e-9)


@pytest.mark.parametrize("geometry", [ParallelBeam(**PARALLEL), FanBeam(**FAN)], ids=["parallel", "fan"])
def test_an_axis_beside_the_middle_is_an_offset(geometry: Geometry) -> None:
    axis = 5.25  # the detector, counted from 0, that sees the axis
    shifted = replace(geometry, detector_offset=((geometry.detectors - 1) / 2 - axis) * geometry.detector_spacing)
    seen = float(shifted.detector_coordinates(torch.zeros(1, 2, dtype=torch.float64))[0, 0])
    assert (seen - float(shifted.detector_positions()[0])) / shifted.detector_spacing == pytest.approx(axis)
