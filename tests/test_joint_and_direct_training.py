"""Training the whole model: joint fine-tuning of a cascade, and learned primal-dual directly."""

from __future__ import annotations

import math

import pytest
from tiny_training import COLUMNS, TRAIN, VALIDATION, A, cascade, quickly
from toys import seeded

from bdgd.inference import reconstruct
from bdgd.metrics import psnr
from bdgd.models import LearnedPrimalDual
from bdgd.training import finetune_jointly, train_directly


def test_joint_finetuning_estimates_the_noise_level_where_it_is_not_trained() -> None:
    model = cascade("point")
    quickly(model, epochs=1)
    before = float(model.noise_level)
    history = finetune_jointly(model, TRAIN, validation=VALIDATION, epochs=2, batch=4, learning_rate=1e-3)
    error = reconstruct(model, VALIDATION.sinograms).mean - VALIDATION.images
    assert float(model.noise_level) == pytest.approx(float(error.square().mean().sqrt()), rel=1e-4) != pytest.approx(before, rel=1e-4)
    assert history["noise_level"] == [pytest.approx(float(model.noise_level))]


def test_learned_primal_dual_trains_directly() -> None:
    model, records = LearnedPrimalDual(A, iterations=2), []
    assert math.isnan(float(model.noise_level))
    history = train_directly(model, TRAIN, validation=VALIDATION, epochs=6, batch=4, report=records.append, generator=seeded())
    assert records[5]["loss"] < 0.8 * records[0]["loss"] and records[6] == history.stages[0]
    assert history["stage"] == ["direct"] and set(history.stages[0]) == COLUMNS
    images = reconstruct(model, VALIDATION.sinograms).mean
    assert float(model.noise_level) == pytest.approx(float((images - VALIDATION.images).square().mean().sqrt()), rel=1e-4)
    assert history["validation_psnr"] == [pytest.approx(float(psnr(images, VALIDATION.images).mean()), abs=1e-3)]
