"""The unit of the image's values: a model in another unit gives the same numbers in that unit, and learns the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import seeded, small_transform

from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.inference import reconstruct
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, PoissonMisfit
from bdgd.training import finetune_jointly, train_greedily

A = small_transform(size=16, views=6)


@pytest.mark.usefixtures("all_updates_count")
def test_value_scale_changes_the_unit_and_nothing_else() -> None:
    plain, scaled = DeepGradientDescent(A, 2, seed=4), DeepGradientDescent(A, 2, seed=4, value_scale=0.25)
    y = A(random_ellipses(2, 16, generator=seeded(1)))
    one, other = reconstruct(plain, y, 5), reconstruct(scaled, 0.25 * y, 5)  # a power of two: exact
    assert one.mean.any() and one.epistemic.any()
    assert torch.equal(other.mean, 0.25 * one.mean) and torch.equal(other.aleatoric, 0.0625 * one.aleatoric)
    assert torch.allclose(other.epistemic, 0.0625 * one.epistemic, rtol=1e-5, atol=0)
    for a, b in zip(one.draws(), other.draws(), strict=True):
        assert torch.equal(b, 0.25 * a)
    assert float(scaled.noise_level) == pytest.approx(0.25 * float(plain.noise_level))


def test_attenuation_is_kept_in_the_users_unit_and_scaled_inside() -> None:
    poisson = DeepGradientDescent(A, 1, misfit="poisson", attenuation=0.02, value_scale=0.25)
    assert isinstance(poisson.misfit, PoissonMisfit) and poisson.misfit.attenuation == pytest.approx(0.005)
    assert poisson.arguments()["attenuation"] == pytest.approx(0.02)


def test_primal_dual_has_a_value_scale_too() -> None:
    y = A(random_ellipses(2, 16, generator=seeded(1)))
    plain, scaled = LearnedPrimalDual(A, 1, seed=4), LearnedPrimalDual(A, 1, seed=4, value_scale=0.25)
    assert torch.equal(reconstruct(scaled, 0.25 * y).mean, 0.25 * reconstruct(plain, y).mean)
    assert scaled.arguments() == {"iterations": 1, "start": "zero", "value_scale": 0.25}


def test_training_does_not_see_the_unit() -> None:
    scans = simulate(A, random_ellipses(8, 16, generator=seeded(1)), GaussianNoise(0.01), generator=seeded(2))
    weights = []
    for scale in (1.0, 0.25):
        model = DeepGradientDescent(A, 2, seed=4, value_scale=scale)
        theirs = replace(scans, sinograms=scale * scans.sinograms, images=scale * scans.images)
        train_greedily(model, theirs, validation=theirs, epochs=1, batch=4, generator=seeded(3))
        history = finetune_jointly(model, theirs, validation=theirs, epochs=1, batch=4, generator=seeded(3))
        weights.append((model.state_dict(), history["validation_psnr"]))
    assert all(torch.equal(value, weights[1][0][name]) for name, value in weights[0][0].items())
    assert weights[0][1] == weights[1][1]


def test_noise_levels_of_a_training_are_in_the_unit_of_the_images() -> None:
    scans = simulate(A, 0.25 * random_ellipses(6, 16, generator=seeded(1)), GaussianNoise(0.01), generator=seeded(2))
    model = DeepGradientDescent(A, 1, value_scale=0.25)
    history = train_greedily(model, scans, epochs=1, batch=6, learning_rate=1e-9, last_learning_rate=1e-9, first_noise_level=0.03)
    assert float(model.noise_level) == pytest.approx(0.03, rel=1e-4) and history["noise_level"] == [pytest.approx(0.03, rel=1e-4)]
