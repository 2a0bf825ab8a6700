"""The run folder itself: settings that must agree, lines of metrics, progress of one stage, and a board where there is one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny_runs import train

from bdgd.checks import InputError
from bdgd.training.run import RunFolder

SETTINGS = {"seed": 3, "rate": 1e-3, "angles": [0.1, 0.2], "nothing": None}
FINISHED = {"stage": "block-01", "validation_psnr": 20.0}


def test_a_new_folder_keeps_its_settings_and_says_whether_they_are_the_same(tmp_path: Path) -> None:
    run = tmp_path / "deep" / "run"
    RunFolder(run, SETTINGS)
    assert json.loads((run / "settings.json").read_text()) == SETTINGS
    RunFolder(run, SETTINGS, resume=True)
    with pytest.raises(InputError, match="already holds a run; resume it, or choose another folder"):
        RunFolder(run, SETTINGS)
    for other in (SETTINGS | {"rate": 2e-3}, SETTINGS | {"rate": None}, {name: SETTINGS[name] for name in SETTINGS if name != "rate"}):
        for resume in (False, True):
            with pytest.raises(InputError, match=r"holds a run with other settings: rate is 0.001 there, .* here; choose another folder"):
                RunFolder(run, other, resume=resume)
    assert json.loads((run / "settings.json").read_text()) == SETTINGS


def test_resuming_where_there_is_nothing_starts(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "run", SETTINGS, resume=True).finished("block-01") is None
    assert (tmp_path / "run" / "settings.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", "nonsense"])
def test_settings_that_cannot_be_read_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(InputError, match=r"settings.json (cannot be read|is not the settings of a run)"):
        RunFolder(tmp_path, SETTINGS, resume=True)


@pytest.mark.parametrize("where", ["file", "file/run"])
def test_a_file_where_a_folder_should_be(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot make the run folder .*; choose another place"):
        train(tmp_path / where)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not stop this user")
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_folder_that_must_not_be_written(tmp_path: Path, mode: int) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=mode)
    for run in (closed, closed / "run"):
        with pytest.raises(InputError, match="Permission denied; "):
            train(run)


def test_metrics_are_lines_of_json_and_one_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, SETTINGS)
    lines = [{"stage": "block-01", "step": step, "loss": 0.1 * step} for step in (1, 2, 3)]
    for line in [*lines, FINISHED]:
        run.append(line)
    path = tmp_path / "metrics.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [*lines, FINISHED]
    path.write_text(path.read_text() + '{"stage": "block-02", "st')
    assert run.records() == [*lines, FINISHED]
    assert run.restore("block-02", {}) == 0  # which is when a resumed run tidies up
    assert path.read_text().count("\n") == 4 and path.read_text().endswith("\n")


def test_progress_counts_for_its_own_stage_only(tmp_path: Path) -> None:
    run, tensors = RunFolder(tmp_path, SETTINGS), {"weight": torch.tensor([1.0, 2.0])}
    for step in (1, 2, 3):
        run.append({"stage": "block-02", "step": step})
    run.save_progress("block-02", 2, tensors)
    other = {"weight": torch.zeros(2)}
    assert run.restore("block-03", other) == 0 and torch.equal(other["weight"], torch.zeros(2))
    assert run.restore("block-02", other) == 2 and torch.equal(other["weight"], tensors["weight"])
    assert [line["step"] for line in run.records()] == [1, 2]
    run.finish("block-02", tensors, {"stage": "block-02"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["block-02.safetensors", "metrics.jsonl", "settings.json"]
    stored = run.finished("block-02")
    assert stored is not None and torch.equal(stored["weight"], tensors["weight"])


def test_damaged_progress_is_an_error_and_what_was_being_written_is_swept_away(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, SETTINGS)
    run.save_progress("block-01", 1, {"weight": torch.zeros(1000)})
    path = tmp_path / "progress.safetensors"
    (tmp_path / ".progress.safetensors.0123abcd.tmp").write_bytes(path.read_bytes()[:100])
    path.write_bytes(path.read_bytes()[:-7])
    again = RunFolder(tmp_path, SETTINGS, resume=True)
    with pytest.raises(InputError, match=r"progress.safetensors cannot be read .*check that it was copied completely"):
        again.restore("block-01", {})
    assert not list(tmp_path.glob(".*"))


class FakeBoard:
    """What is used of TensorBoard's writer."""

    def __init__(self, folder: str):
        self.folder, self.scalars, self.flushed = folder, [], 0
        FakeBoard.last = self

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def flush(self) -> None:
        self.flushed += 1


def test_tensorboard_gets_the_numbers_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = FakeBoard
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    run = RunFolder(tmp_path, SETTINGS)
    run.append({"stage": "block-01", "epoch": 1, "step": 7, "loss": 0.5})
    run.finish("block-01", {"weight": torch.zeros(1)}, FINISHED)
    assert FakeBoard.last.folder == str(tmp_path / "tensorboard") and FakeBoard.last.flushed == 1
    assert FakeBoard.last.scalars == [("block-01/loss", 0.5, 7), ("block-01/validation_psnr", 20.0, 0)]


def test_without_tensorboard_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run, line = RunFolder(tmp_path, SETTINGS), {"stage": "block-01", "step": 7, "loss": 0.5}
    run.append(line)
    assert run.records() == [line] and not (tmp_path / "tensorboard").exists()
