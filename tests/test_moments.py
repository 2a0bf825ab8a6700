"""Mean and variances of the draws: those of the stack, streamed in flat memory, and precise enough where sampling stops."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import MODELS, MODES, ONE_DRAW, RANDOM_KINDS, moments, quick_model, seeded, small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.inference import Moments, reconstruct, sampling
from bdgd.models import DeepGradientDescent

pytestmark = pytest.mark.usefixtures("all_updates_count")


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
