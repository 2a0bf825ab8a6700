"""The linear operator: `A(x)`, `A.T(y)`, scaling, composition, norm, and the test that `A.T` is the transpose of `A`.

A new operator writes `_apply` and `_adjoint`; checks, differentiation and algebra are written here, once.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_count, require_device

Shape = tuple[int, ...]


class LinearOperator:
    """A linear map from batches (B, *domain_shape) to batches (B, *range_shape), differentiable both ways.

    `A.T` is one object for as long as somebody holds it, its own `.T` is `A` again, and the gradient of `A(x)` is `A.T`
    applied to the incoming gradient: nothing is ever differentiated through the implementation.
    """

    _transpose: weakref.ref[LinearOperator] | None = None

    def __init__(self, domain_shape: Shape, range_shape: Shape, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.domain_shape = tuple(domain_shape)
        self.range_shape = tuple(range_shape)
        self.device = require_device(device)
        self.dtype = dtype

    def _apply(self, x: Tensor) -> Tensor:
        """A x for x of shape (B, *domain_shape), without checks."""
        raise NotImplementedError

    def _adjoint(self, y: Tensor) -> Tensor:
        """A' y for y of shape (B, *range_shape), without checks."""
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        """A x: (B, *domain_shape) -> (B, *range_shape)."""
        require_batch(x, self.domain_shape, f"the input of {self}")
        if x.dtype != self.dtype:
            raise InputError(f"{self} works in {self.dtype}, its input is {x.dtype}; convert it with .to({self.dtype})")
        if x.device.type != self.device.type or (self.device.index is not None and x.device != self.device):
            raise InputError(f"{self} is on {self.device}, its input on {x.device}; move it with .to({str(self.device)!r})")
        result: Tensor = _Apply.apply(x, self)
        if (tuple(result.shape), result.dtype) != ((len(x), *self.range_shape), self.dtype):
            raise InputError(
                f"what {self} gives must be {self.dtype} of shape {(len(x), *self.range_shape)}, got {result.dtype} of shape"
                f" {tuple(result.shape)}; correct the method that computes it"
            )
        return result

    @property
    def T(self) -> LinearOperator:
        """The transpose A'. It holds A; A does not hold it, or only a search for cycles would free the memory of either."""
        transpose = self._transpose() if self._transpose is not None else None
        if transpose is None:
            transpose = _Transpose(self)
            self._transpose = weakref.ref(transpose)
        return transpose

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: all but the transpose, of which it makes its own."""
        return {name: value for name, value in vars(self).items() if name != "_transpose"}

    def __rmul__(self, factor: float) -> LinearOperator:
        """`factor * A`."""
        return _Scaled(self, factor)

    def __truediv__(self, divisor: float) -> LinearOperator:
        """`A / divisor`."""
        return _Scaled(self, 1.0 / divisor)

    def __matmul__(self, inner: LinearOperator) -> LinearOperator:
        """`A @ B`: first B, then A."""
        if not isinstance(inner, LinearOperator):
            raise InputError(f"A @ B is for two operators, got {type(inner).__name__}; A(x) applies one to images")
        return _Composed(self, inner)

    def norm(self, tolerance: float = 1e-6, most: int = 1000) -> float:
        """The largest singular value ||A||, see `operator_norm`."""
        return operator_norm(self, tolerance, most)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.domain_shape} -> {self.range_shape}"


class _Apply(torch.autograd.Function):
    """y = A x with the vector-Jacobian product grad_x = A' grad_y, which is differentiable in turn; also for `torch.func`."""

    @staticmethod
    def forward(x: Tensor, operator: LinearOperator) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # the operator stays in its own precision inside autocast
            return operator._apply(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, LinearOperator], output: Tensor) -> None:
        ctx.operator = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, None]:
        return ctx.operator.T(grad_y.to(ctx.operator.dtype)), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        """A is its own derivative."""
        return _Apply.apply(tangent, ctx.operator)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, operator: LinearOperator) -> tuple[Tensor, int]:
        """The mapped axis becomes part of the batch, for which an operator is made."""
        mapped = x.movedim(in_dims[0], 0)  # (N, B, *domain_shape)
        return _Apply.apply(mapped.flatten(0, 1), operator).unflatten(0, mapped.shape[:2]), 0


class _Transpose(LinearOperator):
    def __init__(self, of: LinearOperator):
        super().__init__(of.range_shape, of.domain_shape, of.device, of.dtype)
        self.of = of

    @property
    def T(self) -> LinearOperator:
        return self.of

    def _apply(self, y: Tensor) -> Tensor:
        return self.of._adjoint(y)

    def _adjoint(self, x: Tensor) -> Tensor:
        return self.of._apply(x)

    def __repr__(self) -> str:
        return f"({self.of}).T"


class _Scaled(LinearOperator):
    def __init__(self, of: LinearOperator, factor: float):
        super().__init__(of.domain_shape, of.range_shape, of.device, of.dtype)
        self.of, self.factor = of, float(factor)

    def _apply(self, x: Tensor) -> Tensor:
        return self.factor * self.of._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.factor * self.of._adjoint(y)


class _Composed(LinearOperator):
    def __init__(self, outer: LinearOperator, inner: LinearOperator):
        if outer.domain_shape != inner.range_shape:
            raise InputError(f"cannot compose: {inner} gives {inner.range_shape}, but {outer} takes {outer.domain_shape}")
        if (outer.dtype, outer.device) != (inner.dtype, inner.device):
            raise InputError(
                f"cannot compose: {inner} works in {inner.dtype} on {inner.device}, but {outer} in {outer.dtype} on {outer.device};"
                " make both with the same dtype and device"
            )
        super().__init__(inner.domain_shape, outer.range_shape, outer.device, outer.dtype)
        self.outer, self.inner = outer, inner

    def _apply(self, x: Tensor) -> Tensor:
        return self.outer._apply(self.inner._apply(x))

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner._adjoint(self.outer._adjoint(y))


def _normal(shape: Shape, operator: LinearOperator, generator: torch.Generator) -> Tensor:
    """One batch of one standard normal vector, drawn on the CPU so that it is the same on every device."""
    vector = torch.randn((1, *shape), generator=generator, dtype=torch.float64)
    return vector.to(device=getattr(operator, "device", "cpu"), dtype=getattr(operator, "dtype", torch.float32))


@torch.no_grad()
def operator_norm(operator: LinearOperator, tolerance: float = 1e-6, most: int = 1000) -> float:
    """||A|| by power iteration on A'A until the estimate changes by less than `tolerance` relatively from one step to the next.

    It grows towards ||A||; with large singular values near each other it stops earlier, some 1e-4 too small for the default tolerance.

    Works with any object that has `domain_shape`, `A(x)` and `A.T(y)`. The start vector is fixed, so the result is too.
    """
    x = _normal(operator.domain_shape, operator, torch.Generator().manual_seed(0))
    estimate = 0.0
    for _ in range(most):
        x = operator.T(operator(x / x.norm()))
        previous, estimate = estimate, float(x.norm()) ** 0.5
        if abs(estimate - previous) <= tolerance * estimate:
            return estimate
    raise InputError(
        f"the power iteration for the norm of {operator} did not settle to {tolerance:g} in {most} steps; pass a larger tolerance or most"
    )


@torch.no_grad()
def adjoint_mismatch(operator: LinearOperator, generator: torch.Generator | None = None, trials: int = 3) -> float:
    """How far `A.T` is from being the transpose of `A`: the largest over `trials` normal x, y of

        |<A x, y> - <x, A' y>| / (|A x| |y|)    and    | |A x|^2 - <x, A' A x> | / |A x|^2.

    Normal vectors see a shift by one pixel that positive ones do not; the second term sees a wrong scale that
    independent vectors, being almost orthogonal, do not. Inner products are accumulated in float64.
    """
    generator = generator or torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(require_count(trials, "trials")):
        x = _normal(operator.domain_shape, operator, generator)
        y = _normal(operator.range_shape, operator, generator)
        Ax, ATy = operator(x), operator.T(y)
        ATAx = operator.T(Ax)
        length = float(Ax.double().norm())
        if length == 0.0:
            raise InputError(f"{operator} maps a random image to zero, so its transpose cannot be judged; check that rays meet the image")
        independent = abs(_dot(Ax, y) - _dot(x, ATy)) / (length * float(y.double().norm()))
        dependent = abs(length**2 - _dot(x, ATAx)) / length**2
        if not math.isfinite(independent + dependent):  # NaN would not count as larger than 0
            raise InputError(f"{operator} or its transpose makes NaN or infinite values of a random vector; check what it computes")
        worst = max(worst, independent, dependent)
    return worst


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.double().flatten(), b.double().flatten()))
