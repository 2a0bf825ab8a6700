"""A run folder belongs to one training: any other setting is refused, and a finished run is left as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_runs import WAYS, outcome, train, uninterrupted

from bdgd.checks import InputError

#: by way of training, the changes each of which makes it another one
OTHERS = {
    "greedy": [
        {"epochs": 3},
        {"batch": 2},
        {"learning_rate": 2e-3},
        {"last_learning_rate": 0.0},
        {"weight_decay": 1e-3},
        {"kl_weight": 64.0},
        {"initialise": "fresh"},
        {"augment": True},
        {"seed": 2},
        {"images": 7},
        {"noise": 0.02},
        {"validation": None},
        {"blocks": 3},
        {"last_layer": "point"},
        {"size": 9},
        {"weights": 1},
        {"set": "test"},
    ],
    "joint": [{"epochs": 3}, {"kl_weight": 2.0}, {"seed": 2}],
    "direct": [{"epochs": 3}, {"weight_decay": 1e-3}, {"iterations": 2}],
}


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = {how: tmp_path_factory.mktemp("finished") / how for how in WAYS}
    for how, run in runs.items():
        train(run, how, resume=False)
    return runs


@pytest.mark.parametrize(("how", "change"), [(how, change) for how, changes in OTHERS.items() for change in changes], ids=str)
def test_a_run_of_another_training_is_refused_and_left_alone(finished_runs: dict[str, Path], how: str, change: dict[str, Any]) -> None:
    before = outcome(finished_runs[how])
    with pytest.raises(InputError, match="holds a run with other settings"):
        train(finished_runs[how], how, **change)
    assert outcome(finished_runs[how]) == before


@pytest.mark.parametrize("how", WAYS)
def test_another_way_of_training_is_refused(finished_runs: dict[str, Path], how: str) -> None:
    for other in set(WAYS) - {how}:
        with pytest.raises(InputError, match="holds a run with other settings"):
            train(finished_runs[how], other)


@pytest.mark.parametrize("how", WAYS)
def test_a_finished_run_is_not_overwritten_and_resuming_it_trains_nothing(finished_runs: dict[str, Path], how: str) -> None:
    with pytest.raises(InputError, match="already holds a run"):
        train(finished_runs[how], how, resume=False)
    reports: list[dict[str, Any]] = []
    model, history = train(finished_runs[how], how, report=reports.append)
    assert reports == history.stages and not any("loss" in report for report in reports)
    assert outcome(finished_runs[how], model) == uninterrupted(how)
