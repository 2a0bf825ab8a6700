"""What the ray transform measures: pixels where design.md says, and the exact line integrals of ellipses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from geometries import GEOMETRIES, every_geometry
from rays import RANDOM, STRATEGIES, fan, normal, relative

from bdgd.data import Ellipses, ellipse_sinogram, rasterise
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform

# --- where a pixel goes, by the formulas of design.md ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["parallel-sparse", "parallel-random-offset", "fan-full-circle", "fan-random-offset"])
def test_a_pixel_is_seen_where_the_design_says(name: str, device: torch.device) -> None:
    geometry = replace(GEOMETRIES[name], detectors=150, detector_spacing=GEOMETRIES[name].pixel_size / 3)
    (h, w), pixel = geometry.image_size, geometry.pixel_size
    A = RayTransform(geometry, device, torch.float64)
    s = [(d - (150 - 1) / 2) * geometry.detector_spacing + geometry.detector_offset for d in range(150)]
    for i, j in ((1, 1), (h - 2, 1), (2, w - 3), (h // 2, w // 2)):
        image = torch.zeros(1, *A.domain_shape, dtype=torch.float64, device=device)
        image[0, 0, i, j] = 1.0
        x, y = (i - (h - 1) / 2) * pixel, (j - (w - 1) / 2) * pixel
        for v, view in enumerate(A(image)[0, 0].cpu()):
            theta = geometry.angles[v]
            expected = x * math.cos(theta) + y * math.sin(theta)
            if isinstance(geometry, FanBeam):
                depth = geometry.source_to_axis - x * math.sin(theta) + y * math.cos(theta)
                expected *= geometry.source_to_detector / depth
            if s[0] + 2 * pixel < expected < s[-1] - 2 * pixel:
                centroid = float((view * torch.tensor(s)).sum() / view.sum())
                assert centroid == pytest.approx(expected, abs=0.1 * pixel)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rays_along_the_grid_sum_rows_and_columns(strategy: str, generator: torch.Generator) -> None:
    geometry = ParallelBeam(image_size=(6, 9), angles=[0, math.pi / 2, math.pi], detectors=9, pixel_size=0.5, detector_spacing=0.5)
    A = RayTransform(geometry, dtype=torch.float64, strategy=strategy)
    x = torch.rand((1, 1, 6, 9), generator=generator, dtype=torch.float64)
    y = A(x)[0, 0]
    assert torch.allclose(y[1], 0.5 * x[0, 0].sum(0))  # theta = pi/2: s = y, the rays run along x
    # theta = 0: s = x; 9 detectors over 6 pixels lie half-way between pixels, where Joseph takes the mean of both
    columns = torch.nn.functional.pad(0.5 * x[0, 0].sum(1), (2, 2))
    assert torch.allclose(y[0], (columns[:-1] + columns[1:]) / 2)
    assert torch.allclose(y[2], y[0].flip(0))  # theta + pi sees the same lines from the other side


def test_mass_is_kept_in_every_view(device: torch.device) -> None:
    ellipses = medium_ellipses(count=2)
    geometry = replace(ParallelBeam.sparse(image_size=64, views=9, pixel_size=0.3), detector_offset=0.11)
    x = rasterise(ellipses, 64, supersample=4).to(device)
    mass = RayTransform(geometry, device)(x).sum(-1) * geometry.detector_spacing
    assert torch.allclose(mass, x.sum((-2, -1))[..., None] * 0.3**2, rtol=2e-3)


@every_geometry
def test_a_longer_unit_of_length_scales_the_integrals(geometry: Geometry, device: torch.device, generator: torch.Generator) -> None:
    lengths = [name for name in ("detector_spacing", "detector_offset", "pixel_size", "source_to_axis", "source_to_detector")]
    scaled = replace(geometry, **{name: 2.5 * getattr(geometry, name) for name in lengths if hasattr(geometry, name)})
    A, B = RayTransform(geometry, device, torch.float64), RayTransform(scaled, device, torch.float64)
    x = normal(A.domain_shape, A, generator)
    assert relative(B(x), 2.5 * A(x)) < 1e-12


@every_geometry
def test_views_are_sliced_with_the_geometry(geometry: Geometry, device: torch.device, generator: torch.Generator) -> None:
    A, B = RayTransform(geometry, device), RayTransform(geometry[::2], device)
    x = normal(A.domain_shape, A, generator)
    assert relative(B(x), A(x)[:, :, ::2]) <= 1e-6


def test_a_source_far_away_is_a_parallel_beam() -> None:
    parallel = ParallelBeam(image_size=(20, 24), angles=RANDOM, detectors=31, detector_offset=0.4)
    far = FanBeam(image_size=(20, 24), angles=RANDOM, detectors=31, detector_offset=0.4, source_to_axis=1e7, source_to_detector=1e7)
    x = torch.rand((1, 1, 20, 24), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert relative(RayTransform(far, dtype=torch.float64)(x), RayTransform(parallel, dtype=torch.float64)(x)) < 1e-5


def test_rays_beside_the_image_see_nothing() -> None:
    geometry = ParallelBeam(image_size=8, angles=[0.1, 0.9], detectors=5, detector_offset=1e12)
    for strategy in STRATEGIES:
        A = RayTransform(geometry, strategy=strategy)
        assert not A(torch.ones(1, 1, 8, 8)).any() and not A.T(torch.ones(1, 1, 2, 5)).any()


# --- against exact integrals -----------------------------------------------------------------------------------------


def medium_ellipses(count: int) -> Ellipses:
    """Six overlapping ellipses per image, with half-axes from 1/10 to 1/4 of the image's side."""
    u = torch.rand((count, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Ellipses(value=0.2 + u[..., 0], half_axes=0.2 + 0.3 * u[..., 1:3], centre=u[..., 3:5] - 0.5, rotation=math.pi * u[..., 5])


ANALYTIC: list[tuple[Geometry, str, float]] = [
    (ParallelBeam.sparse(image_size=128, views=30), "matrix", 7.5e-3),
    (ParallelBeam.limited(image_size=128, degrees=120), "matrix-free", 7.5e-3),
    (fan(128, 30), "matrix", 7.5e-3),
    (fan(128, 30), "matrix-free", 7.5e-3),
    (ParallelBeam.sparse(image_size=512, views=12), "matrix", 1.9e-3),
    (fan(512, 12), "matrix-free", 1.9e-3),
]


@pytest.mark.parametrize(("geometry", "strategy", "most"), ANALYTIC)
def test_line_integrals_of_ellipses(geometry: Geometry, strategy: str, most: float, device: torch.device) -> None:
    ellipses = medium_ellipses(count=8)
    x = rasterise(ellipses, geometry.image_size, supersample=8).to(device)
    y = RayTransform(geometry, device, strategy=strategy)(x).cpu()
    assert relative(y, ellipse_sinogram(ellipses, geometry)) <= most


OFF_CENTRE: dict[str, Geometry] = {
    "parallel": ParallelBeam(
        image_size=(128, 161), angles=RANDOM, detectors=300, detector_spacing=0.25, detector_offset=4.4, pixel_size=0.3
    ),
    "fan": FanBeam(
        image_size=(128, 161),
        angles=RANDOM,
        detectors=300,
        detector_spacing=0.4,
        detector_offset=-5.1,
        pixel_size=0.3,
        source_to_axis=60.0,
        source_to_detector=95.0,
    ),
    "fan, source at the corner of the image": FanBeam(
        image_size=128, angles=RANDOM, detectors=500, detector_offset=9.0, source_to_axis=91.0, source_to_detector=180.0
    ),
}


@pytest.mark.parametrize("geometry", OFF_CENTRE.values(), ids=OFF_CENTRE.keys())
def test_line_integrals_with_offset_pixel_size_and_two_sides(geometry: Geometry, device: torch.device) -> None:
    ellipses = medium_ellipses(count=4)
    x = rasterise(ellipses, geometry.image_size, supersample=8).to(device)
    y = RayTransform(geometry, device)(x).cpu()
    assert relative(y, ellipse_sinogram(ellipses, geometry)) <= 7.5e-3
    assert relative(y, ellipse_sinogram(ellipses, replace(geometry, detector_offset=0.0))) > 0.1  # the offset has a say


def test_error_falls_with_the_pixel_size() -> None:
    errors = []
    for size in (64, 128, 256):
        geometry = ParallelBeam.sparse(image_size=size, views=16)
        x = rasterise(medium_ellipses(count=8), size, supersample=8)
        errors.append(relative(RayTransform(geometry)(x), ellipse_sinogram(medium_ellipses(count=8), geometry)))
    assert errors[1] < 0.6 * errors[0] and errors[2] < 0.6 * errors[1]


def test_the_papers_norms(device: torch.device) -> None:
    assert RayTransform(ParallelBeam.sparse(), device).norm() == pytest.approx(61.22, abs=0.01)
    assert RayTransform(ParallelBeam.limited(), device).norm() == pytest.approx(123.47, abs=0.01)
