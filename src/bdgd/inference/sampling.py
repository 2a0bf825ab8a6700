"""Monte-Carlo inference: draws through the model, and their moments in one pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_choice, require_count
from bdgd.inference.posterior import Posterior
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import DeepGradientDescent, Reconstructor


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
    model.check(y)
    count = require_count(draws, "draws")
    require_choice(draw, ("weights", "pixels"), "draw")
    seed = seed_from(generator)
    if not model.random:
        count = 1  # every draw is the same
    used = _blocks_used(model, blocks)
    frozen, sinograms = model.snapshot(), y.detach().clone(memory_format=torch.contiguous_format)  # what is replayed must not change

    def replay() -> Iterator[Tensor]:
        return _draws(frozen, sinograms, count, seed, draw, used)

    mean, variance = moments(replay())
    log_noise = model.blocks[used - 1].log_noise if isinstance(model, DeepGradientDescent) else model.noise_level.log()
    aleatoric = torch.exp(2 * log_noise.detach()).to(mean).expand_as(mean).clone()
    return Posterior(mean, variance, aleatoric, count, seed, replay)


def _blocks_used(model: Reconstructor, blocks: int | None) -> int:
    available = len(model.blocks) if isinstance(model, DeepGradientDescent) else 1
    used = available if blocks is None else require_count(blocks, "blocks")
    if used > available:
        raise InputError(f"blocks must be at most {available}, the length of the cascade, got {used}")
    return used


def moments(draws: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance (S - 1 in the denominator; 0 for one draw) of a stream, by Welford's update in float64."""
    count, mean, squares, dtype = 0, torch.zeros(()), torch.zeros(()), torch.float32
    for sample in draws:
        count, dtype, value = count + 1, sample.dtype, sample.double()
        step = value - mean if count > 1 else value
        mean = mean + step / count if count > 1 else value
        squares = squares + step * (value - mean) if count > 1 else torch.zeros_like(value)
    return mean.to(dtype), (squares / max(count - 1, 1)).to(dtype)


@torch.no_grad()
def _draws(model: Reconstructor, y: Tensor, count: int, seed: int, mode: str, used: int) -> Iterator[Tensor]:
    """The draws in order, each (B, 1, H, W).

    On a CPU every image goes alone: the rounding of a convolution depends on the batch, and results must not.
    """
    parts = y.split(1) if y.device.type == "cpu" else (y,)
    if not isinstance(model, DeepGradientDescent):
        yield torch.cat([model(part) for part in parts])
        return
    starts = [model.begin(part) for part in parts]
    # All draws share the first block's input, so its features are computed once.
    features = [model.blocks[0].features(state.x, state.gradient) for state in starts]
    for s in range(count):
        updates = [_Update(model, k, seed, s, mode) for k in range(used)]
        states = [model.settle(state, updates[0](state.x, h), part) for state, h, part in zip(starts, features, parts, strict=True)]
        for n, part in enumerate(parts):
            for update in updates[1:]:
                state = states[n]
                states[n] = model.settle(state, update(state.x, update.block.features(state.x, state.gradient)), part)
        yield torch.cat([state.x for state in states]).clamp(min=0)  # x_0, where every update was undone, may be below


class _Update:
    """The update of one block in one draw, with weights or noise from the key (seed, draw, block)."""

    def __init__(self, model: DeepGradientDescent, k: int, seed: int, s: int, mode: str):
        self.block = model.blocks[k]
        generator = keyed_generator(seed, "draw", s, k)
        if mode == "weights":
            self.weights = self.block.last.draw(1, generator)
        else:
            height, width = model.A.domain_shape[1:]
            self.noise = self.block.last.local_noise(1, (height, width), generator).to(model.device)
        self.mode = mode

    def __call__(self, x: Tensor, features: Tensor) -> Tensor:
        if self.mode == "weights":
            return self.block.update(x, features, self.weights)
        return F.relu(x + self.block.last(features, self.noise))
