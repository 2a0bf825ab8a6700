"""The training loop: batches, noise, learning rates and gradients, told apart by a recording objective."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bdgd.checks import InputError
from bdgd.keyed import keyed_generator
from bdgd.training import Schedule
from bdgd.training.loop import WARM_UP, Trainer
from bdgd.training.objective import Objective
from bdgd.training.steps import plain_step

# --- the loop ------------------------------------------------------------------------------------------------------


class Recorder(Objective):
    """Notes what the loop asks for; its loss pulls one weight to 1."""

    def __init__(self, images: int):
        super().__init__(images)
        self.weight = nn.Parameter(torch.zeros(1))
        self.indices: list[Tensor] = []
        self.noises: list[Tensor] = []
        self.epochs: list[int] = []

    def begin_epoch(self, generator: torch.Generator) -> None:
        self.epochs.append(generator.initial_seed())

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        return [torch.randn(batch, generator=generator)]

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        self.indices.append(index)
        self.noises.append(noise[0])
        return ((self.weight - 1) ** 2).sum()


@pytest.mark.parametrize(("images", "batch", "steps"), [(12, 4, [3, 3, 3]), (10, 4, [2, 3, 2]), (5, 16, [1, 1, 1]), (1, 1, [1, 1, 1])])
def test_every_image_comes_once_per_permutation_and_epochs_are_told_apart(images: int, batch: int, steps: list[int]) -> None:
    objective, records = Recorder(images), []
    Trainer(objective, Schedule(epochs=3, batch=batch), seed=5, report=records.append).fit("stage")
    seen = torch.cat(objective.indices)
    for whole in seen.split(images):
        assert len(whole.unique()) == len(whole)
    assert [record["step"] for record in records] == [sum(steps[: n + 1]) for n in range(3)]
    assert [record["epoch"] for record in records] == [1, 2, 3] and {record["epochs"] for record in records} == {3}
    assert objective.epochs == [keyed_generator(5, "stage", "symmetry", epoch).initial_seed() for epoch in range(3)]


def test_batches_and_noise_depend_on_seed_and_stage_alone() -> None:
    def shown(seed: int, stage: str) -> tuple[Tensor, Tensor]:
        objective = Recorder(12)
        Trainer(objective, Schedule(epochs=2, batch=5), seed=seed).fit(stage)
        assert len({noise.numpy().tobytes() for noise in objective.noises}) == len(objective.noises)  # every step has its own
        return torch.cat(objective.indices), torch.cat(objective.noises)

    first, again = shown(0, "block-01"), shown(0, "block-01")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (shown(1, "block-01"), shown(0, "block-02")):
        assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_stage_starts_with_a_fresh_optimiser() -> None:
    objective = Recorder(12)
    trainer = Trainer(objective, Schedule(epochs=2, batch=4), seed=0)
    trainer.fit("first")
    after_one = objective.weight.detach().clone()
    with torch.no_grad():
        objective.weight.zero_()
    trainer.fit("second")
    assert torch.equal(objective.weight, after_one)


def test_the_learning_rate_rises_then_falls_along_a_cosine() -> None:
    schedule = Schedule(learning_rate=1e-2, last_learning_rate=1e-4)
    rates = [schedule.rate(step / 1000) for step in range(1001)]
    top = rates.index(max(rates))
    assert 0 < rates[0] < 0.1 * max(rates) and abs(top / 1000 - WARM_UP) < 2e-3
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert 0.95e-2 < max(rates) <= 1e-2 and rates[-1] == pytest.approx(1e-4)
    assert schedule.rate(0.5) == pytest.approx((1e-2 + 1e-4) / 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.nan}, "learning_rate must be finite"),
        ({"learning_rate": "fast"}, "learning_rate must be a number"),
        ({"last_learning_rate": 0.1}, "last_learning_rate must lie between 0 and learning_rate"),
        ({"last_learning_rate": -1e-9}, "last_learning_rate must lie between"),
        ({"last_learning_rate": "slow"}, "last_learning_rate must be a number"),
        ({"weight_decay": -1e-3}, "weight_decay must be at least 0"),
        ({"weight_decay": None}, "weight_decay must be a number"),
        ({"second_moment": 1.0}, "second_moment must lie between 0 and 1"),
        ({"gradient_norm": 0.0}, "gradient_norm must be"),
        ({"undo": 1.0}, "undo must be above 1, a factor by which the loss may grow, got 1"),
        ({"undo": math.inf}, "undo must be finite"),
        ({"undo": "twice"}, "undo must be a number"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(**values)


@pytest.mark.parametrize(("norm", "length"), [(None, 500.0), (2.0, 2.0), (1000.0, 500.0)])
def test_long_gradients_are_shortened(norm: float | None, length: float) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
            return 300 * self.weight[0] - 400 * self.weight[1]

    objective = Steep()
    plain_step(objective, torch.optim.SGD(objective.parameters(), lr=1.0), norm)(torch.zeros(1), [])
    torch.testing.assert_close(objective.weight.detach(), torch.tensor([-0.6, 0.8]) * length)
