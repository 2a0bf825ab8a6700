"""Monte-Carlo inference: reproducible draws, moments against closed forms, and what is refused."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import (
    MODELS,
    MODES,
    RANDOM_CASES,
    RANDOM_KINDS,
    no_update_undone,
    quick_model,
    seeded,
    small_model,
    small_transform,
    some_sinograms,
)

from bdgd.checks import InputError
from bdgd.inference import Moments, Posterior, reconstruct, reconstruct_and_keep, reconstruct_blocks, sampling
from bdgd.models import DeepGradientDescent, cascade
from bdgd.models.cascade import MOST_GROWTH
from bdgd.models.last_layers import MeanFieldLayer

ONE_DRAW = [name for name in MODELS if name not in RANDOM_KINDS]


def moments(stream: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of a stream of draws."""
    running = Moments()
    for value in stream:
        running.add(value)
    return running.mean(), running.variance()


@pytest.fixture(scope="module", autouse=True)
def _all_updates_count() -> Iterator[None]:
    """Every test here but those of the guard runs untrained blocks as they are."""
    with no_update_undone():
        yield


def same(one: Posterior, other: Posterior) -> bool:
    return torch.equal(one.mean, other.mean) and torch.equal(one.epistemic, other.epistemic) and torch.equal(one.std, other.std)


def select(posterior: Posterior, n: int) -> Posterior:
    return replace(posterior, mean=posterior.mean[[n]], epistemic=posterior.epistemic[[n]], aleatoric=posterior.aleatoric[[n]])


def part(posterior: Posterior, index: Any) -> tuple[Tensor, ...]:
    return posterior.mean[index], posterior.epistemic[index], posterior.aleatoric[index], torch.stack(list(posterior.draws()))[:, index]


# The same numbers again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mode"), [*RANDOM_CASES, *((name, "weights") for name in ONE_DRAW)])
def test_an_image_does_not_depend_on_its_batch(name: str, mode: str) -> None:
    """Bit for bit on the CPU: alone, in another order, in another batch, or as a view of a larger tensor."""
    model = small_model(name)
    y = some_sinograms(model.A, count=5)
    whole = reconstruct(model, y, draws=4, draw=mode, generator=seeded())
    spread_out = torch.stack((y, torch.zeros_like(y)), -1).flatten(-2)[..., ::2]
    assert torch.equal(spread_out, y) and not spread_out.is_contiguous()
    for batch, index in ((y[2:3], [2]), (y[[4, 0]], [4, 0]), (y[1::2], [1, 3]), (spread_out, [0, 1, 2, 3, 4])):
        found = reconstruct(model, batch, draws=4, draw=mode, generator=seeded())
        assert all(torch.equal(a, b) for a, b in zip(part(found, slice(None)), part(whole, index), strict=True))


@pytest.mark.parametrize(("kind", "mode"), RANDOM_CASES)
def test_the_generator_decides(kind: str, mode: str) -> None:
    model = small_model(kind)
    y = some_sinograms(model.A)
    before = torch.get_rng_state()
    first = reconstruct(model, y, draws=3, draw=mode, generator=seeded(1))
    again = reconstruct(model, y, draws=3, draw=mode, generator=seeded(1))
    other = reconstruct(model, y, draws=3, draw=mode, generator=seeded(2))
    assert same(first, again) and first.seed == again.seed
    assert not torch.equal(first.mean, other.mean) and not torch.equal(first.epistemic, other.epistemic)
    without = reconstruct(model, y, draws=3, draw=mode), reconstruct(model, y, draws=3, draw=mode)
    assert same(*without)
    assert torch.equal(before, torch.get_rng_state())


def test_one_generator_gives_new_draws_every_time() -> None:
    model, generator = small_model(), seeded()
    y = some_sinograms(model.A)
    assert not same(reconstruct(model, y, draws=3, generator=generator), reconstruct(model, y, draws=3, generator=generator))


def test_the_first_draws_are_the_same_whatever_their_number() -> None:
    model = small_model()
    y = some_sinograms(model.A)
    few, many = (list(reconstruct(model, y, draws=count, generator=seeded()).draws()) for count in (3, 7))
    assert len(few) == 3 and len(many) == 7
    assert all(torch.equal(a, b) for a, b in zip(few, many, strict=False))


def test_every_block_of_every_draw_has_weights_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw, drawn = small_model(blocks=3), MeanFieldLayer.draw, []

    def watched(layer: MeanFieldLayer, count: int, generator: torch.Generator) -> Tensor:
        weights = draw(layer, count, generator)
        drawn.append(((weights - layer.weight) / layer.log_std.exp()).flatten())  # standard normal
        return weights

    monkeypatch.setattr(MeanFieldLayer, "draw", watched)
    reconstruct(model, some_sinograms(model.A), draws=8)
    assert len(drawn) == 24
    correlation = torch.corrcoef(torch.stack(drawn)) - torch.eye(24)
    assert correlation.abs().max() < 5 / math.sqrt(144)


@pytest.mark.parametrize(("kind", "mode"), RANDOM_CASES)
def test_replayed_draws_are_those_that_made_the_moments(kind: str, mode: str) -> None:
    model = small_model(kind)
    posterior = reconstruct(model, some_sinograms(model.A), draws=17, draw=mode, generator=seeded())
    draws = torch.stack(list(posterior.draws()))
    assert draws.shape == (17, 3, 1, 16, 16) and posterior.number == 17
    assert (draws[0] != draws[1]).any() and (draws >= 0).all()
    torch.testing.assert_close(posterior.mean, draws.double().mean(0).float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(posterior.epistemic, draws.double().var(0).float(), rtol=1e-6, atol=1e-14)  # S - 1 in the denominator
    assert torch.equal(draws, torch.stack(list(posterior.draws())))
    mean, variance = moments(posterior.draws())
    assert torch.equal(mean, posterior.mean) and torch.equal(variance, posterior.epistemic)


def test_a_posterior_does_not_change_with_the_model_or_the_sinogram() -> None:
    """Training the model further or writing into y does not change what is replayed."""
    model = small_model()
    y = some_sinograms(model.A)
    posterior = reconstruct(model, y, draws=4)
    before = torch.stack(list(posterior.draws()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    y.zero_()
    assert torch.equal(torch.stack(list(posterior.draws())), before)


def test_draws_need_no_gradient() -> None:
    model = small_model()
    posterior = reconstruct(model, some_sinograms(model.A), draws=2)
    assert not any(value.requires_grad for value in (posterior.mean, posterior.std, posterior.aleatoric, *posterior.draws()))


# Moments -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_streamed_moments_are_those_of_the_stack(offset: float) -> None:
    values = offset + torch.randn(50, 2, 1, 4, 4, generator=seeded())
    mean, variance = moments(iter(values))
    assert mean.dtype == variance.dtype == torch.float32
    torch.testing.assert_close(mean, values.double().mean(0).float())
    torch.testing.assert_close(variance, values.double().var(0).float())


@pytest.mark.parametrize("kind", RANDOM_KINDS)
def test_one_draw_has_no_spread(kind: str) -> None:
    model = small_model(kind)
    posterior = reconstruct(model, some_sinograms(model.A), draws=1)
    assert posterior.number == 1 and not posterior.epistemic.any()
    assert torch.equal(posterior.mean, next(posterior.draws()))
    torch.testing.assert_close(posterior.std, posterior.aleatoric.sqrt())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ONE_DRAW)
def test_models_without_randomness_are_run_once(name: str, mode: str) -> None:
    model = small_model(name)
    y = some_sinograms(model.A)
    posterior = reconstruct(model, y, draws=100, draw=mode)
    assert posterior.number == 1 == len(list(posterior.draws())) and not posterior.epistemic.any()
    with torch.no_grad():
        noise = [torch.empty(3, 0, 16, 16)] * 2
        expected = model(y) if name == "primal_dual" else model(y, model.start(y), noise)
    torch.testing.assert_close(posterior.mean, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_variances_and_their_sum(name: str) -> None:
    model = small_model(name)
    posterior = reconstruct(model, some_sinograms(model.A), draws=3)
    level = -4 if name == "primal_dual" else -5  # of the last of two blocks
    torch.testing.assert_close(posterior.aleatoric, torch.full((3, 1, 16, 16), math.exp(2 * level)))
    torch.testing.assert_close(posterior.std**2, posterior.epistemic + posterior.aleatoric)
    assert posterior.mean.shape == posterior.epistemic.shape == posterior.std.shape == (3, 1, 16, 16)


def test_an_unknown_noise_level_stays_unknown() -> None:
    A = small_transform()
    posterior = reconstruct(DeepGradientDescent(A, blocks=1, last_layer="point"), some_sinograms(A))
    assert posterior.aleatoric.isnan().all() and posterior.mean.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_the_first_blocks_are_a_shorter_cascade(mode: str) -> None:
    long, short = small_model(blocks=3), small_model(blocks=2)
    y = some_sinograms(long.A)
    assert same(reconstruct(long, y, draws=4, draw=mode, blocks=2), reconstruct(short, y, draws=4, draw=mode))
    assert same(reconstruct(long, y, draws=4, draw=mode, blocks=3), reconstruct(long, y, draws=4, draw=mode))
    assert not torch.equal(reconstruct(long, y, draws=4, blocks=1).mean, reconstruct(long, y, draws=4, blocks=2).mean)
    torch.testing.assert_close(reconstruct(long, y, draws=4, blocks=1).aleatoric, torch.full((3, 1, 16, 16), math.exp(-8)))


def test_reconstruct_on_every_device(device: torch.device) -> None:
    """As on the CPU, up to the lower precision of a GPU's convolutions."""
    model = small_model()
    y = some_sinograms(model.A)
    expected = reconstruct(model, y, draws=5, generator=seeded())
    found = reconstruct(model.to(device), y.to(device), draws=5, generator=seeded())
    assert found.mean.device.type == device.type
    torch.testing.assert_close(found.mean.cpu(), expected.mean, rtol=0.05, atol=0.02)
    mask = torch.ones(16, 16, dtype=torch.bool)
    assert found.region(mask).mean.device.type == device.type


def live_elements() -> int:
    """What all tensors of this process hold together."""
    gc.collect()
    return sum(thing.numel() for thing in gc.get_objects() if issubclass(type(thing), Tensor))


def test_memory_does_not_grow_with_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """While 1000 draws are made and averaged, no more than two of them are alive, and no more numbers than after ten."""
    model = quick_model()
    y = some_sinograms(model.A)
    original, alive, held = sampling._draws, [], {}

    def watched(*arguments: Any) -> Iterator[list[Tensor]]:
        references: list[weakref.ref[Tensor]] = []
        for number, sample in enumerate(original(*arguments), 1):
            references = [*(reference for reference in references if reference() is not None), weakref.ref(sample[0])]
            alive.append(len(references))
            if number in (10, 1000):
                held[number] = live_elements()
            yield sample

    monkeypatch.setattr(sampling, "_draws", watched)
    posterior = reconstruct(model, y, draws=1000)
    assert len(alive) == 1000 and max(alive) <= 2
    assert held[1000] <= held[10] + posterior.mean.numel()
    del alive[:]
    posterior.region(torch.ones(8, 8, dtype=torch.bool))
    assert len(alive) == 1000 and max(alive) <= 2


# The guard against divergence --------------------------------------------------------------------------------------------


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "MOST_GROWTH", MOST_GROWTH)


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [1e3, math.inf, math.nan])
def test_a_block_that_diverges_is_left_out(bias: float, mode: str) -> None:
    healthy, sick = small_model(blocks=1, A=small_transform()), small_model(blocks=3)
    y = 5 * some_sinograms(healthy.A)  # a start far from the data
    for model in (healthy, sick):
        model.initial = lambda A, y: torch.zeros(len(y), *A.domain_shape)
    with torch.no_grad():
        for block in sick.blocks[1:]:
            block.last.bias.fill_(bias)
    expected, found = (reconstruct(model, y, draws=4, draw=mode, generator=seeded()) for model in (healthy, sick))
    assert expected.mean.any() and expected.epistemic.any()
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.epistemic, expected.epistemic)


@pytest.mark.usefixtures("guard")
def test_where_all_is_undone_the_start_remains_and_is_not_negative() -> None:
    model = small_model()
    y = some_sinograms(model.A)
    with torch.no_grad():
        for block in model.blocks:
            block.last.bias.fill_(1e3)
    start = model.start(y)
    assert (start < 0).any()
    posterior = reconstruct(model, y, draws=3)
    torch.testing.assert_close(posterior.mean, start.clamp(min=0))
    assert not posterior.epistemic.any()


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize(("kind", "mode"), RANDOM_CASES)
def test_the_guard_looks_at_every_image_by_itself(kind: str, mode: str) -> None:
    model = small_model(kind, blocks=3)
    y = some_sinograms(model.A, count=5) * torch.tensor([1.0, 0.01, 3.0, 10.0, 0.1]).reshape(5, 1, 1, 1)
    whole = reconstruct(model, y, draws=4, draw=mode, generator=seeded())
    assert (whole.mean >= 0).all()
    for n in range(5):
        assert same(reconstruct(model, y[[n]], draws=4, draw=mode, generator=seeded()), select(whole, n))


# What is refused ---------------------------------------------------------------------------------------------------------


A = small_transform()
Y = some_sinograms(A)
WITH_NAN = Y.clone()
WITH_NAN[1, 0, 2, 3] = math.nan

BAD_INPUT: list[tuple[Any, dict[str, Any], str]] = [
    (some_sinograms(small_transform(16, views=6)), {}, r"the sinogram must have shape \(B, 1, 5, 25\), got \(3, 1, 6, 25\)"),
    (Y[0], {}, r"must have shape \(B, 1, 5, 25\), got \(1, 5, 25\); add the batch axis with \[None\]"),
    (Y[:0], {}, "the sinogram is empty"),
    (Y.double(), {}, r"works in torch\.float32, the sinogram is torch\.float64; convert it with \.float\(\)"),
    (Y.int(), {}, r"must be floating point, got torch\.int32"),
    (Y.numpy(), {}, "must be a torch tensor .*, got ndarray"),
    (WITH_NAN, {}, "must be finite, but 1 of its 375 values are NaN or infinite"),
    (Y.to("meta"), {}, "the model is on cpu, the sinogram on meta"),
    (Y, {"draws": 0}, "draws must be at least 1, got 0"),
    (Y, {"draws": -3}, "draws must be at least 1, got -3"),
    (Y, {"draws": 2.5}, r"draws must be a whole number, got 2\.5"),
    (Y, {"draw": "images"}, "draw must be one of 'weights', 'pixels', got 'images'"),
    (Y, {"blocks": 0}, "blocks must be at least 1, got 0"),
    (Y, {"blocks": 3}, "blocks must be at most 2, the length of the cascade, got 3"),
]


@pytest.mark.parametrize(("y", "arguments", "message"), BAD_INPUT, ids=[str(i) for i in range(len(BAD_INPUT))])
def test_bad_input_is_refused_in_a_sentence(y: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        reconstruct(small_model(A=A), y, **arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("mode", ["weights", "pixels"])
@pytest.mark.parametrize("kind", RANDOM_KINDS)
def test_draws_that_go_together_are_those_that_go_alone(kind: str, mode: str) -> None:
    """As on a GPU, where several draws fill the device: the same to rounding."""
    model = small_model(kind)
    assert isinstance(model, DeepGradientDescent)
    y = some_sinograms(model.A)
    start = model.begin(y)
    updates = [sampling._Update(block, block.last, k, 5, range(4), mode, start.x) for k, block in enumerate(model.blocks)]
    features = model.blocks[0].features(start.x, start.gradient)
    with torch.no_grad():
        together = sampling._path(model, y, start, features, updates, (len(model.blocks),))[0].clamp(min=0)
    alone = [images[0] for images in sampling._draws(model, y, 4, 5, mode, (len(model.blocks),), fast=False)]
    assert together.shape == (4, *alone[0].shape)
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-5)


def test_posteriors_after_several_blocks_are_those_of_shorter_cascades() -> None:
    model = small_model()
    assert isinstance(model, DeepGradientDescent)
    y = some_sinograms(model.A, 2)
    last = len(model.blocks)
    posteriors = reconstruct_blocks(model, y, (last, 1), draws=5, generator=torch.Generator().manual_seed(3))
    assert list(posteriors) == [1, last]
    for block, posterior in posteriors.items():
        single = reconstruct(model, y, draws=5, generator=torch.Generator().manual_seed(3), blocks=block)
        assert torch.equal(posterior.mean, single.mean) and torch.equal(posterior.epistemic, single.epistemic)
        assert torch.equal(posterior.aleatoric, single.aleatoric)
        assert all(torch.equal(a, b) for a, b in zip(posterior.draws(), single.draws(), strict=True))
    with pytest.raises(InputError, match="at most"):
        reconstruct_blocks(model, y, (last + 1,))


def test_the_error_of_a_standard_deviation_is_that_of_repeated_samples() -> None:
    g = torch.Generator().manual_seed(0)
    for draw in (lambda: torch.randn(400, generator=g), lambda: torch.rand(400, generator=g).log().neg()):  # normal; exponential, heavy
        moments, samples = Moments(fourth=True), []
        for _ in range(400):
            samples.append(draw())
            moments.add(samples[-1])
        stds = torch.stack(samples).std(0)  # of 400 values each, in 400 pixels
        assert moments.error_of_std() == pytest.approx(float(stds.std() / stds.mean()), rel=0.15)


def test_sampling_stops_once_the_error_is_small_and_replays_what_it_made() -> None:
    model = small_model()
    y = some_sinograms(model.A, 2)
    posterior = reconstruct(model, y, draws=200, tolerance=0.12)
    assert posterior.number % sampling.CHECK == 0 and 20 <= posterior.number <= 120  # about 1 / (2 * 0.12^2) = 35 for normal draws
    assert len(list(posterior.draws())) == posterior.number
    assert torch.equal(posterior.mean, reconstruct(model, y, draws=posterior.number).mean)
    with pytest.raises(InputError, match="tolerance must be"):
        reconstruct(model, y, draws=5, tolerance=0.0)


def test_kept_draws_are_those_that_were_made_and_too_many_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("mean_field")
    y = torch.rand(2, *model.A.range_shape, generator=seeded(1))
    seen: list[Tensor] = []
    plain = reconstruct(model, y, 5, generator=seeded(3))
    kept = reconstruct_and_keep(model, y, 5, generator=seeded(3), on_draw=seen.append)
    assert torch.equal(kept.mean, plain.mean) and all(a is b for a, b in zip(kept.draws(), seen, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept.draws(), plain.draws(), strict=True))
    monkeypatch.setattr(sampling, "KEPT_BYTES", 10)
    again = reconstruct_and_keep(model, y, 5, generator=seeded(3))
    assert all(torch.equal(a, b) for a, b in zip(again.draws(), plain.draws(), strict=True))
