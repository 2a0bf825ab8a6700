"""Run folders: a training that is killed at any moment and resumed ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from processes import process_context
from toys import small_transform

from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Scans, ellipse_images, simulate
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor
from bdgd.training import finetune_jointly, greedy, train_directly, train_greedily
from bdgd.training.run import RunFolder

SETTINGS = {"seed": 3, "rate": 1e-3, "angles": [0.1, 0.2], "nothing": None}
FINISHED = {"stage": "block-01", "validation_psnr": 20.0}


def scans_of(A: Any, which: str, count: int, noise: float = 0.01) -> Scans:
    images = ellipse_images(which, count, A.domain_shape[-1])
    return simulate(A, images, GaussianNoise(noise), generator=torch.Generator().manual_seed(count))


def train(run: Path | None, how: str = "greedy", *, resume: bool = True, report: Any = None, **changes: Any) -> tuple[Reconstructor, Any]:
    """One tiny training of each way, the same every time; `changes` are to its arguments."""
    A = small_transform(size=changes.pop("size", 8), views=4)
    scans = scans_of(A, "train", changes.pop("images", 6), changes.pop("noise", 0.01))
    validation = scans_of(A, "validation", count) if (count := changes.pop("validation", 2)) else None
    generator = torch.Generator().manual_seed(changes.pop("seed", 1))
    shared = {"epochs": 2, "batch": 4, "validation": validation, "generator": generator, "run": run, "resume": resume, "report": report}
    arguments = shared | changes
    if how == "direct":
        model: Reconstructor = LearnedPrimalDual(A, iterations=arguments.pop("iterations", 1))
        return model, train_directly(model, scans, **arguments)
    blocks, last_layer = arguments.pop("blocks", 2), arguments.pop("last_layer", "mean_field")
    model = DeepGradientDescent(A, blocks=blocks, last_layer=last_layer, gradient_scale=30.0)
    function = train_greedily if how == "greedy" else finetune_jointly
    return model, function(model, scans, **arguments)


def outcome(run: Path, model: Reconstructor | None = None) -> dict[str, Any]:
    """All that two runs must have in common: weights, bit for bit, and the lines of metrics."""
    files = {path.name: path.read_bytes() for path in run.iterdir() if path.name not in ("settings.json", "progress.safetensors")}
    weights = {name: value.numpy().tobytes() for name, value in model.state_dict().items()} if model else {}
    return files | weights


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The outcome of each way to train, left in peace."""
    known: dict[str, dict[str, Any]] = {}

    def of(how: str) -> dict[str, Any]:
        if how not in known:
            run = tmp_path_factory.mktemp("runs") / how
            known[how] = outcome(run, train(run, how, resume=False)[0])
        return known[how]

    return of


# --- the folder ----------------------------------------------------------------------------------------------------


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
    RunFolder(tmp_path, SETTINGS).append({"stage": "block-01", "step": 7, "loss": 0.5})
    assert not (tmp_path / "tensorboard").exists()


# --- what does not belong together ---------------------------------------------------------------------------------

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
    ],
    "joint": [{"epochs": 3}, {"kl_weight": 2.0}, {"seed": 2}],
    "direct": [{"epochs": 3}, {"weight_decay": 1e-3}, {"iterations": 2}],
}


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = {how: tmp_path_factory.mktemp("finished") / how for how in OTHERS}
    for how, run in runs.items():
        train(run, how, resume=False)
    return runs


@pytest.mark.parametrize(("how", "change"), [(how, change) for how, changes in OTHERS.items() for change in changes], ids=str)
def test_a_run_of_another_training_is_refused_and_left_alone(finished_runs: dict[str, Path], how: str, change: dict[str, Any]) -> None:
    before = outcome(finished_runs[how])
    with pytest.raises(InputError, match="holds a run with other settings"):
        train(finished_runs[how], how, **change)
    assert outcome(finished_runs[how]) == before


@pytest.mark.parametrize("how", OTHERS)
def test_another_way_of_training_is_refused(finished_runs: dict[str, Path], how: str) -> None:
    for other in set(OTHERS) - {how}:
        with pytest.raises(InputError, match="holds a run with other settings"):
            train(finished_runs[how], other)


@pytest.mark.parametrize("how", OTHERS)
def test_a_finished_run_is_not_overwritten_and_resuming_it_trains_nothing(
    finished_runs: dict[str, Path], how: str, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    with pytest.raises(InputError, match="already holds a run"):
        train(finished_runs[how], how, resume=False)
    reports: list[dict[str, Any]] = []
    model, history = train(finished_runs[how], how, report=reports.append)
    assert reports == history.stages and not any("loss" in report for report in reports)
    assert outcome(finished_runs[how], model) == uninterrupted(how)


# --- interrupted and resumed ---------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Like Control-C."""


@pytest.mark.parametrize("how", OTHERS)
def test_a_run_that_is_interrupted_after_every_report_ends_the_same(
    tmp_path: Path, how: str, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    """Each life gets one epoch further, so the run is put together from as many pieces as it has."""
    lives, model = 0, None
    while model is None:
        fresh: list[dict[str, Any]] = []

        def stop_at_an_epoch(report: dict[str, Any], fresh: list[dict[str, Any]] = fresh) -> None:
            if "loss" in report:
                fresh.append(report)
                raise Interrupted

        with contextlib.suppress(Interrupted):
            model, _ = train(tmp_path / "run", how, report=stop_at_an_epoch)
        lives += 1
    assert lives == (5 if how == "greedy" else 3)  # blocks times epochs, and one to finish
    assert outcome(tmp_path / "run", model) == uninterrupted(how)


def test_blocks_that_are_trained_again_end_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "LEAST_GAIN", 1e6)  # every block but the first needs all attempts
    whole = outcome(tmp_path / "whole", train(tmp_path / "whole", epochs=1)[0])
    for stop_in in ("block-02", "block-02-again-1", "block-02-again-2"):

        def stop(report: dict[str, Any], stop_in: str = stop_in) -> None:
            if report["stage"] == stop_in:
                raise Interrupted

        with pytest.raises(Interrupted):
            train(tmp_path / stop_in, epochs=1, report=stop)
        assert outcome(tmp_path / stop_in, train(tmp_path / stop_in, epochs=1)[0]) == whole


@pytest.mark.parametrize("last_layer", ["point", "dropout"])
def test_estimated_noise_levels_survive_too(tmp_path: Path, last_layer: str) -> None:
    def stop(report: dict[str, Any]) -> None:
        if report["stage"] == "block-02":
            raise Interrupted

    whole = outcome(tmp_path / "whole", train(tmp_path / "whole", last_layer=last_layer)[0])
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", last_layer=last_layer, report=stop)
    assert outcome(tmp_path / "cut", train(tmp_path / "cut", last_layer=last_layer)[0]) == whole


def test_the_run_folder_itself_changes_nothing(uninterrupted: Callable[[str], dict[str, Any]]) -> None:
    model, _ = train(None)
    expected = uninterrupted("greedy")
    assert all(expected[name] == value.numpy().tobytes() for name, value in model.state_dict().items())


# --- a full disk ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full after `limit` bytes of a file, as the operating system has it."""
    resource = pytest.importorskip("resource", reason="this system cannot limit the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [10, 5_000, 300_000])  # too little for the settings, for the progress, for a few lines more
def test_a_disk_that_is_full_is_one_sentence_and_leaves_nothing_half_written(
    tmp_path: Path, limit: int, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match=r"cannot write .*: File too large; ") as caught, files_no_larger_than(limit):
        train(run)
    assert "\n" not in str(caught.value)
    assert {path.name for path in run.iterdir()} <= {"settings.json", "metrics.jsonl"}
    assert outcome(run, train(run)[0]) == uninterrupted("greedy")


@pytest.mark.parametrize("calls", range(12))
def test_no_room_at_any_moment(
    tmp_path: Path, calls: int, monkeypatch: pytest.MonkeyPatch, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    """The disk is full from some call on, which fsync is the last to notice."""
    run, left, fsync = tmp_path / "run", [calls], os.fsync

    def no_room(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(InputError, match=r"cannot write .*: No space left on device; .*room"):
            train(run)
    assert not list(run.glob(".*"))
    assert outcome(run, train(run)[0]) == uninterrupted("greedy")


# --- killed --------------------------------------------------------------------------------------------------------


def no_wait(descriptor: int) -> None:
    """In place of fsync."""


def life(run: Path, changes: dict[str, Any], die_at: int | None = None, count: Any = None) -> None:
    """A process that trains in the run folder; it may die just before the `die_at`-th change that it makes there."""
    torch.set_num_threads(1)
    os.fsync = no_wait  # the system survives a killed process, so nothing needs to reach the disk
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = event in ("os.mkdir", "os.rename", "os.remove") or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and str(arguments[0]).startswith(str(run)):
            if seen == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(hook)
    train(run, **changes)
    if count is not None:
        count.value = seen


needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")


def live(*arguments: Any, for_seconds: float = 60.0) -> int:
    """Run one life, kill it if it lasts too long, and give its exit code."""
    process = process_context().Process(target=life, args=arguments)
    process.start()
    process.join(for_seconds)
    process.kill()
    process.join()
    return int(process.exitcode)


@needs_kill
def test_killed_at_random_moments(tmp_path: Path) -> None:
    changes = {"epochs": 10}
    expected = outcome(tmp_path / "in peace", train(tmp_path / "in peace", **changes)[0])
    assert live(tmp_path / "warm-up", changes) == 0  # which waits for the server of processes
    start = time.perf_counter()
    assert live(tmp_path / "timed", changes) == 0
    whole, moments, kills = time.perf_counter() - start, random.Random(0), 0
    for number in range(20):  # one or two are enough where the clock is steady
        run = tmp_path / str(number)
        while (code := live(run, changes, for_seconds=whole * moments.uniform(0.3, 0.9))) != 0:
            assert code == -signal.SIGKILL
            kills += 1
        model, _ = train(run, **changes)
        assert outcome(run, model) == expected
        assert not list(run.glob(".*"))
        if kills >= 4:
            return
    raise AssertionError(f"only {kills} processes could be killed in time")


@needs_kill
def test_killed_before_everything_that_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", no_wait)
    changes = {"epochs": 1, "initialise": "fresh"}
    count = process_context().Value("i", 0)
    assert live(tmp_path / "in peace", changes, None, count) == 0
    expected = outcome(tmp_path / "in peace", train(tmp_path / "in peace", **changes)[0])
    assert count.value > 20
    for moment in range(count.value):
        run = tmp_path / str(moment)
        assert live(run, changes, moment) == -signal.SIGKILL
        model, _ = train(run, **changes)
        assert outcome(run, model) == expected, f"killed before change {moment}"
        assert not list(run.glob(".*"))
