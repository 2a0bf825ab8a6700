"""What a model leaves unexplained of a scan, as an image: the smooth rest, which can be added to a posterior.

A model draws what it was trained on: a material of one value, holes that are empty. A real scanner adds scatter and a hardening that no
law undoes quite, so that A mean misses y by more than noise. The rest is the image that explains this best while it is smooth, except
across the edges that the mean has:

    rest = argmin_d  1/2 |A1 d - r1|^2 + weight / 2 sum_e g_e (d_i - d_j)^2,    A1 = A / |A|,  r1 = (y - A mean) / |A|

over the pairs e = (i, j) of neighbouring pixels, with g_e = 1 / (1 + ((mean_i - mean_j) / (EDGE value_scale))^2), by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bdgd.checks import InputError, require_positive
from bdgd.inference.posterior import Posterior
from bdgd.models import Reconstructor
from bdgd.operators import operator_norm

#: Of the weights 0.03 to 3 and the edges 0.02 and 0.1, those that came closest to what the left-out views show, on three scans of the
#: Helsinki challenge with 60 views (ta, 04b and 07b); on ta alone the choice is the same.
WEIGHT, EDGE = 0.1, 0.1
#: Conjugate gradients end when the squared residual has fallen to this part, or after so many steps.
TOLERANCE, STEPS = 1e-8, 200


@torch.no_grad()
def smooth_rest(model: Reconstructor, y: Tensor, mean: Tensor, weight: float = WEIGHT) -> Tensor:
    """The rest (B, 1, H, W) of sinograms y (B, 1, V, D) that the images `mean` leave, in their unit."""
    A, weight = model.A, require_positive(weight, "weight")
    norm2 = operator_norm(A) ** 2
    along = [1 / (1 + (torch.diff(mean, dim=axis) / (EDGE * model.value_scale)) ** 2) for axis in (2, 3)]

    def normal(d: Tensor) -> Tensor:
        return A.T(A(d)) / norm2 + weight * _roughness(d, *along)

    return _conjugate_gradients(normal, A.T(y - A(mean)) / norm2)


def explain_rest(model: Reconstructor, y: Tensor, posterior: Posterior, weight: float = WEIGHT) -> Posterior:
    """The posterior with the smooth rest of its sinograms added to the mean and to every draw, at most so much that the mean stays above 0.

    Variances stay, so intervals move along and keep their widths. They are not calibrated any more: a calibration was made without a
    rest, and where a model was right, its rest is noise.
    """
    model.check(y)
    if len(y) != len(posterior.mean):
        raise InputError(f"there are {len(y)} sinograms and {len(posterior.mean)} posteriors; pass each posterior with its own sinogram")
    rest = torch.maximum(smooth_rest(model, y, posterior.mean, weight), -posterior.mean)
    moved = replace(posterior.origin, moved=True)
    return replace(posterior, mean=posterior.mean + rest, replay=lambda: (draw + rest for draw in posterior.draws()), origin=moved)


def _roughness(d: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """The gradient of 1/2 sum_e g_e (d_i - d_j)^2, with the weights g of the pairs along either axis."""
    rough = torch.zeros_like(d)
    for axis, g in ((2, down), (3, across)):
        flow = g * torch.diff(d, dim=axis)
        rough.narrow(axis, 1, flow.shape[axis]).add_(flow)
        rough.narrow(axis, 0, flow.shape[axis]).sub_(flow)
    return rough


def _conjugate_gradients(matrix: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """x with matrix(x) = b for a positive definite matrix, for each image of the batch by itself."""
    x, residual, direction = torch.zeros_like(b), b, b
    size = first = _squares(b)
    for _ in range(STEPS):
        if bool((size <= TOLERANCE * first).all()):
            break
        image = matrix(direction)
        step = size / _dot(direction, image).clamp(min=1e-30)
        x, residual = x + step * direction, residual - step * image
        size, before = _squares(residual), size
        direction = residual + size / before.clamp(min=1e-30) * direction
    return x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2, 3), keepdim=True)


def _squares(v: Tensor) -> Tensor:
    return _dot(v, v)
