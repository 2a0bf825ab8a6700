"""Scaled and composed operators are scaled and multiplied matrices, and the norm is the largest singular value."""

from __future__ import annotations

import pytest
import torch
from linear_operators import Dense, Make, as_matrix, assert_close, dense, every_dtype, every_operator, ray
from torch import Tensor

from bdgd.checks import InputError
from bdgd.operators import adjoint_mismatch, operator_norm


def test_scaling_and_composition_are_those_of_matrices(device: torch.device) -> None:
    inner, outer = ray(device, torch.float64), dense(device, torch.float64, 4, 3)
    middle = Dense(torch.ones(3, 5, dtype=torch.float64, device=device))
    a, m, o = as_matrix(inner), middle.matrix, outer.matrix
    assert_close(as_matrix(2.5 * inner), 2.5 * a, 1e-14)
    assert_close(as_matrix(inner / 4), a / 4, 1e-14)
    assert_close(as_matrix((2.5 * inner).T), 2.5 * a.T, 1e-14)
    assert_close(as_matrix(outer @ middle), o @ m, 1e-14)
    assert_close(as_matrix((outer @ middle).T), (o @ m).T, 1e-14)
    assert_close(as_matrix(inner.T @ inner), a.T @ a, 1e-13)
    assert_close(as_matrix(-1 * (inner @ inner.T) / 3), -(a @ a.T) / 3, 1e-13)


def test_what_does_not_fit_is_not_composed() -> None:
    with pytest.raises(InputError, match=r"cannot compose: .* gives \(1, 5\), but .* takes \(1, 7\)"):
        dense(torch.device("cpu"), torch.float32) @ dense(torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match=r"cannot compose: .* works in torch\.float64 on cpu, but .* in torch\.float32 .*; make both with"):
        dense(torch.device("cpu"), torch.float32, 4, 5) @ dense(torch.device("cpu"), torch.float64, 5, 7)


@every_operator
@every_dtype
def test_norm_is_the_largest_singular_value(make: Make, dtype: torch.dtype, device: torch.device) -> None:
    operator = make(device, dtype)
    largest = float(torch.linalg.matrix_norm(as_matrix(operator).double(), 2))
    norm = operator.norm()
    assert norm == pytest.approx(largest, rel=1e-4)
    assert norm <= largest * (1 + 1e-6)  # power iteration comes from below


def test_norm_of_a_scaled_and_of_a_zero_operator(device: torch.device) -> None:
    operator = ray(device, torch.float64)
    assert operator.norm() == operator.norm() == operator_norm(operator)
    assert operator.T.norm() == pytest.approx(operator.norm(), rel=1e-4)
    assert (operator / operator.norm()).norm() == pytest.approx(1, rel=1e-6)
    assert (-2 * operator).norm() == pytest.approx(2 * operator.norm(), rel=1e-6)
    assert Dense(torch.zeros(3, 4)).norm() == 0


def test_norm_that_does_not_settle_says_so() -> None:
    with pytest.raises(InputError, match="did not settle to 1e-12 in 3 steps; pass a larger tolerance or most"):
        dense(torch.device("cpu"), torch.float64).norm(tolerance=1e-12, most=3)


def test_norm_and_adjoint_test_take_foreign_operators() -> None:
    """Any object with domain_shape, range_shape, A(x) and A.T(y) will do."""

    class Doubling:
        domain_shape = range_shape = (1, 4, 4)

        def __call__(self, x: Tensor) -> Tensor:
            return 2 * x

        T = property(lambda self: self)

    foreign = Doubling()
    assert operator_norm(foreign) == pytest.approx(2)  # type: ignore[arg-type]
    assert adjoint_mismatch(foreign) < 1e-6  # type: ignore[arg-type]
