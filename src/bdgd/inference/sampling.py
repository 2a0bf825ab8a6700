"""Monte-Carlo inference: draws through the model, and their moments in one pass."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.backends import ExactConvolutions, expect_tensors
from bdgd.checks import InputError, require_choice, require_count, require_positive
from bdgd.inference.moments import Moments
from bdgd.inference.posterior import Origin, Posterior
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import DeepGradientDescent, GradientBlock, Reconstructor, ScaleMixture, State
from bdgd.models.last_layers import PointLayer

#: Pixels, of all images under all draws, that go through a block of a GPU together: enough to fill it, in two or three GB.
FILL = 1 << 23
#: Draws that go together on a CPU. Always as many, even where fewer are asked for: rounding depends on the batch, and draws must not.
CPU_DRAWS = 4
#: Draws that take no more memory than this may be kept.
KEPT_BYTES = 1 << 30
#: Draws between two looks at the Monte-Carlo error.
CHECK = 10
PRECISIONS = ("auto", "float32", "bfloat16")


def reconstruct(
    model: Reconstructor,
    y: Tensor,
    draws: int = 100,
    *,
    generator: torch.Generator | None = None,
    draw: str = "weights",
    blocks: int | None = None,
    precision: str = "auto",
    tolerance: float | None = None,
    on_draw: Callable[[Tensor], None] | None = None,
) -> Posterior:
    """The posterior of the images behind sinograms y (B, 1, V, D), from `draws` Monte-Carlo draws.

    generator: fixes the draws, the same on every device; without one they are those of seed 0, the same in every call.
    draw: "weights" draws each block's weights once per draw, for the whole image; "pixels" draws the output of each last
    layer independently in every pixel, as the authors' code does. blocks: use only the first blocks of the cascade.
    precision: of the features of a cascade's blocks. "float32" is the same everywhere, no TF32; "bfloat16" is faster on a device that
    has instructions for it, and its rounding, which differs from draw to draw, counts as epistemic variance (docs/honesty.md); "auto"
    is bfloat16 on a GPU and float32 on a CPU.
    tolerance: stop before all draws are made once the relative Monte-Carlo error of the epistemic std, over all images of the batch, is
    below this; how many draws an image gets then depends on the images beside it.
    on_draw: called with each draw (B, 1, H, W) once it is there, for whoever shows the progress or looks at draws.
    """
    used = last_block(model) if blocks is None else blocks
    options = {"generator": generator, "draw": draw, "precision": precision, "tolerance": tolerance, "on_draw": on_draw}
    return reconstruct_blocks(model, y, (used,), draws, **options)[used]  # type: ignore[arg-type]


def reconstruct_and_keep(
    model: Reconstructor,
    y: Tensor,
    draws: int = 100,
    *,
    generator: torch.Generator | None = None,
    draw: str = "weights",
    precision: str = "auto",
    on_draw: Callable[[Tensor], None] | None = None,
) -> Posterior:
    """The same, with its draws in memory where they fit into KEPT_BYTES: whoever looks at them later need not make them again."""
    make = partial(reconstruct, model, y, draws, generator=generator, draw=draw, precision=precision)
    if draws * len(y) * math.prod(model.A.domain_shape) * 4 > KEPT_BYTES:
        return make(on_draw=on_draw)
    kept: list[Tensor] = []

    def look(image: Tensor) -> None:
        kept.append(image)
        if on_draw is not None:
            on_draw(image)

    return replace(make(on_draw=look), replay=lambda: (image.clone() for image in kept))


def reconstruct_blocks(
    model: Reconstructor,
    y: Tensor,
    at: Sequence[int],
    draws: int = 100,
    *,
    generator: torch.Generator | None = None,
    draw: str = "weights",
    precision: str = "auto",
    tolerance: float | None = None,
    on_draw: Callable[[Tensor], None] | None = None,
) -> dict[int, Posterior]:
    """The posteriors after several blocks, counted from 1, from the same draws in one pass: how the image comes about."""
    if not isinstance(model, Reconstructor):
        raise InputError(f"reconstruct needs a model such as bdgd.load('sparse30-mfvi'), got {type(model).__name__}")
    model.check(y)
    model.require_usable()
    count = drawn(model, draws)
    require_choice(draw, ("weights", "pixels"), "draw")
    fast = {"auto": y.is_cuda, "float32": False, "bfloat16": True}[require_choice(precision, PRECISIONS, "precision")]
    seed, at = seed_from(generator), _chosen_blocks(model, at)
    # What is replayed must not change, so both are copies.
    frozen = model.snapshot().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
    sinograms = y.detach().clone(memory_format=torch.contiguous_format) / model.value_scale
    limit = None if tolerance is None else require_positive(tolerance, "tolerance")
    running = [Moments(fourth=limit is not None) for _ in at]
    for images in _draws(frozen, sinograms, count, seed, draw, at, fast):
        for moments_, image in zip(running, images, strict=True):
            moments_.add(image)
        if on_draw is not None:
            on_draw(images[-1])
        made = running[-1].count
        if limit is not None and made % CHECK == 0 and running[-1].error_of_std() < limit:
            count = made
            break

    def replay(block: int) -> Callable[[], Iterator[Tensor]]:
        return lambda: (images[0] for images in _draws(frozen, sinograms, count, seed, draw, (block,), fast))

    posteriors = {}
    for block, moments_ in zip(at, running, strict=True):
        mean, epistemic = moments_.mean(), moments_.variance()
        mixture = error_mixture(frozen, sinograms, mean, epistemic, block)
        how = Origin(draw, frozen.calibration, complete=block == last_block(frozen), unit=frozen.value_scale)
        posteriors[block] = Posterior(mean, epistemic, mixture.variance(), count, seed, replay(block), mixture, how)
    return posteriors


@torch.no_grad()
def error_mixture(model: Reconstructor, y: Tensor, mean: Tensor, epistemic: Tensor, block: int) -> ScaleMixture:
    """What the data leave open in every pixel: the scale head's mixture after the last block, else the block's constant sigma^2.

    y has been divided by the model's value_scale, as the network sees it; mean and epistemic have not.
    """
    scale = model.value_scale
    if model.scale_head is not None and block == last_block(model):
        inside = (y, mean / scale, epistemic / scale**2)
        parts = zip(*(t.split(1) for t in inside), strict=True) if y.device.type == "cpu" else (inside,)  # see `_draws`
        with _precision(y, False):
            heads = [model.scale_head(model.clues(*part)) for part in parts]
        return ScaleMixture(torch.cat([h.log_weights for h in heads]), scale**2 * torch.cat([h.variances for h in heads]))
    level = model.noise_level_after(block) if isinstance(model, DeepGradientDescent) else model.noise_level
    return ScaleMixture.gaussian((level**2).to(mean).expand_as(mean).clone())


def drawn(model: Reconstructor, draws: int) -> int:
    """How many draws are made where so many are asked for; without randomness every draw is the same, and one is enough."""
    return require_count(draws, "draws") if model.random else min(1, require_count(draws, "draws"))


def last_block(model: Reconstructor) -> int:
    """The number of blocks; a model without blocks counts as one."""
    return len(model.blocks) if isinstance(model, DeepGradientDescent) else 1


def _chosen_blocks(model: Reconstructor, at: Sequence[int]) -> tuple[int, ...]:
    available = last_block(model)
    chosen = tuple(sorted({require_count(block, "blocks") for block in at}))
    if not chosen or chosen[-1] > available:
        raise InputError(f"blocks must be at most {available}, the length of the cascade, got {chosen[-1] if chosen else 'none'}")
    return chosen


@torch.no_grad()
def _draws(model: Reconstructor, y: Tensor, count: int, seed: int, mode: str, at: tuple[int, ...], fast: bool) -> Iterator[list[Tensor]]:
    """The draws in order, each as the images (B, 1, H, W) after the blocks `at`, of sinograms that were divided by value_scale.

    On a GPU as many draws go together as fill it. On a CPU every image goes alone, under CPU_DRAWS draws at a time: the
    rounding of a convolution depends on the batch, and results must not.
    """
    on_cpu = y.device.type == "cpu"
    parts = y.split(1) if on_cpu else (y,)
    if not isinstance(model, DeepGradientDescent):
        # One pass costs little, and bfloat16 rounds an image ten times over in learned primal-dual: always in float32.
        with _precision(y, False):
            images = torch.cat([model(part) for part in parts])
        yield [model.value_scale * images]
        return
    expect_tensors(y.device)
    starts = [model.begin(part) for part in parts]
    with _precision(y, fast):  # all draws share the first block's input, so its features are computed once
        features = [model.blocks[0].features(state.x, state.gradient) for state in starts]
    together = CPU_DRAWS if on_cpu and model.random else max(1, min(count, FILL // starts[0].x.numel()))
    layers = [copy.deepcopy(block.last).cpu() for block in model.blocks[: at[-1]]]
    for first in range(0, count, together):
        numbers = range(first, first + together)
        with _precision(y, fast):
            updates = [
                _Update(block, layer, k, seed, numbers, mode, starts[0].x)
                for k, (block, layer) in enumerate(zip(model.blocks, layers, strict=False))
            ]
            paths = [_path(model, *start, updates, at) for start in zip(parts, starts, features, strict=True)]
        for s in range(min(together, count - first)):  # x_0, where every update was undone, may be below 0
            yield [model.value_scale * torch.cat([path[k][s] for path in paths]).clamp(min=0) for k in range(len(at))]


@contextmanager
def _precision(y: Tensor, fast: bool) -> Iterator[None]:
    """bfloat16 convolutions where they are wanted, else exact ones, whatever the caller's autocast; all else keeps its precision."""
    exact = y.is_cuda and not fast  # elsewhere float32 is what it says
    with torch.autocast(y.device.type, torch.bfloat16, enabled=fast), ExactConvolutions() if exact else nullcontext():
        yield


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

    def __init__(self, block: GradientBlock, layer: PointLayer, k: int, seed: int, draws: range, mode: str, like: Tensor):
        self.block, self.mode, self.draws = block, mode, len(draws)
        generators = [keyed_generator(seed, "draw", s, k) for s in draws]
        height, width = like.shape[-2:]
        made = [layer.draw(1, g) if mode == "weights" else layer.local_noise(1, (height, width), g) for g in generators]
        self.made = torch.cat(made).to(like.device)  # (S, ...), made on the CPU so that all devices make the same

    def __call__(self, x: Tensor, features: Tensor, images: int) -> Tensor:
        """The next images (S * B, 1, H, W), draw after draw."""
        made = self.made if self.draws == 1 else self.made.repeat_interleave(images, 0)
        if self.mode == "weights":
            return self.block.update(x, features, made)
        return F.relu(x + self.block.last(features, made))
