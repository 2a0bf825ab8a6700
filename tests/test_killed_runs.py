"""A training that is killed at any moment, and is resumed, ends as if nothing had happened: bit for bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import process_context, same_numbers_everywhere
from tiny_runs import outcome, train


def no_wait(descriptor: int) -> None:
    """In place of fsync."""


def life(run: Path, changes: dict[str, Any], die_at: int | None = None, count: Any = None) -> None:
    """A process that trains in the run folder; it may die just before the `die_at`-th change that it makes there."""
    same_numbers_everywhere()
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
