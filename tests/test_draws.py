"""Draws are decided by the generator alone: not by the batch, their number, their company, or what becomes of the model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import MODES, ONE_DRAW, RANDOM_CASES, RANDOM_KINDS, moments, same_posterior, seeded, small_model, some_sinograms

from bdgd.checks import InputError
from bdgd.inference import Posterior, reconstruct, reconstruct_and_keep, reconstruct_blocks, sampling
from bdgd.models import DeepGradientDescent
from bdgd.models.last_layers import MeanFieldLayer

pytestmark = pytest.mark.usefixtures("all_updates_count")


def part(posterior: Posterior, index: Any) -> tuple[Tensor, ...]:
    return posterior.mean[index], posterior.epistemic[index], posterior.aleatoric[index], torch.stack(list(posterior.draws()))[:, index]


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
    assert same_posterior(first, again) and first.seed == again.seed
    assert not torch.equal(first.mean, other.mean) and not torch.equal(first.epistemic, other.epistemic)
    without = reconstruct(model, y, draws=3, draw=mode), reconstruct(model, y, draws=3, draw=mode)
    assert same_posterior(*without)
    assert torch.equal(before, torch.get_rng_state())


def test_one_generator_gives_new_draws_every_time() -> None:
    model, generator = small_model(), seeded()
    y = some_sinograms(model.A)
    assert not same_posterior(reconstruct(model, y, draws=3, generator=generator), reconstruct(model, y, draws=3, generator=generator))


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


@pytest.mark.parametrize("mode", MODES)
def test_the_first_blocks_are_a_shorter_cascade(mode: str) -> None:
    long, short = small_model(blocks=3), small_model(blocks=2)
    y = some_sinograms(long.A)
    assert same_posterior(reconstruct(long, y, draws=4, draw=mode, blocks=2), reconstruct(short, y, draws=4, draw=mode))
    assert same_posterior(reconstruct(long, y, draws=4, draw=mode, blocks=3), reconstruct(long, y, draws=4, draw=mode))
    assert not torch.equal(reconstruct(long, y, draws=4, blocks=1).mean, reconstruct(long, y, draws=4, blocks=2).mean)
    torch.testing.assert_close(reconstruct(long, y, draws=4, blocks=1).aleatoric, torch.full((3, 1, 16, 16), math.exp(-8)))


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


def test_kept_draws_are_those_that_were_made_and_too_many_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("mean_field")
    y = torch.rand(2, *model.A.range_shape, generator=seeded(1))
    seen: list[Tensor] = []
    plain = reconstruct(model, y, 5, generator=seeded(3))
    kept = reconstruct_and_keep(model, y, 5, generator=seeded(3), on_draw=seen.append)
    assert torch.equal(kept.mean, plain.mean) and all(torch.equal(a, b) for a, b in zip(seen, plain.draws(), strict=True))
    with monkeypatch.context() as patch:
        patch.delattr(sampling, "_draws")  # nothing is made again
        assert all(torch.equal(a, b) for a, b in zip(kept.draws(), seen, strict=True))
    monkeypatch.setattr(sampling, "KEPT_BYTES", 10)
    again = reconstruct_and_keep(model, y, 5, generator=seeded(3))
    assert all(torch.equal(a, b) for a, b in zip(again.draws(), plain.draws(), strict=True))


@pytest.mark.parametrize("name", ["mean_field", "primal_dual"])
def test_the_callers_autocast_changes_nothing(name: str) -> None:
    model = small_model(name)
    y = some_sinograms(model.A)
    plain = reconstruct(model, y, draws=2, precision="float32")
    with torch.autocast("cpu", torch.bfloat16):
        inside = reconstruct(model, y, draws=2, precision="float32")
    assert same_posterior(plain, inside)


def test_kept_draws_are_copies() -> None:
    model = small_model()
    posterior = reconstruct_and_keep(model, some_sinograms(model.A), draws=3)
    expected = [image.clone() for image in posterior.draws()]
    for image in posterior.draws():
        image.zero_()
    assert all(torch.equal(a, b) for a, b in zip(posterior.draws(), expected, strict=True))
