"""The guard against divergence: an update that makes an image fit its data much worse is left out, image by image."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import MODES, RANDOM_CASES, no_update_undone, same_posterior, seeded, small_model, small_transform, some_sinograms

from bdgd.inference import Posterior, reconstruct


def select(posterior: Posterior, n: int) -> Posterior:
    return replace(posterior, mean=posterior.mean[[n]], epistemic=posterior.epistemic[[n]], aleatoric=posterior.aleatoric[[n]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [1e3, 1e38])  # the second makes infinite sinograms, and NaN of them
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


@pytest.mark.parametrize(("kind", "mode"), RANDOM_CASES)
def test_the_guard_looks_at_every_image_by_itself(kind: str, mode: str) -> None:
    model = small_model(kind, blocks=3)
    y = some_sinograms(model.A, count=5) * torch.tensor([1.0, 0.01, 3.0, 10.0, 0.1]).reshape(5, 1, 1, 1)
    whole = reconstruct(model, y, draws=4, draw=mode, generator=seeded())
    with no_update_undone():
        free = reconstruct(model, y, draws=4, draw=mode, generator=seeded())
    assert (whole.mean >= 0).all() and not same_posterior(whole, free), "the guard has something to do"
    for n in range(5):
        assert same_posterior(reconstruct(model, y[[n]], draws=4, draw=mode, generator=seeded()), select(whole, n))
