"""The one list of operators that the contract runs on: a new operator entered here is tested that minute."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from geometries import GEOMETRIES
from torch import Tensor

from bdgd.operators import LinearOperator, RayTransform


class Dense(LinearOperator):
    """Any matrix (n, m) as an operator from (1, m) to (1, n): what an operator of one's own looks like."""

    def __init__(self, matrix: Tensor):
        super().__init__((1, matrix.shape[1]), (1, matrix.shape[0]), matrix.device, matrix.dtype)
        self.matrix = matrix

    def _apply(self, x: Tensor) -> Tensor:
        return x @ self.matrix.T

    def _adjoint(self, y: Tensor) -> Tensor:
        return y @ self.matrix


Make = Callable[[torch.device, torch.dtype], LinearOperator]
STRATEGIES = ("matrix", "matrix-free")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ADJOINT = {torch.float32: 1e-5, torch.float64: 1e-12}


def dense(device: torch.device, dtype: torch.dtype, rows: int = 5, columns: int = 7) -> Dense:
    matrix = torch.randn((rows, columns), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Dense(matrix.to(device, dtype))


def ray_transform(name: str, strategy: str, device: torch.device, dtype: torch.dtype) -> RayTransform:
    return RayTransform(GEOMETRIES[name], device, dtype, strategy)


def ray(device: torch.device, dtype: torch.dtype) -> RayTransform:
    return ray_transform("parallel-random-offset", "matrix", device, dtype)


OPERATORS: dict[str, Make] = {
    "dense": dense,
    "scaled": lambda device, dtype: -0.3 * ray(device, dtype),
    "divided": lambda device, dtype: dense(device, dtype) / 7.5,
    "transposed": lambda device, dtype: ray(device, dtype).T,
    "composed": lambda device, dtype: dense(device, dtype, 4, 5) @ dense(device, dtype, 5, 7),
    "normal": lambda device, dtype: ray(device, dtype).T @ (2 * ray(device, dtype)),
    **{f"{name}-{strategy}": partial(ray_transform, name, strategy) for name in GEOMETRIES for strategy in STRATEGIES},
}

every_operator = pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS.keys())
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    assert float((actual - expected).norm()) <= tolerance * float(expected.norm())


def as_matrix(operator: LinearOperator) -> Tensor:
    """(n, m): every column is the operator applied to one unit vector."""
    n = math.prod(operator.domain_shape)
    units = torch.eye(n, dtype=operator.dtype, device=operator.device).reshape(n, *operator.domain_shape)
    return operator(units).reshape(n, -1).T
