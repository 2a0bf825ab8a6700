"""The ray transform: its exact transpose at sizes of use, and the same numbers by either strategy in any chunks."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from geometries import GEOMETRIES, every_geometry
from rays import RANDOM, STRATEGIES, fan, normal, relative

from bdgd.checks import InputError
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform, adjoint_mismatch, ray_transform
from bdgd.operators.joseph import joseph_rows, most_entries
from bdgd.operators.on_the_fly import OnTheFly

ADJOINT = {torch.float32: 1e-5, torch.float64: 1e-12}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_dtype = pytest.mark.parametrize("dtype", ADJOINT, ids=["float32", "float64"])


# --- the transpose at sizes of use; the small ones are in test_linear_operator.py ------------------------------------


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


# --- two strategies, any chunks --------------------------------------------------------------------------------------


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


def test_copies_share_the_matrix_and_moves_do_not() -> None:
    A = RayTransform(GEOMETRIES["parallel-sparse"])
    assert copy.deepcopy(A) is A and copy.deepcopy(2 * A.T).of.of is A  # type: ignore[attr-defined]
    double = A.to(torch.float64)
    assert double.dtype == torch.float64 and double.device == A.device and A.dtype == torch.float32
    assert A.to("cpu", torch.float64).dtype == A.to(dtype=torch.float64).dtype == torch.float64 and A.to("cpu").dtype == torch.float32


# --- bad input -------------------------------------------------------------------------------------------------------


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


def test_a_source_that_grazes_the_image_is_not_projected_on_the_fly() -> None:
    """There a pixel is seen anywhere along the detector, and looking near its place would lose rays of the transpose."""
    near = FanBeam(image_size=16, angles=[0.1], detectors=40, source_to_axis=11.32, source_to_detector=20.0)
    assert not OnTheFly.handles(near) and OnTheFly.handles(replace(near, source_to_axis=30.0, source_to_detector=60.0))
    assert OnTheFly.handles(ParallelBeam(image_size=16, angles=[0.1], detectors=1, detector_spacing=0.2))
