"""The contract of every linear operator: an exact transpose, derivatives both ways, independent columns, its own precision.

A new operator enters OPERATORS and is tested that minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from geometries import GEOMETRIES
from torch import Tensor

from bdgd.checks import InputError
from bdgd.operators import LinearOperator, RayTransform, adjoint_mismatch, operator_norm


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
ADJOINT = {torch.float32: 1e-5, torch.float64: 1e-12}  # what issue 2 asks for
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}  # relative, between two orders of the same sum


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


def normal(shape: tuple[int, ...], operator: LinearOperator, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(operator.device, operator.dtype)


def images(operator: LinearOperator, generator: torch.Generator, count: int = 3) -> Tensor:
    return normal((count, *operator.domain_shape), operator, generator)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    assert float((actual - expected).norm()) <= tolerance * float(expected.norm())


def as_matrix(operator: LinearOperator) -> Tensor:
    """(n, m): every column is the operator applied to one unit vector."""
    n = math.prod(operator.domain_shape)
    units = torch.eye(n, dtype=operator.dtype, device=operator.device).reshape(n, *operator.domain_shape)
    return operator(units).reshape(n, -1).T


# --- the contract --------------------------------------------------------------------------------------------------


@every_operator
@every_dtype
def test_transpose_is_exact(make: Make, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    operator = make(device, dtype)
    assert adjoint_mismatch(operator, generator, trials=5) < ADJOINT[dtype]
    assert adjoint_mismatch(operator.T, generator) < ADJOINT[dtype]


@every_operator
def test_transpose_has_the_transposed_matrix(make: Make, device: torch.device) -> None:
    operator = make(device, torch.float64)
    assert_close(as_matrix(operator.T), as_matrix(operator).T.contiguous(), 1e-14)


@every_operator
def test_transpose_is_one_object(make: Make, device: torch.device) -> None:
    operator = make(device, torch.float32)
    assert operator.T is operator.T and operator.T.T is operator
    assert operator.T.domain_shape == operator.range_shape and operator.T.range_shape == operator.domain_shape


@every_operator
def test_derivatives_both_ways(make: Make, device: torch.device, generator: torch.Generator) -> None:
    for operator in (make(device, torch.float64), make(device, torch.float64).T):
        x = images(operator, generator, count=1).requires_grad_()
        # The matrix strategy gets the whole Jacobian, matrix-free, which is slow when it is tiny, a random projection of it.
        assert torch.autograd.gradcheck(operator, x, nondet_tol=1e-12, fast_mode="matrix-free" in repr(operator))
        assert torch.autograd.gradgradcheck(operator, x, nondet_tol=1e-12, fast_mode=True)


@every_operator
@every_dtype
def test_gradient_of_the_misfit_is_the_papers(make: Make, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    A = make(device, dtype)
    x, y = images(A, generator).requires_grad_(), images(A.T, generator)
    (gradient,) = torch.autograd.grad(0.5 * (A(x) - y).square().sum(), x)
    assert_close(gradient, A.T(A(x.detach()) - y), ROUNDING[dtype])


@every_operator
@every_dtype
def test_columns_of_a_batch_are_independent(make: Make, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    for operator in (make(device, dtype), make(device, dtype).T):
        x = images(operator, generator, count=4)
        together, apart = operator(x), torch.cat([operator(one) for one in x.split(1)])
        assert together.shape == (4, *operator.range_shape) and together.dtype == dtype and together.device == x.device
        assert_close(together, apart, ROUNDING[dtype])
        x[1] = math.nan  # a broken image stays alone
        assert torch.isfinite(operator(x)[[0, 2, 3]]).all()


@every_operator
@every_dtype
def test_non_contiguous_input(make: Make, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    operator = make(device, dtype)
    x = images(operator, generator, count=6)
    expected = operator(x[::2].contiguous())
    sliced = x[::2]
    turned = x[::2].transpose(1, -1).contiguous().transpose(1, -1)
    repeated = x[:1].expand(6, *operator.domain_shape)[:2]
    assert not sliced.is_contiguous()
    for given in (sliced, turned):
        assert_close(operator(given), expected, ROUNDING[dtype])
    assert_close(operator(repeated), expected[:1].expand(2, *operator.range_shape), ROUNDING[dtype])


@every_operator
@every_dtype
def test_input_is_left_alone_and_zero_maps_to_zero(
    make: Make, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    operator = make(device, dtype)
    x = images(operator, generator)
    before = x.clone()
    y = operator(x)
    y += 1  # the result is the caller's own
    assert torch.equal(x, before)
    assert not operator(torch.zeros_like(x)).any()


@every_operator
def test_autocast_leaves_float32(make: Make, device: torch.device, generator: torch.Generator) -> None:
    operator = make(device, torch.float32)
    x = images(operator, generator).requires_grad_()
    expected = operator(x).detach()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y = operator(x)
        assert y.dtype == torch.float32 and torch.equal(y, expected)
        low = y.flatten(1) @ y.flatten(1).T  # autocast lowers this product, and its gradient comes back to the operator
        assert low.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(low.float().sum(), x)
    assert gradient.dtype == torch.float32 and torch.isfinite(gradient).all()


# --- the adjoint test sees what it should --------------------------------------------------------------------------


class Wrong(LinearOperator):
    """A ray transform whose transpose is followed by a change."""

    def __init__(self, of: LinearOperator, change: Callable[[Tensor], Tensor]):
        super().__init__(of.domain_shape, of.range_shape, of.device, of.dtype)
        self.of, self.change = of, change

    def _apply(self, x: Tensor) -> Tensor:
        return self.of._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.change(self.of._adjoint(y))


def one_pixel_lost(x: Tensor) -> Tensor:
    x = x.clone()
    x[..., x.shape[-2] // 2, x.shape[-1] // 2] = 0
    return x


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "shifted along x": lambda x: x.roll(1, -2),
    "shifted along y": lambda x: x.roll(1, -1),
    "scaled by 1.001": lambda x: 1.001 * x,
    "scaled by 0.999": lambda x: 0.999 * x,
    "turned": lambda x: x.rot90(2, (-2, -1)),
    "negative": lambda x: -x,
    "one pixel lost": one_pixel_lost,
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("name", ["parallel-sparse", "fan-full-circle"])
@every_dtype
def test_a_wrong_transpose_is_seen(name: str, change: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> None:
    right = RayTransform(GEOMETRIES[name], device, dtype)
    assert adjoint_mismatch(right) < ADJOINT[dtype]
    wrong = Wrong(right, change)
    assert min(adjoint_mismatch(wrong, torch.Generator().manual_seed(seed), trials=1) for seed in range(10)) > 10 * ADJOINT[torch.float32]


def test_the_size_of_a_scale_error_is_what_comes_back(device: torch.device) -> None:
    wrong = Wrong(RayTransform(GEOMETRIES["parallel-sparse"], device, torch.float64), lambda x: 1.001 * x)
    assert adjoint_mismatch(wrong) == pytest.approx(1e-3, rel=1e-6)


def test_adjoint_mismatch_repeats_itself_and_takes_a_generator(device: torch.device) -> None:
    operator = RayTransform(GEOMETRIES["fan-full-circle"], device)
    assert adjoint_mismatch(operator) == adjoint_mismatch(operator)
    generator = torch.Generator().manual_seed(5)
    assert adjoint_mismatch(operator, generator) != adjoint_mismatch(operator, generator)


def test_an_operator_without_rays_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="maps a random image to zero, so its transpose cannot be judged; check that"):
        adjoint_mismatch(Dense(torch.zeros(3, 4)))


# --- algebra and norm ----------------------------------------------------------------------------------------------


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


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch's own rules for jvp
@every_operator
def test_function_transforms(make: Make, device: torch.device, generator: torch.Generator) -> None:
    """torch.func through A and A.T: a mapped axis joins the batch wherever it stands, and A is its own derivative."""
    A = make(device, torch.float64)
    x = torch.randn((2, 3, *A.domain_shape), generator=generator, dtype=torch.float64).to(device)
    wanted = torch.stack([A(part) for part in x])
    assert torch.allclose(torch.func.vmap(A)(x), wanted, atol=1e-12)
    assert torch.allclose(torch.func.vmap(A, in_dims=1)(x.movedim(0, 1)), wanted, atol=1e-12)
    assert torch.allclose(torch.func.vmap(torch.func.vmap(lambda v: A(v[None])[0]))(x), wanted, atol=1e-12)
    value, tangent = torch.func.jvp(A, (x[0],), (x[1],))
    assert torch.allclose(value, wanted[0], atol=1e-12) and torch.allclose(tangent, wanted[1], atol=1e-12)
    product = torch.func.jvp(torch.func.grad(lambda v: 0.5 * A(v).square().sum()), (x[0],), (x[1],))[1]  # a Hessian's
    assert torch.allclose(product, A.T(wanted[1]), atol=1e-9)


# --- bad input -----------------------------------------------------------------------------------------------------

X = (3, 1, 7, 13)  # a batch of images of the geometry "parallel-random-offset"

BAD: dict[str, tuple[object, str]] = {
    "a list": ([[0.0]], r"must be a torch tensor of shape \(B, 1, 7, 13\), got list; convert it with torch\.as_tensor"),
    "whole numbers": (torch.zeros(X, dtype=torch.int64), r"must be floating point, got torch\.int64; convert it with \.to\("),
    "complex": (torch.zeros(X, dtype=torch.complex64), r"must be floating point, got torch\.complex64; convert"),
    "one image": (torch.zeros(7, 13), r"must have shape \(B, 1, 7, 13\), got \(7, 13\); add batch and channel axes with \[None, None\]"),
    "no batch axis": (torch.zeros(1, 7, 13), r"must have shape \(B, 1, 7, 13\), got \(1, 7, 13\); add the batch axis with \[None\]"),
    "no channel axis": (torch.zeros(3, 7, 13), r"must have shape \(B, 1, 7, 13\), got \(3, 7, 13\); add the channel axis with \[:, None\]"),
    "sides swapped": (torch.zeros(3, 1, 13, 7), r"must have shape \(B, 1, 7, 13\), got \(3, 1, 13, 7\); check that it belongs"),
    "colours": (torch.zeros(3, 3, 7, 13), r"must have shape \(B, 1, 7, 13\), got \(3, 3, 7, 13\); check that it belongs"),
    "a sinogram": (torch.zeros(3, 1, 6, 17), r"must have shape \(B, 1, 7, 13\), got \(3, 1, 6, 17\); check that it belongs"),
    "nothing": (torch.zeros(0, 1, 7, 13), r"is empty: shape \(0, 1, 7, 13\) holds no image; pass a batch of at least one"),
    "too precise": (torch.zeros(X, dtype=torch.float64), r"works in torch\.float32, its input is torch\.float64; convert it with \.to\("),
    "half": (torch.zeros(X, dtype=torch.float16), r"works in torch\.float32, its input is torch\.float16; convert it with \.to\("),
    "elsewhere": (torch.zeros(X, device="meta"), r"is on cpu, its input on meta; move it with \.to\('cpu'\)"),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(value: object, message: str) -> None:
    operator = ray(torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match=message) as caught:
        operator(value)  # type: ignore[arg-type]
    assert "RayTransform(ParallelBeam" in str(caught.value) and "\n" not in str(caught.value)


def test_bad_input_of_the_transpose_is_named() -> None:
    with pytest.raises(InputError, match=r"input of \(RayTransform\(.*\)\)\.T must have shape \(B, 1, 6, 17\), got \(3, 1, 7, 13\)"):
        ray(torch.device("cpu"), torch.float32).T(torch.zeros(X))
