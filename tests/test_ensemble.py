"""Several models as one posterior: its moments are those of all draws, which can be made again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.inference import Posterior, reconstruct, reconstruct_ensemble
from bdgd.models import DeepGradientDescent, Reconstructor
from bdgd.operators import RayTransform

A = small_transform()


def members(kind: str, count: int = 3) -> list[Reconstructor]:
    """Models of different weights and noise levels."""
    made = []
    for number in range(count):
        model = small_model(kind, A)
        assert isinstance(model, DeepGradientDescent)
        with torch.no_grad():
            for block in model.blocks:
                block.last.bias.add_(0.01 * number)
                block.log_noise.add_(0.3 * number)
        made.append(model)
    return made


def test_models_with_point_weights_give_one_draw_each() -> None:
    models, y = members("point"), some_sinograms(A)
    posterior = reconstruct_ensemble(models, y, 100)
    alone = torch.stack([reconstruct(model, y).mean for model in models])
    assert isinstance(posterior, Posterior) and posterior.number == 3
    assert torch.allclose(posterior.mean, alone.mean(0), atol=1e-6)
    assert torch.allclose(posterior.epistemic, alone.var(0), rtol=1e-4, atol=1e-10)
    assert float(posterior.epistemic.mean()) > 0


@pytest.mark.parametrize("draw", ["weights", "pixels"])
def test_moments_are_those_of_all_draws_and_replay_makes_them_again(draw: str) -> None:
    posterior = reconstruct_ensemble(members("mean_field"), some_sinograms(A), 8, generator=torch.Generator().manual_seed(5), draw=draw)
    draws = torch.stack(list(posterior.draws()))
    assert len(draws) == posterior.number == 8  # 3 + 3 + 2
    assert torch.allclose(draws.mean(0), posterior.mean, atol=1e-6)
    assert torch.allclose(draws.var(0), posterior.epistemic, rtol=1e-3, atol=1e-10)
    assert torch.equal(draws, torch.stack(list(posterior.draws())))
    assert posterior.origin.draw == draw


def test_the_aleatoric_part_is_the_mean_of_the_members() -> None:
    models, y = members("point"), some_sinograms(A)
    posterior = reconstruct_ensemble(models, y)
    expected = torch.stack([model.noise_level**2 for model in models]).mean()
    assert torch.allclose(posterior.aleatoric, expected.expand_as(posterior.mean))
    assert torch.allclose(posterior.predictive.variance(), posterior.std**2)
    lower, upper = posterior.interval(0.9)
    assert bool((lower <= posterior.mean).all()) and bool((posterior.mean <= upper).all())


def test_equal_members_have_independent_draws() -> None:
    model, y = small_model("mean_field", A), some_sinograms(A)
    draws = torch.stack(list(reconstruct_ensemble([model, model], y, 4).draws()))
    assert len({float(image.double().sum()) for image in draws}) == 4


def test_one_member_is_that_model() -> None:
    model, y = small_model("point", A), some_sinograms(A)
    posterior, alone = reconstruct_ensemble([model], y, 5), reconstruct(model, y)
    assert torch.equal(posterior.mean, alone.mean) and torch.equal(posterior.aleatoric, alone.aleatoric)
    assert float(posterior.epistemic.abs().max()) == 0


def test_what_is_refused() -> None:
    y = some_sinograms(A)
    with pytest.raises(InputError, match="at least one model"):
        reconstruct_ensemble([], y)
    with pytest.raises(InputError, match="a list of models, got a single one"):
        reconstruct_ensemble(small_model("point", A), y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="draws must be at least 3"):
        reconstruct_ensemble(members("mean_field"), y, 2)
    with pytest.raises(InputError, match="same scans"):
        reconstruct_ensemble([small_model("point", A), small_model("point", small_transform(size=12))], y)
    turned = RayTransform(replace(A.geometry, angles=tuple(angle + 0.1 for angle in A.geometry.angles)))
    with pytest.raises(InputError, match="different geometries"):
        reconstruct_ensemble([small_model("point", A), small_model("point", turned)], y)
