"""Turns between trainings: held by one, passed on and taken back, given back after an error, and nothing beside who is alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bdgd.training import turns


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


@pytest.mark.parametrize("inside", [turns.turn, turns.alone])
def test_an_error_in_the_turn_of_a_stepping_thread_leaves_nobody_waiting(inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_stepping", 0)  # a wrong count would keep the tests after this one waiting
    with pytest.raises(ZeroDivisionError), turns.turn(), turns.meanwhile(), inside():
        raise ZeroDivisionError
    assert turns._stepping == 0 and not turns._captured and not turns._turn.locked()
    with turns.turn(), turns.meanwhile():  # caught within the steps, they go on
        with pytest.raises(ZeroDivisionError), inside():
            raise ZeroDivisionError
        assert turns._stepping == 1
    ended = threading.Event()

    def another() -> None:
        with turns.alone():
            ended.set()

    threading.Thread(target=another, daemon=True).start()
    assert ended.wait(60)


def test_an_interrupt_while_waiting_to_go_on_is_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), turns.turn():
        monkeypatch.setattr(turns, "_go_on", interrupted)
        with turns.meanwhile():
            raise AssertionError("never gets here")
    assert turns._stepping == 0 and not turns._turn.locked()
