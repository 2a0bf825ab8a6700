"""A training that is interrupted or runs out of disk, and is resumed, ends as if nothing had happened: bit for bit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from full_disk import files_no_larger_than, no_room
from tiny_runs import WAYS, outcome, train, uninterrupted

from bdgd.checks import InputError
from bdgd.training import greedy
from bdgd.training.loop import Trainer

# --- interrupted and resumed -----------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Like Control-C."""


def stopping_in(stage: str, epoch: int = 1) -> Callable[[dict[str, Any]], None]:
    """A report that interrupts the training at its word from this stage's epoch."""

    def report(record: dict[str, Any]) -> None:
        if record["stage"] == stage and record.get("epoch") == epoch:
            raise Interrupted

    return report


@pytest.mark.parametrize("how", WAYS)
def test_a_run_that_is_interrupted_after_every_report_ends_the_same(tmp_path: Path, how: str) -> None:
    """Each life gets one epoch further, so the run is put together from as many pieces as it has."""

    def stop_at_an_epoch(report: dict[str, Any]) -> None:
        if "loss" in report:
            raise Interrupted

    lives, model = 0, None
    while model is None:
        with contextlib.suppress(Interrupted):
            model, _ = train(tmp_path / "run", how, report=stop_at_an_epoch)
        lives += 1
    assert lives == (5 if how == "greedy" else 3)  # blocks times epochs, and one to finish
    assert outcome(tmp_path / "run", model) == uninterrupted(how)


def test_blocks_that_are_trained_again_end_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "LEAST_GAIN", 1e6)  # every block but the first needs all attempts
    whole = outcome(tmp_path / "whole", train(tmp_path / "whole", epochs=1)[0])
    for stage in ("block-02", "block-02-again-1", "block-02-again-2"):
        with pytest.raises(Interrupted):
            train(tmp_path / stage, epochs=1, report=stopping_in(stage))
        assert outcome(tmp_path / stage, train(tmp_path / stage, epochs=1)[0]) == whole


def test_the_best_of_the_attempts_stands_wherever_the_run_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gains = {"block-01": 1.0, "block-02": 0.05, "block-02-again-1": 0.09, "block-02-again-2": -0.4}  # 0.1 would be enough
    fitted, fit = list[str](), Trainer.fit

    def noting_fit(trainer: Trainer, stage: str, *arguments: Any, **options: Any) -> None:
        fit(trainer, stage, *arguments, **options)
        fitted.append(stage)

    monkeypatch.setattr(Trainer, "fit", noting_fit)
    monkeypatch.setattr(greedy, "_gain", lambda judge, model, block, seed, stage: gains[fitted[-1]] if stage == "block-02" else 1.0)
    whole = outcome(tmp_path / "whole", train(tmp_path / "whole", epochs=2)[0])
    assert fitted == list(gains)
    for stage in list(gains)[1:]:
        for epoch in (1, 2):  # within the attempt, and once it is through
            run = tmp_path / f"{stage}, {epoch}"
            with pytest.raises(Interrupted):
                train(run, epochs=2, report=stopping_in(stage, epoch))
            assert outcome(run, train(run, epochs=2)[0]) == whole, run.name


@pytest.mark.parametrize("last_layer", ["point", "dropout"])
def test_estimated_noise_levels_survive_too(tmp_path: Path, last_layer: str) -> None:
    whole = outcome(tmp_path / "whole", train(tmp_path / "whole", last_layer=last_layer)[0])
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", last_layer=last_layer, report=stopping_in("block-02"))
    assert outcome(tmp_path / "cut", train(tmp_path / "cut", last_layer=last_layer)[0]) == whole


def test_the_run_folder_itself_changes_nothing() -> None:
    model, _ = train(None)
    expected = uninterrupted("greedy")
    assert all(expected[name] == value.numpy().tobytes() for name, value in model.state_dict().items())


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10, 5_000, 300_000])  # too little for the settings, for the progress, for a few lines more
def test_a_disk_that_is_full_is_one_sentence_and_leaves_nothing_half_written(tmp_path: Path, limit: int) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match=r"cannot write .*: File too large; ") as caught, files_no_larger_than(limit):
        train(run)
    assert "\n" not in str(caught.value)
    assert {path.name for path in run.iterdir()} <= {"settings.json", "metrics.jsonl"}
    assert outcome(run, train(run)[0]) == uninterrupted("greedy")


@pytest.mark.parametrize("calls", range(12))
def test_no_room_at_any_moment(tmp_path: Path, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full from some call on, which fsync is the last to notice."""
    run, left, fsync = tmp_path / "run", [calls], os.fsync

    def until_full(descriptor: int) -> None:
        left[0] -= 1
        no_room() if left[0] < 0 else fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", until_full)
        with pytest.raises(InputError, match=r"cannot write .*: No space left on device; .*room"):
            train(run)
    assert not list(run.glob(".*"))
    assert outcome(run, train(run)[0]) == uninterrupted("greedy")
