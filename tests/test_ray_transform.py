"""The ray transform: right line integrals at the right place, the same numbers from both strategies and any chunking."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from geometries import GEOMETRIES
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import Ellipses, ellipse_sinogram, rasterise
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform, adjoint_mismatch, ray_transform
from bdgd.operators.joseph import joseph_rows, most_entries

STRATEGIES = ("matrix", "matrix-free")
ADJOINT = {torch.float32: 1e-5, torch.float64: 1e-12}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}

every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_dtype = pytest.mark.parametrize("dtype", ADJOINT, ids=["float32", "float64"])

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


# --- the transpose at sizes of use; the small ones are in test_linear_operator.py -------------------------------------

MIDDLING: dict[str, Geometry] = {
    "the paper's sparse view": ParallelBeam.sparse(),
    "the paper's limited view": ParallelBeam.limited(degrees=60),
    "parallel, odd": ParallelBeam(
        image_size=(97, 131), angles=RANDOM, detectors=151, detector_spacing=0.37, detector_offset=3.3, pixel_size=0.4
    ),
    "fan": fan(64, 30),
    "fan, odd": replace(fan(101, 1), image_size=(101, 67), angles=tuple(RANDOM), detector_offset=-7.7, pixel_size=1.3),
}


@pytest.mark.parametrize("geometry", MIDDLING.values(), ids=MIDDLING.keys())
@every_strategy
@every_dtype
def test_transpose_is_exact(geometry: Geometry, strategy: str, dtype: torch.dtype, device: torch.device) -> None:
    assert adjoint_mismatch(RayTransform(geometry, device, dtype, strategy)) < ADJOINT[dtype]


# --- two strategies, any chunks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", [*GEOMETRIES.values(), *MIDDLING.values()], ids=[*GEOMETRIES, *MIDDLING])
@every_dtype
def test_strategies_give_the_same_numbers(geometry: Geometry, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    matrix, free = (RayTransform(geometry, device, dtype, strategy) for strategy in STRATEGIES)
    assert (matrix.strategy, free.strategy) == STRATEGIES
    x, y = normal(matrix.domain_shape, matrix, generator), normal(matrix.range_shape, matrix, generator)
    assert relative(free(x), matrix(x)) <= ROUNDING[dtype]
    assert relative(free.T(y), matrix.T(y)) <= ROUNDING[dtype]


@every_geometry
@every_strategy
@pytest.mark.parametrize("views_per_chunk", [0.01, 1, 2.5], ids=["less than a view", "one view", "two views"])
@every_dtype
def test_chunks_change_nothing(
    geometry: Geometry,
    strategy: str,
    views_per_chunk: float,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = RayTransform(geometry, device, dtype, strategy)
    monkeypatch.setattr(ray_transform, "CHUNK_ENTRIES", int(views_per_chunk * most_entries(geometry)))
    assert len(list(ray_transform._view_ranges(geometry))) == math.ceil(geometry.views / max(1, int(views_per_chunk)))
    chunked = RayTransform(geometry, device, dtype, strategy)
    x, y = normal(whole.domain_shape, whole, generator), normal(whole.range_shape, whole, generator)
    assert relative(chunked(x), whole(x)) <= ROUNDING[dtype]
    assert relative(chunked.T(y), whole.T(y)) <= ROUNDING[dtype]
    assert adjoint_mismatch(chunked) < ADJOINT[dtype]


def test_matrix_free_never_holds_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = ParallelBeam.sparse(image_size=32, views=40)
    limit = 3 * most_entries(geometry)
    sizes: list[int] = []

    def spy(part: Geometry, views: range, dtype: torch.dtype):  # type: ignore[no-untyped-def]
        chunk = joseph_rows(part, views, dtype)
        sizes.append(chunk.nnz)
        return chunk

    monkeypatch.setattr(ray_transform, "CHUNK_ENTRIES", limit)
    monkeypatch.setattr(ray_transform, "joseph_rows", spy)
    A = RayTransform(geometry, strategy="matrix-free")
    assert sizes == []  # nothing is made before it is needed
    A(torch.ones(1, 1, 32, 32))
    assert len(sizes) == 14 and max(sizes) <= limit
    A.T(torch.ones(1, *A.range_shape))
    assert len(sizes) == 28


def test_the_strategy_is_chosen_by_memory(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = GEOMETRIES["parallel-sparse"]
    A = RayTransform(geometry, device)
    assert A.strategy == "matrix" and "GB fits into a third of" in A.strategy_reason and "matrix)" in repr(A)
    monkeypatch.setattr(ray_transform, "MEMORY_SHARE", 0.0)
    A = RayTransform(geometry, device)
    assert A.strategy == "matrix-free" and "GB is more than a third of" in A.strategy_reason and "matrix-free)" in repr(A)
    assert RayTransform(geometry, device, strategy="matrix").strategy_reason == "as asked"


def test_large_problems_are_matrix_free() -> None:
    assert RayTransform(ParallelBeam.sparse(image_size=4096, views=4000)).strategy == "matrix-free"


def test_to_another_precision_keeps_the_rest(device: torch.device) -> None:
    A = RayTransform(GEOMETRIES["fan-random-offset"], strategy="matrix-free")
    B = A.to(device, torch.float64)
    assert (B.geometry, B.strategy, B.dtype, B.device) == (A.geometry, "matrix-free", torch.float64, device)
    x = torch.ones(1, *A.domain_shape)
    assert relative(B(x.double().to(device)).cpu().float(), A(x)) < 1e-6
    assert A.to(device).dtype == torch.float32


def test_rows_are_int32_and_of_the_asked_precision() -> None:
    for dtype, number in ((torch.float32, np.float32), (torch.float64, np.float64)):
        rows = joseph_rows(GEOMETRIES["fan-wide-angle"], range(1, 3), dtype)
        assert rows.shape == (2 * 25, 80) and rows.dtype == number and rows.indices.dtype == rows.indptr.dtype == np.int32
        assert rows.nnz <= most_entries(GEOMETRIES["fan-wide-angle"], 2)
        assert (rows.data >= 0).all() and np.isfinite(rows.data).all()


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


# --- against exact integrals ---------------------------------------------------------------------------------------


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


def test_copies_share_the_matrix_and_moves_do_not() -> None:
    A = RayTransform(GEOMETRIES["parallel-sparse"])
    assert copy.deepcopy(A) is A and copy.deepcopy(2 * A.T).of.of is A  # type: ignore[attr-defined]
    double = A.to(torch.float64)
    assert double.dtype == torch.float64 and double.device == A.device and A.dtype == torch.float32
    assert A.to("cpu", torch.float64).dtype == A.to(dtype=torch.float64).dtype == torch.float64 and A.to("cpu").dtype == torch.float32


# --- bad input -----------------------------------------------------------------------------------------------------


def test_bad_arguments() -> None:
    geometry = GEOMETRIES["parallel-sparse"]
    with pytest.raises(InputError, match=r"needs a geometry such as bdgd\.ParallelBeam\.sparse\(\), got dict"):
        RayTransform(geometry.to_dict())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"works in torch\.float32 or torch\.float64, got torch\.float16"):
        RayTransform(geometry, dtype=torch.float16)
    with pytest.raises(InputError, match="strategy must be one of 'auto', 'matrix', 'matrix-free', got 'gpu'"):
        RayTransform(geometry, strategy="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the CUDA device that the test wants absent")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(InputError, match="CUDA device, but PyTorch sees none; use device='cpu'"):
        RayTransform(GEOMETRIES["parallel-sparse"], device="cuda")
