"""Epochs that are undone: parameters and optimiser are as if the epoch had been trained at half the learning rate in the first place."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import small_transform

from bdgd.checks import Diverged
from bdgd.data import GaussianNoise, ellipse_images, simulate
from bdgd.keyed import keyed_generator
from bdgd.models import LearnedPrimalDual, read_tensors
from bdgd.training import Schedule, train_directly
from bdgd.training.guard import MOST_UNDONE, Guard
from bdgd.training.loop import Trainer
from bdgd.training.objective import Objective
from bdgd.training.run import RunFolder
from bdgd.training.steps import adam, training_tensors

SEED, EPOCHS, IMAGES, BATCH = 5, 6, 10, 4
Poison = dict[int, list[float]]  # by epoch, counted from 0: the loss is multiplied by these in its first attempts, by 1 in later ones


class Interrupted(BaseException):
    """Like Control-C."""


class Explosive(Objective):
    """Pulls four weights to the noise, with a loss above 0.5 that explodes in given epochs; may be interrupted at its n-th step."""

    def __init__(self, poison: Poison | None = None, *, interrupt_at: int | None = None):
        super().__init__(IMAGES)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("factor", torch.ones(()))  # filled, never replaced: a captured step reads it where it is
        self.poison = {epoch: list(factors) for epoch, factors in (poison or {}).items()}
        self.interrupt_at, self.attempts = interrupt_at, list[int]()

    def begin_epoch(self, generator: torch.Generator) -> None:
        seeds = [keyed_generator(SEED, "stage", "symmetry", epoch).initial_seed() for epoch in range(EPOCHS)]
        self.attempts.append(seeds.index(generator.initial_seed()))
        left = self.poison.get(self.attempts[-1])
        self.factor.fill_(left.pop(0) if left else 1.0)

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        if self.interrupt_at is not None:
            self.interrupt_at -= 1
            if self.interrupt_at < 0:
                raise Interrupted
        return [0.1 * torch.randn(batch, 4, generator=generator, device=generator.device)]

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        return self.factor * (0.5 + ((self.weight - noise[0]) ** 2).mean() + 1e-3 * index.float().mean())


class Halved(Schedule):
    """The schedule whose learning rate is halved after each of these numbers of steps, once more for every number."""

    after: tuple[int, ...] = ()

    def rate(self, progress: float) -> float:
        step = round(progress * EPOCHS * IMAGES / BATCH)
        return super().rate(progress) * 0.5 ** sum(step >= first for first in self.after)


ARGUMENTS = {"epochs": EPOCHS, "batch": BATCH, "learning_rate": 1e-2, "second_moment": 0.99, "gradient_norm": 1.0}


def trained(
    objective: Explosive, *, schedule: type[Schedule] = Schedule, undo: float | None = 2.0, report: Any = None, run: Any = None, **how: Any
) -> dict[str, Tensor]:
    """All that the training of one stage leaves: parameters and optimiser state."""
    trainer = Trainer(objective, schedule(**ARGUMENTS, undo=undo), seed=SEED, report=report, **how)
    trainer.fit("stage", run)
    return {name: tensor.clone() for name, tensor in training_tensors(trainer.optimiser).items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


POISONS: list[Poison] = [{2: [math.nan]}, {2: [10.0]}, {0: [math.inf]}, {1: [math.nan, 10.0], 4: [3.0]}, {5: [math.nan] * MOST_UNDONE}]


@pytest.mark.parametrize("poison", POISONS, ids=str)
@pytest.mark.parametrize("capture", [True, False])  # where there is a GPU; a CPU has nothing to capture
def test_it_ends_as_if_the_rate_had_been_halved_from_that_epoch_on(
    device: torch.device, capture: bool, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_steps = [epoch * IMAGES // BATCH for epoch in range(EPOCHS)]
    monkeypatch.setattr(Halved, "after", tuple(first_steps[epoch] for epoch, factors in poison.items() for _ in factors))
    objective = Explosive(poison).to(device)
    assert same(trained(objective, capture=capture), trained(Explosive().to(device), schedule=Halved, capture=capture))
    assert objective.attempts == sorted([*range(EPOCHS), *(epoch for epoch, factors in poison.items() for _ in factors)])


def test_every_epoch_is_reported_once_and_says_how_often_it_was_undone(tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []
    run = RunFolder(tmp_path, {})
    trained(Explosive({1: [math.nan, 10.0], 4: [3.0]}), report=reports.append, run=run)
    assert [report["epoch"] for report in reports] == [1, 2, 3, 4, 5, 6]
    assert [report.get("undone") for report in reports] == [None, 2, None, None, 1, None]
    assert all(0.5 < report["loss"] < 1.5 for report in reports)
    assert run.records() == [{name: value for name, value in report.items() if name != "epochs"} for report in reports]


def test_nothing_changes_where_nothing_explodes_or_nothing_is_to_be_undone(tmp_path: Path) -> None:
    assert same(trained(Explosive()), trained(Explosive(), undo=None))
    grown = Explosive({3: [10.0]})
    trained(grown, undo=None, run=(run := RunFolder(tmp_path, {})))
    assert grown.attempts == list(range(EPOCHS)) and not any("undone" in record for record in run.records())
    stored, _ = read_tensors(tmp_path / "progress.safetensors")
    assert sorted(stored) == ["exp_avg.0", "exp_avg_sq.0", "parameter.0", "step.0"]  # as ever, so that older runs can be resumed
    with pytest.raises(Diverged, match=r"diverged in stage, epoch 4: the loss \(nan\) or a weight is not finite; lower the learning rate$"):
        trained(Explosive({3: [math.nan]}), undo=None)


@pytest.mark.parametrize(
    ("factor", "wrong"),
    [(math.nan, r"the loss \(nan\) or a weight is not finite"), (9.0, r"the loss \(.*\) is more than 2 times what it was before \(.*\)")],
)
def test_what_explodes_again_and_again_diverges(factor: float, wrong: str) -> None:
    objective = Explosive({1: [math.nan] * 4, 3: [factor] * 9})
    with pytest.raises(Diverged, match=f"training diverged in stage, epoch 4: {wrong}; lower the learning rate, which was halved 6 times"):
        trained(objective)
    assert objective.attempts == [0, *[1] * 5, 2, *[3] * 3]  # six were undone in the whole stage


def test_every_stage_begins_anew() -> None:
    trainer = Trainer(Explosive({0: [math.nan] * 2}), Schedule(**ARGUMENTS, undo=2.0), seed=SEED)
    trainer.fit("stage")
    trainer.objective.load_state_dict(Explosive().state_dict())
    trainer.fit("stage")  # the poison is used up
    assert same(training_tensors(trainer.optimiser), trained(Explosive()))


# --- the guard by itself -------------------------------------------------------------------------------------------


@pytest.fixture
def watched() -> Iterator[tuple[Guard, Explosive]]:
    objective = Explosive()
    guard = Guard(adam(objective, learning_rate=1e-3, weight_decay=0.0, second_moment=0.99), 2.0, slower=0.25)
    guard.begin_epoch()
    yield guard, objective


def test_the_smallest_loss_so_far_is_the_yardstick(watched: tuple[Guard, Explosive]) -> None:
    guard, _ = watched
    for loss, stands in ((1e9, True), (3.0, True), (0.5, True), (0.99, True), (1.01, False), (1.0, True), (0.4, True), (0.81, False)):
        assert guard.accepts(loss, "an epoch") == stands
    assert guard.slower == 0.25 * 0.25
    assert {name: float(value) for name, value in guard.tensors.items()} == {"undone": 2, "smallest_loss": 0.4}


def test_a_weight_that_is_not_finite_is_undone_in_place(watched: tuple[Guard, Explosive]) -> None:
    guard, objective = watched
    place, before = objective.weight.data_ptr(), objective.weight.detach().clone()
    with torch.no_grad():
        objective.weight[1] = math.inf
    assert not guard.accepts(0.5, "an epoch")
    assert torch.equal(objective.weight, before) and objective.weight.data_ptr() == place


# --- run folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [{1: [math.nan, 10.0], 4: [3.0]}, {5: [math.nan] * 3}], ids=str)
def test_a_training_that_is_killed_at_any_step_and_resumed_ends_the_same(tmp_path: Path, poison: Poison) -> None:
    whole = RunFolder(tmp_path / "whole", {})
    expected = trained(Explosive(poison), run=whole)
    progress = read_tensors(tmp_path / "whole" / "progress.safetensors")[0]
    assert progress["undone"] == sum(map(len, poison.values())) and progress["smallest_loss"] == min(r["loss"] for r in whole.records())
    for steps in range(1, 24):  # 15 good steps, the undone ones, and one that prepares
        path = tmp_path / str(steps)
        with contextlib.suppress(Interrupted):
            trained(Explosive(poison, interrupt_at=steps), run=RunFolder(path, {}))
        again = RunFolder(path, {}, resume=True)
        assert same(trained(Explosive(poison), run=again), expected), steps
        assert again.records() == whole.records()


def test_learned_primal_dual_is_guarded(tmp_path: Path) -> None:
    A = small_transform(size=8, views=4)
    scans = simulate(A, ellipse_images("train", 4, 8), GaussianNoise(0.01), generator=torch.Generator().manual_seed(0))
    train_directly(LearnedPrimalDual(A, iterations=1), scans, epochs=1, batch=2, run=tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (settings["undo"], settings["second_moment"], settings["gradient_norm"]) == (2.0, 0.99, 1.0)
