"""The ray transform y = A x of a geometry, with its exact transpose.

Two strategies give the same numbers. `matrix` makes the rows of the matrix by `joseph_rows`, a chunk of views at a time, and keeps
them and their transposes: on a CPU fastest wherever they fit into memory. `matrix-free` has memory that does not grow with views
times pixels: it makes each chunk when it is needed and drops it, or, on a GPU with Triton, computes each weight where it is
used (`on_the_fly`), which is faster than reading it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from bdgd.backends import triton_works
from bdgd.checks import InputError, require_choice
from bdgd.operators.geometry import Geometry
from bdgd.operators.joseph import joseph_rows, most_entries
from bdgd.operators.linear import LinearOperator
from bdgd.operators.on_the_fly import OnTheFly

if TYPE_CHECKING:
    from scipy.sparse import csr_array

#: Entries of one chunk of views: large enough to keep a core busy, small enough that a few chunks are no burden.
CHUNK_ENTRIES = 1 << 24
#: The part of the device's memory that a stored matrix and its transpose may take before `auto` goes matrix-free.
MEMORY_SHARE = 1 / 3


Item = TypeVar("Item")
Result = TypeVar("Result")


class Strategy(Protocol):
    """How columns are multiplied with the matrix: images as columns (P, B), sinograms as columns (V*D, B)."""

    def forward(self, images: Tensor) -> Tensor: ...
    def transpose(self, sinograms: Tensor) -> Tensor: ...


class RayTransform(LinearOperator):
    """Line integrals of images (B, 1, H, W) along the rays of a geometry: sinograms (B, 1, V, D), in value times length.

    strategy: "matrix", "matrix-free", or "auto": matrix-free on a GPU with Triton, else a matrix if it fits into a third of the memory.
    `A.strategy` says which one is live and `A.strategy_reason` why.
    """

    def __init__(self, geometry: Geometry, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, strategy: str = "auto"):
        if not isinstance(geometry, Geometry):
            raise InputError(f"RayTransform needs a geometry such as bdgd.ParallelBeam.sparse(), got {type(geometry).__name__}")
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"RayTransform works in torch.float32 or torch.float64, got {dtype}")
        super().__init__((1, *geometry.image_size), (1, geometry.views, geometry.detectors), device, dtype)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("RayTransform was asked to run on a CUDA device, but PyTorch sees none; use device='cpu'")
        self.geometry = geometry
        self._wanted = require_choice(strategy, ("auto", "matrix", "matrix-free"), "strategy")
        self.strategy, self.strategy_reason = _choose(self._wanted, geometry, self.device, dtype)
        matrix_free = OnTheFly if _on_the_fly(geometry, self.device) else MatrixFree
        self._strategy: Strategy = (StoredMatrix if self.strategy == "matrix" else matrix_free)(geometry, self.device, dtype)

    def _apply(self, x: Tensor) -> Tensor:
        return _as_batch(self._strategy.forward(_as_columns(x)), self.range_shape)

    def _adjoint(self, y: Tensor) -> Tensor:
        return _as_batch(self._strategy.transpose(_as_columns(y)), self.domain_shape)

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may hold this operator: its kernels are our own."""
        return isinstance(self._strategy, OnTheFly)

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> RayTransform:
        """The same transform on another device, in another precision, or both: `A.to("cuda")`, `A.to(torch.float64)`."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        return RayTransform(self.geometry, self.device if device is None else device, dtype or self.dtype, self._wanted)

    def __deepcopy__(self, memo: dict[int, Any]) -> RayTransform:
        """Itself: nothing in it ever changes, so that copies of a model share one matrix."""
        return self

    def __repr__(self) -> str:
        beam = type(self.geometry).__name__
        _, views, detectors = self.range_shape
        return f"RayTransform({beam}, image {self.domain_shape[1:]}, {views} views x {detectors} detectors, {self.strategy})"


def _as_columns(batch: Tensor) -> Tensor:
    """(B, 1, n, m) as contiguous columns (n*m, B): a sparse product reads each matrix entry once for the whole batch."""
    return batch.reshape(batch.shape[0], -1).T.contiguous()


def _as_batch(columns: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Columns (n*m, B) as a batch (B, 1, n, m) without copying, so that the next operator finds columns again."""
    return columns.T.reshape(-1, *shape)


class StoredMatrix:
    """The matrix in chunks of views as compressed sparse rows with int32 indices, and each chunk's transpose beside it."""

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype):
        self.rows = list(_row_ranges(geometry))
        chunks = _in_parallel(lambda views: joseph_rows(geometry, views, dtype), _view_ranges(geometry))
        self.chunks = [_to_torch(chunk, device) for chunk in chunks]

    @cached_property
    def transposed(self) -> list[Tensor]:
        """Made on the first use of `A.T`, by a counting sort of each chunk."""
        chunks = _in_parallel(lambda chunk: _to_scipy(chunk).tocsc().T, self.chunks)
        return [_to_torch(chunk, self.chunks[0].device) for chunk in chunks]

    def forward(self, images: Tensor) -> Tensor:
        parts = [chunk @ images for chunk in self.chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def transpose(self, sinograms: Tensor) -> Tensor:
        total = self.transposed[0] @ sinograms[self.rows[0]]
        for chunk, rows in zip(self.transposed[1:], self.rows[1:], strict=True):
            total += chunk @ sinograms[rows]
        return total


class MatrixFree:
    """Each chunk of the matrix is made, used and dropped; on a CPU several at a time."""

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype):
        self.geometry, self.device, self.dtype = geometry, device, dtype
        self.parts = list(zip(_view_ranges(geometry), _row_ranges(geometry), strict=True))

    def forward(self, images: Tensor) -> Tensor:
        def product(part: tuple[range, slice]) -> Tensor:
            return _product(joseph_rows(self.geometry, part[0], self.dtype), images)

        return torch.cat(list(_in_parallel(product, self.parts)))

    def transpose(self, sinograms: Tensor) -> Tensor:
        def product(part: tuple[range, slice]) -> Tensor:
            return _product(joseph_rows(self.geometry, part[0], self.dtype), sinograms[part[1]], transpose=True)

        pixels = self.geometry.image_size[0] * self.geometry.image_size[1]
        total = torch.zeros(pixels, sinograms.shape[1], dtype=self.dtype, device=self.device)
        for images in _in_parallel(product, self.parts):
            total += images
        return total


def _product(chunk: csr_array, columns: Tensor, transpose: bool = False) -> Tensor:
    """chunk @ columns or chunk' @ columns, on the device of `columns`; SciPy needs no sorting for the transpose."""
    if columns.device.type == "cpu":
        return torch.from_numpy((chunk.T if transpose else chunk) @ columns.numpy())
    return _to_torch(chunk.tocsc().T if transpose else chunk, columns.device) @ columns


def _view_ranges(geometry: Geometry) -> Iterator[range]:
    """Consecutive views in chunks of about CHUNK_ENTRIES entries."""
    views = max(1, CHUNK_ENTRIES // most_entries(geometry))
    for first in range(0, geometry.views, views):
        yield range(first, min(first + views, geometry.views))


def _row_ranges(geometry: Geometry) -> Iterator[slice]:
    for views in _view_ranges(geometry):
        yield slice(views.start * geometry.detectors, views.stop * geometry.detectors)


def _in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order, computed as many at a time as there are cores; no more than that are held here."""
    workers = os.cpu_count() or 1
    waiting = list(items)
    if len(waiting) == 1:
        yield function(waiting[0])
        return
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(waiting), workers):
            yield from pool.map(function, waiting[first : first + workers])


def _to_torch(chunk: csr_array, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)", category=UserWarning)
        rows, columns, values = (torch.from_numpy(array).to(device) for array in (chunk.indptr, chunk.indices, chunk.data))
        return torch.sparse_csr_tensor(rows, columns, values, chunk.shape, check_invariants=False)


def _to_scipy(chunk: Tensor) -> csr_array:
    from scipy.sparse import csr_array  # slow to import, like all of SciPy: where it is needed

    arrays = tuple(t.cpu().numpy() for t in (chunk.values(), chunk.col_indices(), chunk.crow_indices()))
    return csr_array(arrays, shape=tuple(chunk.shape))


def _choose(wanted: str, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """The live strategy and the reason for it."""
    if wanted != "auto":
        return wanted, "as asked"
    entries = 0.7 * most_entries(geometry, geometry.views)  # about 0.64 of the bound lies inside a square image
    needed = 2 * entries * (4 + dtype.itemsize)  # the matrix and its transpose, an int32 column beside each value
    if _on_the_fly(geometry, device):
        return "matrix-free", "a GPU computes the weights faster than it reads them"
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()
    fits = needed <= MEMORY_SHARE * total
    verdict = "fits into" if fits else "is more than"
    return "matrix" if fits else "matrix-free", f"a matrix of {needed / 1e9:.2g} GB {verdict} a third of {total / 1e9:.3g} GB"


def _on_the_fly(geometry: Geometry, device: torch.device) -> bool:
    return triton_works(device) and OnTheFly.handles(geometry)


def machine_memory() -> float:
    """Bytes of this machine's memory; where the system does not tell (Windows), 8 GB, so that large matrices are not kept."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else 8e9
