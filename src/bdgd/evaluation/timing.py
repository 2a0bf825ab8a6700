"""Seconds that count the work of a GPU too, which goes on after the call that asked for it has returned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Job = Callable[[], Any]


def synchronise(device: torch.device) -> None:
    """Wait for all that a GPU was asked to do; other devices do it at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(job: Job, device: torch.device) -> float:
    """Seconds of one call."""
    synchronise(device)
    start = time.perf_counter()
    job()
    synchronise(device)
    return time.perf_counter() - start
