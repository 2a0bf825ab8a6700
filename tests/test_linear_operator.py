"""The contract of every linear operator: an exact transpose, derivatives both ways, independent columns, its own precision."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import pytest
import torch
from linear_operators import ADJOINT, Make, as_matrix, assert_close, every_dtype, every_operator, ray
from torch import Tensor

from bdgd.checks import InputError
from bdgd.operators import LinearOperator, adjoint_mismatch

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}  # relative, between two orders of the same sum


def images(operator: LinearOperator, generator: torch.Generator, count: int = 3) -> Tensor:
    shape = (count, *operator.domain_shape)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(operator.device, operator.dtype)


# --- the contract ----------------------------------------------------------------------------------------------------


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


# --- bad input -------------------------------------------------------------------------------------------------------


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


@every_operator
def test_an_operator_is_freed_when_it_is_dropped(make: Make, device: torch.device, generator: torch.Generator) -> None:
    """Without a search for cycles, which does not know how large a matrix is."""
    operator = make(device, torch.float32)
    operator.T(operator(images(operator, generator)))
    gone, collecting = weakref.ref(operator), gc.isenabled()
    gc.disable()
    try:
        del operator
        assert gone() is None
    finally:
        if collecting:
            gc.enable()


def test_a_copy_has_a_transpose_of_its_own() -> None:
    operator = ray(torch.device("cpu"), torch.float32)
    halved = operator / 2
    transpose = halved.T
    twin = copy.copy(halved)
    assert twin.T is not transpose and twin.T.T is twin
