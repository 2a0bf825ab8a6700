"""Training the whole model: joint fine-tuning of a cascade, and learned primal-dual directly."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_training import COLUMNS, TRAIN, VALIDATION, A, cascade, quickly
from toys import KINDS, seeded

from bdgd.data import Scans
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import psnr
from bdgd.models import LearnedPrimalDual
from bdgd.training import finetune_jointly, train_directly
from bdgd.training.frontier import Frontier


def test_joint_finetuning_estimates_the_noise_level_where_it_is_not_trained() -> None:
    model = cascade("point")
    quickly(model, epochs=1)
    before = float(model.noise_level)
    history = finetune_jointly(model, TRAIN, validation=VALIDATION, epochs=2, batch=4, learning_rate=1e-3)
    error = reconstruct(model, VALIDATION.sinograms).mean - VALIDATION.images
    assert float(model.noise_level) == pytest.approx(float(error.square().mean().sqrt()), rel=1e-4) != pytest.approx(before, rel=1e-4)
    assert history["noise_level"] == [pytest.approx(float(model.noise_level))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("validation", [VALIDATION, None], ids=["validation", "training"])
def test_joint_finetuning_sets_the_noise_levels_before_the_last_to_the_errors_behind_their_blocks(
    kind: str, validation: Scans | None
) -> None:
    model = cascade(kind, blocks=3)
    quickly(model, epochs=1)
    with torch.no_grad():
        for block in model.blocks:
            block.log_noise.fill_(-6.0)  # far from any error
    history = finetune_jointly(model, TRAIN, validation=validation, epochs=1, batch=4, learning_rate=1e-4, generator=seeded(5))
    frontier, errors, seed = Frontier.at_start(model, validation or TRAIN), [], seed_from(seeded(5))
    for k, block in enumerate(model.blocks):
        frontier.move(frontier.behind(model, block, keyed_generator(seed, "joint", "validation", k)))
        errors.append(float((frontier.state.x - frontier.truth).square().mean().sqrt()))
    levels = [float(model.noise_level_after(k)) for k in (1, 2, 3)]
    assert levels[:2] == pytest.approx(errors[:2], rel=1e-5)
    assert history["noise_level"] == pytest.approx(levels[2:])
    if model.blocks[-1].last.trains_noise_level:
        assert levels[2] == pytest.approx(math.exp(-6), rel=0.01), "the last block's is trained, three steps here"
    else:
        assert levels[2] == pytest.approx(errors[2], rel=1e-5)


def test_learned_primal_dual_trains_directly() -> None:
    model, records = LearnedPrimalDual(A, iterations=2), []
    assert math.isnan(float(model.noise_level))
    history = train_directly(model, TRAIN, validation=VALIDATION, epochs=6, batch=4, report=records.append, generator=seeded())
    assert records[5]["loss"] < 0.8 * records[0]["loss"] and records[6] == history.stages[0]
    assert history["stage"] == ["direct"] and set(history.stages[0]) == COLUMNS
    images = reconstruct(model, VALIDATION.sinograms).mean
    assert float(model.noise_level) == pytest.approx(float((images - VALIDATION.images).square().mean().sqrt()), rel=1e-4)
    assert history["validation_psnr"] == [pytest.approx(float(psnr(images, VALIDATION.images).mean()), abs=1e-3)]
