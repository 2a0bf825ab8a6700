"""Several trainings at once: the same weights as one after the other, turns that hold, and what becomes of failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import assert_one_sentence, bdgd, environment

from bdgd.apps import forecast, several
from bdgd.apps.console import Output
from bdgd.apps.presets import Preset, parse_preset
from bdgd.apps.reproduction import Reproduction
from bdgd.apps.several import Job, make_jobs, parse_seeds, train_several
from bdgd.apps.training import train_preset
from bdgd.checks import InputError
from bdgd.evaluation import Effort
from bdgd.models import read_tensors
from bdgd.training import turns

CPU = torch.device("cpu")
TINY = """
seed = 3
[geometry]
beam = "sparse"
image_size = 16
views = 5
[data]
train = 24
validation = 3
noise = { kind = "gaussian", relative = 0.02 }
[model]
blocks = 2
last_layer = "mean_field"
gradient_scale = 30.0
[training]
epochs = 2
batch = 4
"""
PRIMAL_DUAL = TINY.replace('blocks = 2\nlast_layer = "mean_field"\ngradient_scale = 30.0', 'kind = "primal-dual"\niterations = 2')
JOINT = TINY.replace("mean_field", "dropout") + "[finetuning]\nepochs = 1\nbatch = 4\n"
TEXTS = {"tiny": TINY, "direct": PRIMAL_DUAL, "joint": JOINT}


def presets() -> list[Preset]:
    return [parse_preset(text, name) for name, text in TEXTS.items()]


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


def assert_same_weights(one: Path, other: Path) -> None:
    ours, theirs = weights_of(one), weights_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


# --- the trainings -------------------------------------------------------------------------------------------------


def test_at_once_gives_the_same_weights_as_one_after_the_other(tmp_path: Path) -> None:
    jobs = make_jobs(presets()[:1], [0, 1], tmp_path) + make_jobs(presets()[1:], None, tmp_path)
    most, running = 0, set[int]()

    def report(job: Job, record: dict[str, Any]) -> None:
        nonlocal most
        running.add(threading.get_ident())
        most = max(most, len(running))

    outcomes = train_several(jobs, CPU, at_once=3, report=report)
    assert [outcome.job for outcome in outcomes] == jobs and all(outcome.error is None for outcome in outcomes)
    assert most == 3 and threading.get_ident() not in running
    for outcome in outcomes:
        alone = tmp_path / "alone" / outcome.job.name
        model = train_preset(outcome.job.preset, alone, CPU)
        assert_same_weights(outcome.job.folder, alone)
        assert outcome.quality == model.provenance["stages"][-1]["validation_psnr"]
    seeds = [weights_of(job.folder) for job in jobs[:2]]
    assert any(not torch.equal(seeds[0][name], seeds[1][name]) for name in seeds[0])  # another seed is another training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_captured_trainings_end_as_they_do_alone(tmp_path: Path) -> None:
    """Close, not equal: a GPU's libraries may choose other algorithms when less memory is free."""
    gpu = torch.device("cuda")
    jobs = make_jobs(presets(), [0, 1, 2], tmp_path)
    outcomes = train_several(jobs, gpu, at_once=3)
    assert [outcome.reason for outcome in outcomes] == [""] * len(jobs)
    for job in jobs:
        train_preset(job.preset, tmp_path / "alone" / job.name, gpu)
        alone = weights_of(tmp_path / "alone" / job.name)
        for name, tensor in weights_of(job.folder).items():
            torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-3, equal_nan=True)
    assert turns._stepping == 0 and not turns._captured and not turns._turn.locked()


def test_steps_are_taken_at_the_same_time(tmp_path: Path) -> None:
    """Each of two trainings waits inside a stage until the other is there too."""
    meet = threading.Barrier(2, timeout=180)
    met: list[str] = []

    def report(job: Job, record: dict[str, Any]) -> None:
        if "loss" in record and record["stage"] == "block-01" and record["epoch"] == 1:
            meet.wait()
            met.append(job.name)

    jobs = make_jobs(presets()[:1], [0, 1], tmp_path)
    assert [outcome.error for outcome in train_several(jobs, CPU, at_once=2, report=report)] == [None, None]
    assert sorted(met) == ["tiny-seed0", "tiny-seed1"]


def test_a_failing_training_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = make_jobs(presets()[:1], [0, 1, 2], tmp_path)
    jobs[1].folder.write_text("in the way")
    ended: list[str] = []
    outcomes = train_several(jobs, CPU, at_once=2, finished=lambda outcome: ended.append(outcome.job.name))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True] and sorted(ended) == sorted(job.name for job in jobs)
    assert isinstance(outcomes[1].error, InputError) and "it is a file" in outcomes[1].told()
    assert "validation" in outcomes[0].told()


def test_an_interrupt_stops_all_and_resume_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_train = threading.Barrier(2, timeout=180)

    def interrupted(workers: Any) -> None:
        both_train.wait()
        raise KeyboardInterrupt

    def report(job: Job, record: dict[str, Any]) -> None:
        if job.preset.seed == 0 and record.get("step") == 6:
            both_train.wait()
            time.sleep(0.2)  # the stop is set by then

    jobs = make_jobs(presets()[:1], [0, 1, 2], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(several, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_several(jobs, CPU, at_once=2, report=report)
    assert not (jobs[0].folder / "model.safetensors").exists() and not jobs[2].folder.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("training")]
    assert [outcome.error for outcome in train_several(jobs[:1], CPU, at_once=1, resume=True)] == [None]
    train_preset(jobs[0].preset, tmp_path / "alone", CPU)
    assert_same_weights(jobs[0].folder, tmp_path / "alone")


# --- turns ---------------------------------------------------------------------------------------------------------


def test_whoever_is_alone_waits_for_a_step_and_no_step_is_taken_beside_it() -> None:
    steps, alone_at, stop, started = [0, 0], list[tuple[int, ...]](), threading.Event(), threading.Barrier(3, timeout=180)

    def stepping(n: int) -> None:
        with turns.until(stop), turns.turn(), turns.meanwhile():
            started.wait()
            try:
                while True:
                    turns.rest()
                    steps[n] += 1
            except turns.Stopped:
                return

    threads = [threading.Thread(target=stepping, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    for _ in range(5):
        with turns.alone():
            before = tuple(steps)
            time.sleep(0.01)
            assert tuple(steps) == before
            alone_at.append(before)
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(set(alone_at)) == 5  # they went on in between
    assert turns._stepping == 0 and not turns._captured and not turns._turn.locked()


def test_the_turn_is_held_by_one_passed_on_and_taken_back() -> None:
    events: list[str] = []
    inside, over = threading.Event(), threading.Event()

    def other() -> None:
        with turns.turn():
            events.append("other")
            inside.set()
            over.wait(60)
            events.append("other ends")

    thread = threading.Thread(target=other)
    with turns.turn(), turns.turn():  # again is nothing
        thread.start()
        assert not inside.wait(0.05)
        with turns.meanwhile():
            assert inside.wait(60)
            threading.Timer(0.05, over.set).start()
        events.append("back")
    thread.join(60)
    assert events == ["other", "other ends", "back"]


def test_a_step_that_needs_the_turn_does_not_block_who_is_alone() -> None:
    ready, done = threading.Event(), list[str]()

    def stepping() -> None:
        with turns.turn(), turns.meanwhile():
            ready.set()
            time.sleep(0.05)  # the other waits to be alone by now, and has the turn
            with turns.turn():
                done.append("step")

    thread = threading.Thread(target=stepping, daemon=True)
    thread.start()
    assert ready.wait(60)
    with turns.alone():
        done.append("alone")
    thread.join(60)
    assert done == ["alone", "step"] and turns._stepping == 0


def test_turns_are_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), turns.turn(), turns.meanwhile():
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), turns.alone():
        raise ZeroDivisionError
    assert turns._stepping == 0 and not turns._captured and not turns._turn.locked()


# --- the command ---------------------------------------------------------------------------------------------------


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
