"""How times, memory and growth are measured, the same way for everything that is compared."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from bdgd.evaluation.timing import Job, seconds_of

#: A first call that takes longer than this many seconds counts itself on a CPU: what it warms up is no matter then. On a GPU it
#: may have compiled kernels for as long, so it never counts.
LONG = 2.0

Row = dict[str, Any]


def timed(job: Job, device: torch.device, *, seconds: float = 0.3, most: int = 9) -> float:
    """The median time of a call in seconds, after one that does not count: as many calls as fit into `seconds`, `most` at most."""
    first = seconds_of(job, device)
    if first > LONG and device.type == "cpu":
        return first
    times: list[float] = []
    while not times or (len(times) < most and sum(times) < seconds):
        times.append(seconds_of(job, device))
    return median(times)


def in_use(device: torch.device) -> int:
    """Bytes that tensors hold on a GPU; 0 elsewhere, where PyTorch does not count."""
    if device.type != "cuda":
        return 0
    gc.collect()
    return torch.cuda.memory_allocated(device)


class Peak:
    """What `peak_memory` found, in bytes; None where it cannot be known."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """The most memory that tensors held on a GPU inside the block, beyond what they held before it."""
    peak = Peak()
    before = in_use(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield peak
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before


class KeptForBackward:
    """`with KeptForBackward() as kept: train(...)`: the most bytes that were kept at once to differentiate with, on any device.

    A tensor that several operations keep counts once. On a CPU, where PyTorch does not count its memory, this is the part of
    it that grows when more is differentiated through.
    """

    def __init__(self) -> None:
        self.bytes = self._now = 0
        self._holders: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept.tensor)

    def __enter__(self) -> KeptForBackward:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _keep(self, tensor: Tensor) -> _Kept:
        return _Kept(self, tensor)

    def add(self, place: int, size: int) -> None:
        """One more operation keeps what is at that place in memory."""
        self._holders[place] = self._holders.get(place, 0) + 1
        if self._holders[place] == 1:
            self._now += size
            self.bytes = max(self.bytes, self._now)

    def drop(self, place: int, size: int) -> None:
        """One operation fewer keeps it."""
        self._holders[place] -= 1
        if not self._holders[place]:
            del self._holders[place]
            self._now -= size


class _Kept:
    """A tensor that an operation keeps for its gradient, until autograd drops it."""

    def __init__(self, meter: KeptForBackward, tensor: Tensor):
        storage = tensor.untyped_storage()
        self.meter, self.tensor, self.place, self.size = meter, tensor, storage.data_ptr(), storage.nbytes()
        meter.add(self.place, self.size)

    def __del__(self) -> None:
        self.meter.drop(self.place, self.size)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How y grows with x: the exponent p of the power law y = c x^p nearest to the points, by least squares of the logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    x_mean, y_mean = fmean(x for x, _ in logs), fmean(y for _, y in logs)
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / sum((x - x_mean) ** 2 for x, _ in logs)
