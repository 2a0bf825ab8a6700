"""What the tests of models and inference share: a bare operator, the moments that a last layer states, a small model and its draws."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor

from bdgd.inference import Moments, Posterior
from bdgd.models import LAST_LAYERS, DeepGradientDescent, LearnedPrimalDual, Reconstructor, cascade
from bdgd.models.last_layers import PointLayer
from bdgd.operators import ParallelBeam, RayTransform

KINDS = list(LAST_LAYERS)
RANDOM_KINDS = [kind for kind, layer in LAST_LAYERS.items() if layer.random]
#: how draws are made, and every kind of random layer with each of them
MODES = ["weights", "pixels"]
RANDOM_CASES = [(kind, mode) for kind in RANDOM_KINDS for mode in MODES]
#: every model there is, by the name that `small_model` takes
MODELS = [*KINDS, "primal_dual"]
#: those without randomness, which are run once
ONE_DRAW = [name for name in MODELS if name not in RANDOM_KINDS]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class DenseOperator:
    """The least that a model may ask of an operator: two shapes, A(x), A.T(y). No device, no dtype, no geometry, no algebra."""

    def __init__(self, matrix: Tensor, domain_shape: tuple[int, ...], range_shape: tuple[int, ...]):
        self.matrix, self.domain_shape, self.range_shape = matrix, domain_shape, range_shape

    def __call__(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix.T).reshape(-1, *self.range_shape)

    @property
    def T(self) -> DenseOperator:
        return DenseOperator(self.matrix.T, self.range_shape, self.domain_shape)


def dense(A: RayTransform) -> DenseOperator:
    """The same map as a bare operator."""
    pixels = math.prod(A.domain_shape)
    columns = A(torch.eye(pixels, dtype=A.dtype).reshape(pixels, *A.domain_shape)).flatten(1)  # (P, V*D), the transpose of the matrix
    return DenseOperator(columns.T.contiguous(), A.domain_shape, A.range_shape)


def small_transform(size: int | tuple[int, int] = 16, views: int = 5, pixel_size: float = 1.0) -> RayTransform:
    return RayTransform(ParallelBeam.sparse(image_size=size, views=views, pixel_size=pixel_size))


def some_sinograms(A: RayTransform | DenseOperator, count: int = 3, seed: int = 1) -> Tensor:
    """Sinograms of random images in [0, 1]."""
    return A(torch.rand(count, *A.domain_shape, generator=torch.Generator().manual_seed(seed)))


def fill(layer: PointLayer, seed: int = 0, spread: float = 0.3) -> PointLayer:
    """The layer with no parameter left at a special value such as zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return layer


def small_model(name: str = "mean_field", A: RayTransform | DenseOperator | None = None, blocks: int = 2) -> Reconstructor:
    """An untrained model whose draws differ well above rounding, with known noise levels exp(-4), exp(-5), ... per block."""
    A = A or small_transform()
    if name == "primal_dual":
        model = LearnedPrimalDual(A, iterations=2)
        model.log_noise.fill_(-4)
        return model
    descent = DeepGradientDescent(A, blocks=blocks, last_layer=name)
    with torch.no_grad():
        for k, block in enumerate(descent.blocks):
            fill(block.last, seed=k, spread=0.1)
            for name, parameter in block.last.named_parameters():
                parameter.sub_(3 if name.startswith("log") else 0)  # standard deviations of about exp(-3)
            block.last.bias.fill_(0.05)  # so that many pixels are above zero
            block.log_noise.fill_(-4 - k)
    return descent


@contextlib.contextmanager
def no_update_undone() -> Iterator[None]:
    """Without the cascade's guard against divergence, which undoes most updates of an untrained block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cascade, "MOST_GROWTH", math.inf)
        yield


def stated_moments(kind: str, layer: PointLayer) -> tuple[Tensor, Tensor]:
    """Mean (n,) and covariance (n, n) of the flattened weights, from the formulas and not from the code; a new kind needs its own."""
    mean, n = layer.weight.detach().flatten(), layer.weight.numel()
    if kind == "point":
        return mean, torch.zeros(n, n, dtype=mean.dtype)
    if kind == "mean_field":
        return mean, torch.diag(torch.exp(layer.log_std.detach().flatten()) ** 2)
    if kind == "dropout":
        # Var[w z / (1 - r)] with z ~ Bernoulli(1 - r)
        return mean, torch.diag(mean**2 * layer.rate / (1 - layer.rate))
    if kind == "full_covariance":
        factor = torch.diag(layer.log_diagonal.detach().exp())
        entries = iter(layer.below_diagonal.tolist())
        for i in range(n):
            for j in range(i):
                factor[i, j] = next(entries)
        return mean, factor @ factor.T
    raise AssertionError(f"last layer {kind!r} is new: write its mean and covariance here, so that its draws are tested")


def quick_model(kind: str = "mean_field", size: int = 8) -> DeepGradientDescent:
    """One block on a bare operator, which costs little beside it: for many draws."""
    model = small_model(kind, dense(small_transform(size)), blocks=1)
    model.initial = lambda A, y: 0.05 * A.T(y)
    return model


def moments(stream: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of a stream of draws."""
    running = Moments()
    for value in stream:
        running.add(value)
    return running.mean(), running.variance()


def same_posterior(one: Posterior, other: Posterior) -> bool:
    """Bit for bit."""
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("mean", "epistemic", "aleatoric", "std"))
