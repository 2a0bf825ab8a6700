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
from bdgd.operators import Geometry


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
