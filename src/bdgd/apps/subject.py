"""What a report is about, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bdgd.apps.outputs import Grid
from bdgd.apps.places import Places
from bdgd.inference import Alarm, Posterior
from bdgd.inference.residual import Residual
from bdgd.inference.witnesses import IN_WORDS
from bdgd.operators import Geometry

#: A residual of so many times the noise is no matter of chance, nor of a noise that was estimated too low.
UNEXPLAINED = 2.0


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """One slice of a stack, small: the mean (h, w) and the numbers below it."""

    slice: int
    mean: Tensor
    std: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Subject:
    """One slice with all that its report says; posterior, fbp and truth hold that one image, (1, 1, H, W)."""

    name: str
    geometry: Geometry
    grid: Grid
    posterior: Posterior
    fbp: Tensor
    residual: Residual
    places: Places
    level: float
    origin: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    truth: Tensor | None = None
    slice: int = 0
    alarm: Alarm | None = None  # where the model is calibrated
    thumbnails: Sequence[Thumbnail] = ()
    notes: Sequence[str] = ()  # what was done to the scan before it was reconstructed, a sentence each

    @property
    def calibrated(self) -> bool:
        return self.posterior.calibrated

    def doubt(self) -> str:
        """Why the error bars need not hold for this scan, in a sentence; empty where nothing speaks against them."""
        told = []
        if self.alarm is not None and self.alarm.light[0] == "red":
            told.append(f"the alarm is red, since {IN_WORDS[self.alarm.reason()]}")
        if self.residual.ratio >= UNEXPLAINED:
            told.append(f"the image leaves {self.residual.ratio:.3g} times the noise unexplained")
        if not told:
            return ""
        return f"The error bars need not hold for this scan: {', and '.join(told)}."
