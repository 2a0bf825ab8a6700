"""A tiny cascade that is really trained: what it gains over FBP, what is reported and kept, and what fine-tuning adds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import COLUMNS, Watch, ellipse_scans, same, state_of
from toys import seeded

from bdgd.classical import fbp
from bdgd.data import Scans
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator
from bdgd.metrics import mean_psnr, psnr
from bdgd.models import DeepGradientDescent
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.training import History, finetune_jointly, train_greedily
from bdgd.training.frontier import Frontier
from bdgd.training.objective import CascadeObjective
from bdgd.training.run import RunFolder


@dataclass(frozen=True)
class Trained:
    """A tiny cascade that was really trained, with all that its training said and wrote."""

    model: DeepGradientDescent
    train: Scans
    validation: Scans
    history: History
    reports: list[dict[str, Any]]
    run: Path
    watch: Watch


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    A = RayTransform(ParallelBeam.sparse(image_size=24, views=10))
    train, validation = ellipse_scans(A, "train", 96), ellipse_scans(A, "validation", 24)
    model = DeepGradientDescent(A, blocks=3, gradient_scale=30.0)
    run, reports = tmp_path_factory.mktemp("runs") / "tiny", []
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(patch)
        history = train_greedily(
            model, train, validation=validation, epochs=6, batch=8, learning_rate=2e-3, run=run, report=reports.append, generator=None
        )
    return Trained(model, train, validation, history, reports, run, watch)


def test_a_tiny_cascade_gains_three_decibels_over_fbp(trained: Trained) -> None:
    y, truth = trained.validation.sinograms, trained.validation.images
    start = float(psnr(fbp(trained.model.A, y), truth).mean())
    assert trained.history["validation_psnr"][-1] > start + 3
    assert float(psnr(reconstruct(trained.model, y, draws=3, generator=seeded()).mean, truth).mean()) > start + 3


def test_every_block_improves(trained: Trained) -> None:
    for column, sign in (("validation_psnr", 1), ("validation_nll", -1)):
        values = [sign * value for value in trained.history[column]]
        assert values == sorted(values) and len(set(values)) == 3


def test_the_history_has_one_record_per_block(trained: Trained) -> None:
    assert [set(record) for record in trained.history.stages] == [COLUMNS] * 3
    assert trained.history["stage"] == ["block-01", "block-02", "block-03"]
    assert trained.history["no such column"] == [None] * 3


def test_every_epoch_and_every_block_is_reported(trained: Trained) -> None:
    stages = [record for record in trained.reports if "loss" not in record]
    epochs = [record for record in trained.reports if "loss" in record]
    assert stages == trained.history.stages
    assert [(record["stage"], record["epoch"], record["step"]) for record in epochs] == [
        (f"block-{k:02d}", epoch, 12 * epoch) for k in (1, 2, 3) for epoch in range(1, 7)
    ]
    for k in range(3):
        assert epochs[6 * k + 5]["loss"] < epochs[6 * k]["loss"]


def test_blocks_stay_as_they_were_when_images_were_pushed_through(trained: Trained) -> None:
    """Every block was trained on what the blocks of the finished model make of the images, with one draw per image."""
    model, watch = trained.model, trained.watch
    train, held_out = Frontier.at_start(model, trained.train), Frontier.at_start(model, trained.validation)
    assert watch.stages == trained.history["stage"]
    for stage, block, images, quality in zip(watch.stages, model.blocks, watch.images, trained.history["validation_psnr"], strict=True):
        torch.testing.assert_close(train.state.x, images)  # convolutions round by where their weights lie
        train.move(train.behind(model, block, keyed_generator(0, stage, "push")))
        held_out.move(held_out.behind(model, block, keyed_generator(0, stage, "validation")))
        assert mean_psnr(held_out.state.x, held_out.truth) == pytest.approx(quality, abs=1e-5)


def test_the_run_folder_has_the_same_blocks_and_numbers(trained: Trained) -> None:
    folder = RunFolder(trained.run, settings_in(trained.run), resume=True)
    for stage, block in zip(trained.history["stage"], trained.model.blocks, strict=True):
        weights = folder.finished(stage)
        assert weights is not None and same(weights, state_of(block))
    assert folder.records() == [{key: value for key, value in record.items() if key != "epochs"} for record in trained.reports]


def settings_in(run: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((run / "settings.json").read_text())
    return settings


def test_joint_finetuning_lowers_the_loss_of_the_cascade(trained: Trained) -> None:
    model, losses = DeepGradientDescent(trained.model.A, blocks=3, gradient_scale=30.0), []
    model.load_state_dict(trained.model.state_dict())
    objective = CascadeObjective(model, trained.train, model.start(trained.train.sinograms), 1.0)
    index, noise = torch.arange(96), objective.draw_noise(96, seeded())
    with torch.no_grad():
        before = float(objective(index, noise))
    schedule = {"epochs": 2, "batch": 8, "learning_rate": 1e-4}
    history = finetune_jointly(model, trained.train, validation=trained.validation, **schedule, report=losses.append, generator=seeded())
    with torch.no_grad():
        assert float(objective(index, noise)) < before - 0.003
    assert history["stage"] == ["joint"] and set(history.stages[0]) == COLUMNS
    # So few steps, which lower the loss, move the quality of other images by 0.02 dB either way, depending on the seed.
    assert history["validation_psnr"][0] == pytest.approx(trained.history["validation_psnr"][-1], abs=0.1)
    assert losses[1]["loss"] < losses[0]["loss"] and losses[2] == history.stages[0]
    assert not any(same(state_of(a), state_of(b)) for a, b in zip(model.blocks, trained.model.blocks, strict=True))
