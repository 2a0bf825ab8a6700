"""Total variation by the primal-dual algorithm of Chambolle and Pock (J. Math. Imaging Vis. 40, 2011).

    minimise over x >= 0    |A x - y|^2 / (2 |A|^2) + weight * TV(x),    TV(x) = sum over pixels of |(D x)_ij|

with D the forward differences to the next row and column (0 at the last: Neumann boundary) and |A| the operator's norm.
Written as a saddle point, with a dual image p of the data and a dual field q of the differences,

    min over x >= 0, max over p and |q_ij| <= weight    <A x - y, p> - |A|^2 |p|^2 / 2 + <D x, q>.

At the solution p is the scaled residual (A x - y) / |A|^2, q a subgradient of weight * TV, and A'p + D'q = 0 where x > 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite, require_operator, require_positive
from bdgd.operators import LinearOperator, operator_norm

#: |D|^2 is below 8: two differences, each with two neighbours.
GRADIENT_NORM2 = 8.0
#: Over-relaxation z + 1.8 (z_new - z); any factor below 2 converges (Condat 2013), 1 is the plain algorithm and takes 1.6 times as long.
RELAXATION = 1.8
#: Iterations between two evaluations of the gap, which costs about one.
CHECK_EVERY = 20
#: The primal step of the first iterations, and the factor of all later ones, see `Problem.balanced_step`.
FIRST_STEP, BALANCE = 10.0, 0.2
#: The gap is taken over images up to this multiple of the largest value of x.
BOX = 1.5


@dataclass(frozen=True, eq=False)
class TVResult:
    """What `solve_tv` found: image (B, 1, H, W) and, per image (B,), how good it is.

    objective: the minimised function at `image`. gap: the minimum is not lower than objective - gap (see `solve_tv`).
    iterations: how many it took. converged: whether the gap went below the tolerance.
    """

    image: Tensor
    objective: Tensor
    gap: Tensor
    iterations: Tensor
    converged: Tensor


class Iterate(NamedTuple):
    """The primal x (B, 1, H, W) and the duals p (B, 1, V, D) and q (B, 2, H, W)."""

    x: Tensor
    p: Tensor
    q: Tensor

    def select(self, keep: Tensor) -> Iterate:
        return Iterate(*(_select(part, keep) for part in self))


class Steps(NamedTuple):
    """Of one iteration, each (B, 1, 1, 1): sigma_A is that of the data, after which p shrinks, and sigma_D that of the differences."""

    tau: Tensor
    of_data: Tensor
    shrink: Tensor
    of_differences: Tensor


@dataclass(frozen=True, eq=False)
class Problem:
    """One objective per image of the batch; `tau`, sums and bounds are (B, 1, 1, 1)."""

    A: LinearOperator
    y: Tensor
    weight: float
    isotropic: bool
    nonnegative: bool
    norm: float  # |A|
    coupling: float  # the norm of A'A / |A|^2 + D'D / 8, between 1 and 2
    least_bound: Tensor  # what c is at least: an image of 0 must not make the gap trivial

    @classmethod
    def of(cls, A: LinearOperator, y: Tensor, weight: float, isotropic: bool, nonnegative: bool) -> Self:
        require_operator(A, "tv")
        if len(A.domain_shape) != 3 or A.domain_shape[0] != 1:
            raise InputError(f"tv needs an operator on images (1, H, W), but {A} takes {tuple(A.domain_shape)}")
        require_batch(y, A.range_shape, "the sinogram")
        dtype, device = getattr(A, "dtype", y.dtype), torch.device(getattr(A, "device", y.device))
        if (y.dtype, y.device.type) != (dtype, device.type):
            raise InputError(f"the sinogram is {y.dtype} on {y.device}, but {A} works in {dtype} on {device}; convert it with .to")
        require_finite(y, "the sinogram")
        weight = require_positive(weight, "weight")
        norm = operator_norm(A)
        coupling = 1.01 * max(1.0, operator_norm(_Coupling(A, norm, y), tolerance=1e-3))  # a power iteration ends a little low
        back_projected = A.T(y) / norm**2
        y = torch.empty_like(A(back_projected)).copy_(y)  # laid out in memory as the operator's results are
        return cls(A, y, weight, isotropic, nonnegative, norm, coupling, _largest(back_projected))

    def start(self, image: Tensor | None) -> Iterate:
        """x = image or 0, p its residual, q = 0."""
        x = torch.zeros_like(self.A.T(self.y))
        if image is not None:
            require_batch(image, self.A.domain_shape, "start")
            if len(image) != len(self.y):
                raise InputError(f"start must hold one image per sinogram, got {len(image)} images and {len(self.y)} sinograms")
            require_finite(image, "start")
            x.copy_(image)
        return Iterate(x, (self.A(x) - self.y) / self.norm**2, _gradient(torch.zeros_like(x)))

    def steps(self, tau: Tensor) -> Steps:
        """The primal step tau with dual steps as large as tau |sigma_A A'A + sigma_D D'D| <= 1 allows."""
        sigma = 1 / (tau * self.coupling)
        return Steps(tau, sigma / self.norm**2, 1 / (1 + sigma), sigma / GRADIENT_NORM2)

    def step(self, z: Iterate, by: Steps) -> Iterate:
        """One iteration, in few operations: on a GPU small images wait for each of them to be launched."""
        x = self._nonnegative(torch.addcmul(z.x, by.tau, self.A.T(z.p) + _gradient_transposed(z.q), value=-1))
        x_bar = torch.lerp(z.x, x, 2.0)  # 2 x - z.x
        p = torch.addcmul(z.p, by.of_data, self.A(x_bar) - self.y).mul_(by.shrink)
        q = self._at_most_weight(torch.addcmul(z.q, by.of_differences, _gradient(x_bar)))
        return Iterate(x, p, q)

    def _nonnegative(self, x: Tensor) -> Tensor:
        return x.clamp_(min=0) if self.nonnegative else x

    def _at_most_weight(self, q: Tensor) -> Tensor:
        """q projected on |q_ij| <= weight, in the norm dual to that of TV."""
        if not self.isotropic:
            return q.clamp_(-self.weight, self.weight)
        return q.div_((torch.hypot(q[:, :1], q[:, 1:]) / self.weight).clamp_(min=1))

    def objective_and_gap(self, z: Iterate) -> tuple[Tensor, Tensor]:
        """Both (B, 1, 1, 1), by the formulas of `solve_tv`."""
        residual, Dx = (self.A(z.x) - self.y) / self.norm, _gradient(z.x)
        lengths = torch.hypot(Dx[:, :1], Dx[:, 1:]) if self.isotropic else Dx.abs().sum(1, keepdim=True)
        w = self.A.T(z.p) + _gradient_transposed(z.q)
        c = torch.maximum(BOX * _largest(z.x), self.least_bound)
        lowest = c * (w.clamp(max=0) if self.nonnegative else -w.abs())  # the least of w x over the box, pixel by pixel
        of_data = _sum((residual - self.norm * z.p).square()) / 2
        gap = of_data + _sum(self.weight * lengths - (Dx * z.q).sum(1, keepdim=True)) + _sum(w * z.x - lowest)
        return _sum(residual.square()) / 2 + self.weight * _sum(lengths), gap

    def balanced_step(self, z: Iterate) -> Tensor:
        """tau = 0.2 |x| / sqrt(|A| |p| * sqrt(8) |q|): the primal step for which x, p and q arrive together.

        After N iterations the gap is at most (|x - x_0|^2 / tau + |z - z_0|^2 / sigma) / (2 N) for a dual z with step sigma = 1 / tau
        (Theorem 1), which is least at tau = |x - x_0| / |z - z_0|. The two duals, each in the unit of its step, ask for different
        ones: p, of the size of the noise, for a smaller step than q, of the size of the weight. Their geometric mean serves both;
        the factor, because most of x is found in the first iterations: 0.1 takes twice as long on measured arcs and is a fifth quicker
        for views all around.
        """
        p, q = self.norm * _sum(z.p.square()).sqrt(), GRADIENT_NORM2**0.5 * _sum(z.q.square()).sqrt()
        tau = BALANCE * _sum(z.x.square()).sqrt() / (p * q).sqrt()
        return torch.where((tau > 0) & tau.isfinite(), tau, FIRST_STEP)  # an x, p or q of 0 says nothing

    def select(self, keep: Tensor) -> Problem:
        return replace(self, y=_select(self.y, keep), least_bound=_select(self.least_bound, keep))


def minimise(problem: Problem, z: Iterate, tolerance: float, most_iterations: int) -> tuple[Iterate, TVResult]:
    """Iterate from z until every image is done; returns the last means of x, p and q beside the result.

    The gap belongs to the means over the last CHECK_EVERY iterations, as in the paper's Theorem 1: there it is several times smaller.
    tau is set anew after 1, 2, 4, 8 ... checks, ever more rarely, so that it cannot keep the iteration from converging.
    """
    found = Iterate(*(torch.empty_like(part) for part in z))
    objective, gap = z.x.new_zeros(len(z.x)), z.x.new_zeros(len(z.x))
    iterations, converged = z.x.new_zeros(len(z.x), dtype=torch.int64), z.x.new_zeros(len(z.x), dtype=torch.bool)
    active = torch.arange(len(z.x), device=z.x.device)  # which images the shrinking batch holds
    tau = z.x.new_full((len(z.x), 1, 1, 1), FIRST_STEP)
    for check, before in enumerate(range(0, most_iterations, CHECK_EVERY), start=1):
        count = min(CHECK_EVERY, most_iterations - before)
        z, mean = _iterate(problem, z, tau, count)
        value, bound = (per_image.flatten() for per_image in problem.objective_and_gap(mean))
        objective[active], gap[active], iterations[active] = value, bound, before + count
        converged[active] = bound <= tolerance * value
        done = converged[active] | (before + count == most_iterations)
        if bool(done.any()):
            for whole, part in zip(found, mean.select(done), strict=True):
                whole[active[done]] = part
            active, problem, z, mean, tau = active[~done], problem.select(~done), z.select(~done), mean.select(~done), _select(tau, ~done)
        if not len(active):
            break
        if check.bit_count() == 1:
            tau = problem.balanced_step(mean)
    return found, TVResult(found.x, objective, gap, iterations, converged)


def _iterate(problem: Problem, z: Iterate, tau: Tensor, count: int) -> tuple[Iterate, Iterate]:
    """z after `count` over-relaxed iterations, and the mean of the points they computed."""
    mean, steps = Iterate(*(torch.zeros_like(part) for part in z)), problem.steps(tau)
    for _ in range(count):
        new = problem.step(z, steps)
        z = Iterate(*(torch.lerp(old, part, RELAXATION) for old, part in zip(z, new, strict=True)))
        for total, part in zip(mean, new, strict=True):
            total.add_(part, alpha=1 / count)
    return z, mean


class _Coupling(LinearOperator):
    """A'A / |A|^2 + D'D / 8. The first acts on smooth images and the second on rough ones, so its norm is often close to 1."""

    def __init__(self, A: LinearOperator, norm: float, like: Tensor):
        super().__init__(A.domain_shape, A.domain_shape, like.device, like.dtype)
        self.A, self.A_norm = A, norm

    def _apply(self, x: Tensor) -> Tensor:
        return self.A.T(self.A(x)) / self.A_norm**2 + _gradient_transposed(_gradient(x)) / GRADIENT_NORM2

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._apply(y)


def _gradient(x: Tensor) -> Tensor:
    """D x (B, 2, H, W): the differences to the next row and to the next column, 0 from the last one."""
    differences = torch.zeros_like(x.expand(-1, 2, -1, -1))
    torch.sub(x[..., 1:, :], x[..., :-1, :], out=differences[:, :1, :-1])
    torch.sub(x[..., 1:], x[..., :-1], out=differences[:, 1:, :, :-1])
    return differences


def _gradient_transposed(q: Tensor) -> Tensor:
    """D'q (B, 1, H, W), for a q whose differences from the last row and column are 0."""
    image = -(q[:, :1] + q[:, 1:])
    image[..., 1:, :] += q[:, :1, :-1]
    image[..., 1:] += q[:, 1:, :, :-1]
    return image


def _sum(values: Tensor) -> Tensor:
    """Per image, (B, 1, 1, 1)."""
    return values.sum((1, 2, 3), keepdim=True)


def _largest(x: Tensor) -> Tensor:
    """The largest |value| per image, (B, 1, 1, 1)."""
    return x.abs().amax((1, 2, 3), keepdim=True)


def _select(batch: Tensor, keep: Tensor) -> Tensor:
    """batch[keep] in the memory layout of `batch`, which has the batch as its fastest axis where A keeps its batches as columns."""
    return batch.movedim(0, -1)[..., keep].movedim(-1, 0)
