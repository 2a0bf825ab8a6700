"""Two processes that share a batch train as one does: PyTorch's distributed data parallel over gloo, on this machine."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import process_context, same_numbers_everywhere
from torch import Tensor, nn
from toys import small_transform

from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Scans, ellipse_images, simulate
from bdgd.models import DeepGradientDescent, LearnedPrimalDual
from bdgd.operators import Symmetry
from bdgd.training import Schedule, finetune_jointly, train_directly, train_greedily
from bdgd.training.frontier import Frontier
from bdgd.training.loop import Trainer
from bdgd.training.objective import BlockObjective, Objective

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch was built without gloo")

STEPS = 20


def scans_of(A: Any, which: str, count: int) -> Scans:
    return simulate(A, ellipse_images(which, count, 16), GaussianNoise(0.01), generator=torch.Generator().manual_seed(count))


class Interrupted(BaseException):
    pass


def loss_curve(kind: str) -> Tensor:
    """The loss of this process's share in each of 20 steps, 8 of 20 images at a time."""
    A = small_transform(size=16, views=6)
    model = DeepGradientDescent(A, blocks=1, last_layer=kind, gradient_scale=30.0)
    frontier = Frontier.at_start(model, scans_of(A, "train", 20))
    objective = BlockObjective(model.blocks[0], frontier.state.x, frontier.state.gradient, frontier.truth, 1.0, [Symmetry()])
    losses: list[Tensor] = []
    objective.register_forward_hook(lambda module, arguments, loss: losses.append(loss.detach()))
    Trainer(objective, Schedule(epochs=8, batch=8), seed=4).fit("curve")
    return torch.stack(losses)


class ExplodesForOne(Objective):
    """Pulls a weight to 1; in the first attempt at its second epoch the loss of the last process alone is not finite."""

    def __init__(self) -> None:
        super().__init__(8)
        self.weight, self.attempts = nn.Parameter(torch.zeros(1)), 0

    def begin_epoch(self, generator: torch.Generator) -> None:
        self.attempts += 1

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
        return ((self.weight - 1) ** 2).sum() * (math.nan if self.attempts == 2 and last else 1.0)


def undone_training() -> dict[str, Any]:
    """The records and the weight of a training whose second epoch is undone."""
    objective, records = ExplodesForOne(), list[dict[str, Any]]()
    Trainer(objective, Schedule(epochs=3, batch=4, undo=2.0), seed=0, report=records.append).fit("stage")
    return {"records": records, "weight": objective.weight.detach(), "attempts": objective.attempts}


def train_everything(folder: Path) -> dict[str, Any]:
    """Every way to train, with a run folder; what came out, by name."""
    A = small_transform(size=16, views=6)
    train, validation = scans_of(A, "train", 10), scans_of(A, "validation", 3)
    shared = {"validation": validation, "epochs": 2, "batch": 4}
    reports: list[dict[str, Any]] = []

    cascade = DeepGradientDescent(A, blocks=2, gradient_scale=30.0)
    greedy = train_greedily(cascade, train, **shared, run=folder / "greedy", report=reports.append)
    weights = {name: value.clone() for name, value in cascade.state_dict().items()}
    joint = finetune_jointly(cascade, train, **shared, run=folder / "joint")
    primal_dual = LearnedPrimalDual(A, iterations=1)
    direct = train_directly(primal_dual, train, **shared, run=folder / "direct")
    resumed = DeepGradientDescent(A, blocks=2, gradient_scale=30.0)
    train_greedily(resumed, train, **shared, run=folder / "interrupted", resume=True)
    return {
        "curves": {kind: loss_curve(kind) for kind in ("mean_field", "point")},
        "histories": [record for history in (greedy, joint, direct) for record in history.stages],
        "weights": {"greedy": weights, "joint": cascade.state_dict(), "direct": primal_dual.state_dict(), "resumed": resumed.state_dict()},
        "reports": reports,
        "undone": undone_training(),
        "refused": [refusal(A, train, run=folder / "greedy", batch=4, epochs=2), refusal(A, train, run=folder / "other", batch=5)],
    }


def refusal(A: Any, train: Scans, **arguments: Any) -> str:
    try:
        train_greedily(DeepGradientDescent(A, blocks=2, gradient_scale=30.0), train, validation=scans_of(A, "validation", 3), **arguments)
    except InputError as error:
        return str(error)
    return "not refused"


def interrupted_run(folder: Path) -> None:
    """A greedy training that one process began and left after the first epoch of its second block."""

    def stop(report: dict[str, Any]) -> None:
        if report["stage"] == "block-02":
            raise Interrupted

    A = small_transform(size=16, views=6)
    model, run = DeepGradientDescent(A, blocks=2, gradient_scale=30.0), folder / "interrupted"
    with pytest.raises(Interrupted):
        train_greedily(model, scans_of(A, "train", 10), validation=scans_of(A, "validation", 3), epochs=2, batch=4, run=run, report=stop)


def process(rank: int, processes: int, folder: Path) -> None:
    """One of the processes."""
    same_numbers_everywhere()
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # a machine need not be able to look up its own name
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes)
    try:
        torch.save(train_everything(folder), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("one")
    interrupted_run(folder)
    return train_everything(folder)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    interrupted_run(folder)
    started = [process_context().Process(target=process, args=(rank, 2, folder)) for rank in range(2)]
    for one in started:
        one.start()
    for one in started:
        one.join(120)
    assert [one.exitcode for one in started] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("kind", ["mean_field", "point"])
def test_the_loss_curve_is_that_of_one_process(alone: dict[str, Any], together: list[dict[str, Any]], kind: str) -> None:
    expected = alone["curves"][kind]
    mean = torch.stack([each["curves"][kind] for each in together]).mean(0)
    assert len(expected) == STEPS
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=0)
    assert not torch.equal(together[0]["curves"][kind], together[1]["curves"][kind])  # each has a share of its own


def test_all_processes_end_with_the_same_weights(together: list[dict[str, Any]]) -> None:
    for name, weights in together[0]["weights"].items():
        for key, value in weights.items():
            assert torch.equal(value, together[1]["weights"][name][key]), f"{name} {key}"


def test_every_way_to_train_ends_as_with_one_process(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    for record, expected in zip(together[0]["histories"], alone["histories"], strict=True):
        assert record == {key: value if key == "stage" else pytest.approx(value, rel=1e-3) for key, value in expected.items()}
    for name in alone["weights"]:
        for key, value in alone["weights"][name].items():
            torch.testing.assert_close(together[0]["weights"][name][key], value, rtol=1e-2, atol=1e-4)


def test_a_run_may_go_on_with_more_processes(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    for key, value in alone["weights"]["greedy"].items():
        assert torch.equal(alone["weights"]["resumed"][key], value)
        torch.testing.assert_close(together[0]["weights"]["resumed"][key], value, rtol=1e-2, atol=1e-4)


def test_all_processes_undo_an_epoch_that_explodes_for_one_of_them(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    for each in (alone, *together):
        assert each["undone"]["attempts"] == 4 and torch.equal(each["undone"]["weight"], alone["undone"]["weight"])
    for first in (alone, together[0]):
        assert [record.get("undone") for record in first["undone"]["records"]] == [None, 1, None]


def test_only_the_first_process_reports(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    stages = [report["stage"] for report in alone["reports"]]
    assert [report["stage"] for report in together[0]["reports"]] == stages and together[1]["reports"] == []


def test_every_process_refuses_what_one_would(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    assert "already holds a run" in alone["refused"][0] and alone["refused"][1] == "not refused"
    for each in together:
        assert "already holds a run" in each["refused"][0]
        assert each["refused"][1] == "the batch of 5 cannot be shared by 2 processes; make it a multiple"
