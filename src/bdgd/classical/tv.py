"""Total variation: the image that fits the data and has few edges, and the choice of how few.

    minimise over x >= 0    |A x - y|^2 / (2 |A|^2) + weight * TV(x)

`saddle_point` minimises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count, require_positive
from bdgd.classical.saddle_point import Problem, TVResult, minimise
from bdgd.data import Scans
from bdgd.metrics import psnr
from bdgd.operators import LinearOperator


@dataclass(frozen=True)
class TVWeight:
    """What `choose_tv_weight` found: the best weight, and the curve of mean PSNR over the weights that were tried."""

    weight: float
    weights: tuple[float, ...]
    psnr: tuple[float, ...]


def tv(
    A: LinearOperator,
    y: Tensor,
    weight: float = 1e-4,
    *,
    isotropic: bool = True,
    nonnegative: bool = True,
    start: Tensor | None = None,
    tolerance: float = 1e-3,
    most_iterations: int = 5000,
) -> Tensor:
    """The image (B, 1, H, W) of sinograms y (B, 1, V, D) of least |A x - y|^2 / (2 |A|^2) + weight * TV(x), x >= 0.

    weight: since A is divided by its norm, the unit of length and the number of views do not matter; the unit of the
    image's values does: for an image ten times as bright, ten times the weight gives ten times the result. 1e-4 suits
    values up to 1 and 1 % noise; `choose_tv_weight` finds it. isotropic: |(a, b)| is sqrt(a^2 + b^2), else |a| + |b|.
    start: an image to start from instead of 0, such as the result for another weight; it saves time, the result stays.
    The rest is explained in `solve_tv`, which also tells how far each image converged. Neither gives gradients.
    """
    return solve_tv(
        A, y, weight, isotropic=isotropic, nonnegative=nonnegative, start=start, tolerance=tolerance, most_iterations=most_iterations
    ).image


@torch.no_grad()
def solve_tv(
    A: LinearOperator,
    y: Tensor,
    weight: float = 1e-4,
    *,
    isotropic: bool = True,
    nonnegative: bool = True,
    start: Tensor | None = None,
    tolerance: float = 1e-3,
    most_iterations: int = 5000,
) -> TVResult:
    """`tv` with its objective, gap and number of iterations, for any operator with domain_shape (1, H, W), `A(x)` and `A.T(y)`.

    An image is done when its primal-dual gap is at most `tolerance` times its objective, or after `most_iterations`;
    it then leaves the batch, so that no image depends on the others. With x >= 0 the plain gap is infinite unless
    w = A'p + D'q >= 0 exactly, so the minimum is compared over the box 0 <= x <= c (or |x| <= c) with c = 1.5 max(x):

        gap = |(A x - y) / |A| - |A| p|^2 / 2  +  weight TV(x) - <D x, q>  +  <w, x> + c sum of max(-w, 0)   (or c sum of |w|),

    three terms that are never negative and vanish when p is the residual, q the subgradient and x stationary. By convexity,
    an image beyond the box, of largest value m, is lower than objective - gap by at most the factor (m - max x) / (c - max x).
    """
    problem = Problem.of(A, y, weight, isotropic, nonnegative)
    z = problem.start(start)
    return minimise(problem, z, require_positive(tolerance, "tolerance"), require_count(most_iterations, "most_iterations"))[1]


@torch.no_grad()
def choose_tv_weight(
    A: LinearOperator,
    scans: Scans,
    weights: Sequence[float] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
    *,
    isotropic: bool = True,
    nonnegative: bool = True,
    tolerance: float = 1e-3,
    most_iterations: int = 5000,
    data_range: float = 1.0,
) -> TVWeight:
    """The weight of `weights` whose `tv` images have the highest mean PSNR on validation scans, with the whole curve.

    Images that some weight matches exactly, as an empty one, tell nothing and are left out.
    The weights are tried from the largest down, each starting from the solution (x, p, q) of the one before.
    """
    if not isinstance(scans, Scans):
        raise InputError(f"choosing a TV weight needs Scans, images with their sinograms, got {type(scans).__name__}; see bdgd.simulate")
    if scans.images is None:
        raise InputError("choosing a TV weight needs scans with their true images, got scans without; simulate validation scans")
    if not weights:
        raise InputError("weights is empty; pass a grid such as (1e-5, 3e-5, 1e-4, 3e-4)")
    tolerance, most_iterations = require_positive(tolerance, "tolerance"), require_count(most_iterations, "most_iterations")
    tried = sorted({require_positive(weight, "weight") for weight in weights}, reverse=True)
    problem = Problem.of(A, scans.sinograms, tried[0], isotropic, nonnegative)
    z, found = problem.start(None), dict[float, Tensor]()
    for weight in tried:
        z = z._replace(q=z.q * (weight / problem.weight))  # keeps |q| <= weight, and q as a subgradient
        problem = replace(problem, weight=weight)
        z, result = minimise(problem, z, tolerance, most_iterations)
        found[weight] = psnr(result.image, scans.images, data_range)
    telling = torch.stack(tuple(found.values())).isfinite().all(0)
    if not telling.any():
        raise InputError("every image is matched exactly by some weight, so none tells which is best; take scans with an object in them")
    curve = {weight: float(values[telling].mean()) for weight, values in found.items()}
    best = max(curve, key=curve.__getitem__)
    return TVWeight(best, tuple(sorted(curve)), tuple(curve[weight] for weight in sorted(curve)))
