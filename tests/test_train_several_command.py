"""`bdgd train` with several presets or seeds: its folders, what it skips, tells and refuses, and Control-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import assert_one_sentence, bdgd, environment
from tiny_presets import CPU, PRIMAL_DUAL, TINY, assert_same_weights, presets

from bdgd.apps import forecast, several
from bdgd.apps.console import Output
from bdgd.apps.presets import Preset, parse_preset
from bdgd.apps.reproduction import Reproduction
from bdgd.apps.several import make_jobs, parse_seeds, train_several
from bdgd.apps.training import train_preset
from bdgd.checks import InputError
from bdgd.evaluation import Effort


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("0,3,7", [0, 3, 7]), ("4,", [4]), (" 1, 2 ", [1, 2])])
def test_seeds_are_a_count_or_a_list(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "1,1", "1,-2", "two", "1.5", ","])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--seeds must be how many"):
        parse_seeds(text)


def test_the_folders_are_those_that_reproduce_looks_for(tmp_path: Path) -> None:
    job = make_jobs(presets(), [2], tmp_path)[0]
    train_several([job], CPU, at_once=1)
    cells = Reproduction(Output(quiet=True), tmp_path, CPU, Effort(), seeds=3, runs=tmp_path)
    assert cells.trained("tiny", 2) == str(job.folder / "model.safetensors") and cells.trained("tiny", 1) is None


def test_the_command_trains_skips_and_tells(tiny_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "direct.toml"
    other.write_text(PRIMAL_DUAL)
    arguments = ("train", tiny_file, other, "-o", tmp_path / "runs", "--device", "cpu")
    done = bdgd(*arguments, "--seeds", "2", "--at-once", "2")
    assert done.exit_code == 0, done.output
    names = ["tiny-seed0", "tiny-seed1", "direct-seed0", "direct-seed1"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(names)
    for name in names:
        assert any(line.startswith(f"{name}: ") and line.endswith(" dB") for line in done.stderr.splitlines())
        assert name in done.stdout
    assert "4 trainings, 2 at once, on cpu" in done.stderr
    again = bdgd(*arguments, "--seeds", "0,1,5")
    assert again.exit_code == 0 and again.stderr.count("is there, nothing to train") == 4
    assert "tiny-seed5" in again.stdout and "tiny-seed0" not in again.stdout
    nothing = bdgd(*arguments, "--seeds", "2", "--quiet")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "")


def test_several_presets_without_seeds_keep_theirs(tiny_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "direct.toml"
    other.write_text(PRIMAL_DUAL.replace("seed = 3", "seed = 8"))
    assert bdgd("train", tiny_file, other, "-o", tmp_path / "runs", "--device", "cpu").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["direct-seed8", "tiny-seed3"]


def test_one_preset_alone_is_trained_in_the_folder_itself(tiny_file: Path, tmp_path: Path) -> None:
    done = bdgd("train", tiny_file, "-o", tmp_path / "run", "--device", "cpu")
    assert done.exit_code == 0 and (tmp_path / "run" / "model.safetensors").is_file()


def test_failures_are_told_at_the_end(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("train", tiny_file, "-o", tmp_path / "runs", "--seeds", "2", "--device", "cpu", "--quiet")

    def fail(preset: Preset, *others: Any, **options: Any) -> Any:
        if preset.seed == 0:
            raise error
        return train_preset(preset, *others, **options)

    monkeypatch.setattr(several, "train_preset", fail)
    error: Exception = InputError("no such picture; choose another folder")
    done = bdgd(*arguments)
    assert assert_one_sentence(done) == "bdgd: 1 of 2 trainings failed: tiny-seed0: no such picture; choose another folder"
    assert "tiny-seed1" in done.stdout and (tmp_path / "runs" / "tiny-seed1" / "model.safetensors").is_file()
    error = ZeroDivisionError("one\ntwo")
    said = assert_one_sentence(bdgd(*arguments), code=1)
    assert "should not have happened" in said and "1 of 1 trainings failed: tiny-seed0: ZeroDivisionError: one two" in said


REFUSED = {
    "both": (("--seed", "1", "--seeds", "2"), "--seed and --seeds exclude each other"),
    "wrong-seeds": (("--seeds", "x"), "--seeds must be how many, such as 5"),
    "at-once-of-one": (("--at-once", "2"), "--at-once is for several trainings"),
    "views": (("--seeds", "2", "--views", "3"), "--views says how a scan is used"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_one_sentence(options: tuple[str, ...], message: str, tiny_file: Path, tmp_path: Path) -> None:
    assert message in assert_one_sentence(bdgd("train", tiny_file, "-o", tmp_path / "runs", "--device", "cpu", *options))
    assert not (tmp_path / "runs").exists()


def test_a_preset_twice_is_refused(tiny_file: Path, tmp_path: Path) -> None:
    assert "two of the trainings are called tiny-seed3" in assert_one_sentence(bdgd("train", tiny_file, tiny_file, "-o", tmp_path, "-q"))


def test_torchrun_trains_one_preset(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = assert_one_sentence(bdgd("train", tiny_file, "--seeds", "2", "-o", tmp_path / "runs"))
    assert "torchrun trains one preset on several devices" in said


def test_an_interrupted_training_needs_resume_and_another_recipe_is_refused(tiny_file: Path, tmp_path: Path) -> None:
    job = make_jobs([parse_preset(TINY, "tiny")], None, tmp_path / "runs")[0]
    arguments = ("train", tiny_file, "-o", tmp_path / "runs", "--seeds", "3,", "--device", "cpu", "--quiet")

    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_preset(job.preset, job.folder, CPU, report=stop)
    assert "tiny-seed3 holds a training that was interrupted; add --resume" in assert_one_sentence(bdgd(*arguments))
    assert bdgd(*arguments, "--resume").exit_code == 0
    train_preset(job.preset, tmp_path / "alone", CPU)
    assert_same_weights(job.folder, tmp_path / "alone")
    assert "holds a run of another preset" in assert_one_sentence(bdgd(*arguments, "--images", "5"))


def test_memory_for_all_at_once_is_asked_for_before_the_work(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = forecast.memory_needed(parse_preset(TINY, "tiny"), CPU)
    monkeypatch.setattr(forecast, "memory_there", lambda device: (2.5 * one, 1e12))
    arguments = ("train", tiny_file, "-o", tmp_path / "runs", "--device", "cpu", "--quiet", "--seeds", "4")
    said = assert_one_sentence(bdgd(*arguments, "--at-once", "4"))
    assert "4 trainings at once need about" in said and said.endswith("try --at-once 2")
    monkeypatch.setattr(forecast, "memory_there", lambda device: (0.5 * one, 1e12))
    assert "training tiny needs about" in assert_one_sentence(bdgd(*arguments, "--at-once", "1"))


@pytest.mark.skipif(os.name == "nt", reason="signals as on Unix")
def test_control_c_stops_the_command(tiny_file: Path, tmp_path: Path) -> None:
    tiny_file.write_text(TINY.replace("epochs = 2", "epochs = 100000"))
    options = ("--seeds", 3, "--at-once", 2, "--device", "cpu")
    command = [sys.executable, "-m", "bdgd", "train", tiny_file, "-o", tmp_path / "runs", *options]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment())
    begun = [tmp_path / "runs" / f"tiny-seed{seed}" / "progress.safetensors" for seed in (0, 1)]
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in begun) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 130 and said.splitlines()[-1].startswith("bdgd: interrupted")
    assert not (tmp_path / "runs" / "tiny-seed2").exists()
