"""Monte-Carlo inference: draws through the model, and their moments in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_choice, require_count
from bdgd.inference.posterior import Origin, Posterior
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import DeepGradientDescent, Reconstructor, ScaleMixture, State

#: Images, each under each draw, that go through a block of a GPU together: enough to fill it.
FILL = 64


def reconstruct(
    model: Reconstructor,
    y: Tensor,
    draws: int = 100,
    *,
    generator: torch.Generator | None = None,
    draw: str = "weights",
    blocks: int | None = None,
) -> Posterior:
    """The posterior of the images behind sinograms y (B, 1, V, D), from `draws` Monte-Carlo draws.

    draw: "weights" draws each block's weights once per draw, for the whole image; "pixels" draws the output of each last
    layer independently in every pixel, as the authors' code does. blocks: use only the first blocks of the cascade.
    """
    used = _length(model) if blocks is None else blocks
    return reconstruct_blocks(model, y, (used,), draws, generator=generator, draw=draw)[used]


def reconstruct_blocks(
    model: Reconstructor,
    y: Tensor,
    at: Sequence[int],
    draws: int = 100,
    *,
    generator: torch.Generator | None = None,
    draw: str = "weights",
) -> dict[int, Posterior]:
    """The posteriors after several blocks, counted from 1, from the same draws in one pass: how the image comes about."""
    model.check(y)
    count = require_count(draws, "draws") if model.random else 1  # without randomness every draw is the same
    require_choice(draw, ("weights", "pixels"), "draw")
    seed, at = seed_from(generator), _chosen_blocks(model, at)
    frozen, sinograms = model.snapshot(), y.detach().clone(memory_format=torch.contiguous_format)  # what is replayed must not change
    running = [Moments() for _ in at]
    for images in _draws(frozen, sinograms, count, seed, draw, at):
        for moments_, image in zip(running, images, strict=True):
            moments_.add(image)

    def replay(block: int) -> Callable[[], Iterator[Tensor]]:
        return lambda: (images[0] for images in _draws(frozen, sinograms, count, seed, draw, (block,)))

    posteriors = {}
    for block, moments_ in zip(at, running, strict=True):
        mean, epistemic = moments_.mean(), moments_.variance()
        mixture = error_mixture(frozen, sinograms, mean, epistemic, block)
        how = Origin(draw, frozen.calibration, complete=block == _length(frozen))
        posteriors[block] = Posterior(mean, epistemic, mixture.variance(), count, seed, replay(block), mixture, how)
    return posteriors


@torch.no_grad()
def error_mixture(model: Reconstructor, y: Tensor, mean: Tensor, epistemic: Tensor, block: int) -> ScaleMixture:
    """What the data leave open in every pixel: the scale head's mixture after the last block, else the block's constant sigma^2."""
    if model.scale_head is not None and block == _length(model):
        parts = zip(y, mean, epistemic, strict=True) if y.device.type == "cpu" else ((y, mean, epistemic),)  # see `_draws`
        heads = [model.scale_head(model.clues(*(t.reshape(-1, *t.shape[-3:]) for t in part))) for part in parts]
        return ScaleMixture(torch.cat([h.log_weights for h in heads]), torch.cat([h.variances for h in heads]))
    level = model.blocks[block - 1].log_noise.detach().exp() if isinstance(model, DeepGradientDescent) else model.noise_level
    return ScaleMixture.gaussian((level**2).to(mean).expand_as(mean).clone())


def _length(model: Reconstructor) -> int:
    return len(model.blocks) if isinstance(model, DeepGradientDescent) else 1


def _chosen_blocks(model: Reconstructor, at: Sequence[int]) -> tuple[int, ...]:
    available = _length(model)
    chosen = tuple(sorted({require_count(block, "blocks") for block in at}))
    if not chosen or chosen[-1] > available:
        raise InputError(f"blocks must be at most {available}, the length of the cascade, got {chosen[-1] if chosen else 'none'}")
    return chosen


class Moments:
    """Mean and variance of a stream of tensors by Welford's update, in float64; memory does not grow with its length."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: Tensor) -> None:
        self.count, self.dtype, value = self.count + 1, value.dtype, value.double()
        if self.count == 1:
            self._mean, self._squares = value, torch.zeros_like(value)
            return
        step = value - self._mean
        self._mean = self._mean + step / self.count
        self._squares = self._squares + step * (value - self._mean)

    def mean(self) -> Tensor:
        return self._mean.to(self.dtype)

    def variance(self) -> Tensor:
        """S - 1 in the denominator; 0 for one draw."""
        return (self._squares / max(self.count - 1, 1)).to(self.dtype)


@torch.no_grad()
def _draws(model: Reconstructor, y: Tensor, count: int, seed: int, mode: str, at: tuple[int, ...]) -> Iterator[list[Tensor]]:
    """The draws in order, each as the images (B, 1, H, W) after the blocks `at`.

    On a GPU several draws go together. On a CPU every image and draw goes alone: the rounding of a convolution depends on
    the batch, and results must not.
    """
    alone = y.device.type == "cpu"
    parts = y.split(1) if alone else (y,)
    if not isinstance(model, DeepGradientDescent):
        yield [torch.cat([model(part) for part in parts])]
        return
    starts = [model.begin(part) for part in parts]
    # All draws share the first block's input, so its features are computed once.
    features = [model.blocks[0].features(state.x, state.gradient) for state in starts]
    together = 1 if alone else max(1, FILL // len(y))
    for first in range(0, count, together):
        numbers = range(first, min(first + together, count))
        updates = [_Update(model, k, seed, numbers, mode) for k in range(at[-1])]
        paths = [_path(model, *start, updates, at) for start in zip(parts, starts, features, strict=True)]
        for s in range(len(numbers)):  # x_0, where every update was undone, may be below 0
            yield [torch.cat([path[k][s] for path in paths]).clamp(min=0) for k in range(len(at))]


def _path(
    model: DeepGradientDescent, y: Tensor, start: State, features: Tensor, updates: list[_Update], at: tuple[int, ...]
) -> list[Tensor]:
    """The images (S, B, 1, H, W) after the blocks `at`, from one part of the batch under S draws."""
    draws, images = updates[0].draws, len(y)

    def repeated(tensor: Tensor) -> Tensor:  # draw after draw, each with all images
        return tensor.repeat(draws, *[1] * (tensor.ndim - 1))

    y, state, path = repeated(y), State(*(repeated(tensor) for tensor in start)), []
    for k, update in enumerate(updates):
        h = repeated(features) if k == 0 else update.block.features(state.x, state.gradient)
        state = model.settle(state, update(state.x, h, images), y)
        if k + 1 in at:
            path.append(state.x.unflatten(0, (draws, images)))
    return path


class _Update:
    """The update of one block in several draws, each with weights or noise from its key (seed, draw, block)."""

    def __init__(self, model: DeepGradientDescent, k: int, seed: int, draws: range, mode: str):
        self.block, self.mode, self.draws = model.blocks[k], mode, len(draws)
        last, size = self.block.last, model.A.domain_shape[1:]
        generators = [keyed_generator(seed, "draw", s, k) for s in draws]
        made = [last.draw(1, g) if mode == "weights" else last.local_noise(1, (size[0], size[1]), g) for g in generators]
        self.made = torch.cat(made).to(model.device)  # (S, ...)

    def __call__(self, x: Tensor, features: Tensor, images: int) -> Tensor:
        """The next images (S * B, 1, H, W), draw after draw."""
        made = self.made if self.draws == 1 else self.made.repeat_interleave(images, 0)
        if self.mode == "weights":
            return self.block.update(x, features, made)
        return F.relu(x + self.block.last(features, made))
