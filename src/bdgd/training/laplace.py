"""A Gaussian posterior of the last layers in closed form, after training: Laplace's approximation on fixed features.

With the features of a block fixed and before its final ReLU, the update is linear in the n = 144 weights w of the last layer.
For truth = x + Phi w + bias + noise, one row of Phi per pixel of all training images, noise N(0, sigma_k^2) and prior N(0, I),

    precision of w = Phi' Phi / (kl_weight sigma_k^2) + I

exactly, and the truth itself is not needed: it decides the mean only, which stays as it was trained. Pixels that the ReLU cuts
off are counted as if it did not, so the posterior is, if anything, too sure of itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_positive
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import DeepGradientDescent, GradientBlock
from bdgd.models.last_layers import FullCovarianceLayer
from bdgd.training.frontier import Frontier, require_cascade

#: Images whose patches lie in memory together: 144 float64 per pixel, 300 MB for 128 x 128 pixels.
IMAGES = 16


@torch.no_grad()
def laplace(
    model: DeepGradientDescent, scans: Scans, *, kl_weight: float = 1.0, generator: torch.Generator | None = None
) -> DeepGradientDescent:
    """The cascade with the closed-form posterior in every last layer, a `full_covariance` model; the given one is not changed.

    model: trained, with any last layer; its mean weights and noise levels are kept, its scale head and calibration are not, since
    they hold for other draws. scans: those it was trained on, with their images. As in greedy training the images are pushed
    through one block after the other, with one draw of the new weights per image. kl_weight: as in training, 1 is Bayes' rule.
    """
    require_cascade(model)
    kl_weight = require_positive(kl_weight, "kl_weight")
    if not all(bool(block.log_noise.isfinite()) for block in model.blocks):
        raise InputError("laplace needs the noise level of every block, and this model has none; train it first")
    result = DeepGradientDescent(model.A, **model.arguments() | {"last_layer": "full_covariance"}, initial=model.initial).to(model.device)
    result.load_state_dict(model.state_dict(), strict=False)  # all but what describes the spread of the last layers
    frontier, seed = Frontier.at_start(result, scans), seed_from(generator)
    for k, block in enumerate(result.blocks):
        tempered = kl_weight * float(block.log_noise.double().exp()) ** 2
        spread(block.last, gram_matrix(_features(block, frontier)) / tempered)
        frontier.move(frontier.behind(result, block, keyed_generator(seed, "laplace", k)))
    result.correction = model.correction
    result.provenance = {**model.provenance, "laplace": {"images": len(scans), "kl_weight": kl_weight, "seed": seed}}
    return result.eval()


def gram_matrix(features: Iterable[Tensor]) -> Tensor:
    """Phi' Phi (n, n) in float64 of features in batches (B, C, H, W), n = 9 C: the 3 x 3 patches around all pixels, zero outside.

    Weights are numbered as `weight.flatten()` has them: feature by feature, row by row of the 3 x 3.
    """
    total: Tensor | None = None
    for batch in features:
        patches = F.unfold(batch.double(), 3, padding=1).transpose(0, 1).flatten(1)  # (n, B P)
        product = patches @ patches.T
        total = product if total is None else total + product
    if total is None:
        raise InputError("the features of at least one image are needed, got none")
    return total


def covariance_factor(precision: Tensor) -> Tensor:
    """The lower triangular L with L L' = the inverse of a positive definite precision (n, n), which is never formed.

    With the order of the weights reversed, precision = U U' for an upper triangular U; L is the transpose of its inverse.
    """
    upper = torch.linalg.cholesky(precision.flip(0, 1)).flip(0, 1)
    identity = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
    return torch.linalg.solve_triangular(upper, identity, upper=True).T


@torch.no_grad()
def spread(layer: torch.nn.Module, information: Tensor) -> None:
    """Give a full-covariance layer the posterior of precision `information` (n, n) + I around its mean, in place."""
    assert isinstance(layer, FullCovarianceLayer)
    factor = covariance_factor(information + torch.eye(len(information), dtype=information.dtype, device=information.device))
    rows, columns = torch.tril_indices(len(factor), len(factor), -1, device=factor.device)
    layer.log_diagonal.copy_(factor.diag().log())
    layer.below_diagonal.copy_(factor[rows, columns])


def _features(block: GradientBlock, frontier: Frontier) -> Iterable[Tensor]:
    """What the block's last layer sees of all images, a few at a time."""
    for x, gradient in zip(frontier.state.x.split(IMAGES), frontier.state.gradient.split(IMAGES), strict=True):
        yield block.features(x, gradient)
