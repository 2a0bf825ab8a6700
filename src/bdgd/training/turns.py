"""Trainings in several threads of one process: their steps run at the same time, everything else one training at a time.

Making data, compiling kernels and creating a library's handles is not safe beside the capture of a CUDA graph in another thread,
and PyTorch asks for more: that no other work of the process runs at all while one is captured. So a training holds the turn
(`turn`) and passes it on for as long as it only takes steps (`meanwhile`); whoever captures (`alone`) has the turn and waits
until the others stand still between two of their steps (`rest`). A training by itself waits for nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_turn = threading.Lock()
_stepping = 0  # threads inside `meanwhile` that do not rest
_captured = False  # whether some thread is, or wants to be, alone
_changed = threading.Condition()  # guards the two


class Stopped(Exception):
    """Raised between two steps in a thread that was asked to stop."""


class _Here(threading.local):
    """What this thread is doing."""

    has_turn = False
    steps = False
    stop: threading.Event | None = None


_here = _Here()


@contextmanager
def turn() -> Iterator[None]:
    """Inside, no other thread has the turn; in a thread that has it already, nothing happens."""
    if _here.has_turn:
        yield
        return
    stepped = _here.steps
    if stepped:  # whoever is alone must not wait for a thread that waits for the turn
        _stand_still()
    try:
        with _turn:
            _here.has_turn, _here.steps = True, False
            try:
                yield
            finally:
                _here.has_turn, _here.steps = False, stepped
    finally:
        if stepped:  # after an error too: `meanwhile` will count this thread out once more
            _go_on()


@contextmanager
def meanwhile() -> Iterator[None]:
    """Inside, others may have the turn, while this thread takes steps and calls `rest` between them."""
    if not _here.has_turn:
        yield
        return
    _turn.release()
    _here.has_turn = False
    try:
        _go_on()
        _here.steps = True
        yield
    finally:
        if _here.steps:
            _here.steps = False
            _stand_still()  # before waiting for the turn, as whoever has it may wait for this
        _turn.acquire()
        _here.has_turn = True


def rest() -> None:
    """Between two steps: wait while another thread is alone; `Stopped` if this one was asked to stop."""
    if _captured and _here.steps:
        _stand_still()
        _go_on()
    if _here.stop is not None and _here.stop.is_set():
        raise Stopped


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this thread has the turn and all that take steps stand still."""
    global _captured
    with turn():
        try:
            with _changed:
                _captured = True
                _changed.wait_for(lambda: _stepping == 0)
            yield
        finally:
            with _changed:
                _captured = False
                _changed.notify_all()


@contextmanager
def until(stop: threading.Event) -> Iterator[None]:
    """Inside, this thread's trainings end with `Stopped` at the first step after `stop` is set."""
    before, _here.stop = _here.stop, stop
    try:
        yield
    finally:
        _here.stop = before


def _stand_still() -> None:
    global _stepping
    with _changed:
        _stepping -= 1
        _changed.notify_all()


def _go_on() -> None:
    global _stepping
    with _changed:
        _changed.wait_for(lambda: not _captured)
        _stepping += 1
