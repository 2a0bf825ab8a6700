"""A calibration: the plain, frozen value that makes a model's intervals cover their level. `bdgd.calibrate` makes it.

It holds for one model (its weights), geometry, noise, number of draws and way of drawing. Other weights and geometries are refused where it
is joined to a model, other draws where intervals are asked for, another noise by the command line, which knows that of its scans. Not
checked is the precision of the draws: bfloat16 widens their spread a little, see docs/honesty.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.operators import Geometry, LinearOperator

Row = tuple[float, ...]
Table = tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class RegionCalibration:
    """How wide the interval of a region must be, measured on random discs, half of them centred on the object.

    window: pixels a side within which errors share a smooth part. areas: the A + 1 edges, in pixels, of the A bins of region size.
    Half widths (levels, A): mean, in standard deviations of a region's mean; contrast, of the difference of two; area, the z to
    which pixel intervals must reach for the number of pixels above a threshold.
    """

    images: int
    discs: int
    levels: Row
    window: int
    areas: Row
    mean: Table
    contrast: Table
    area: Table

    def factor(self, table: str, level: float, areas: Tensor) -> Tensor:
        """The entry of `mean`, `contrast` or `area` for regions of so many pixels, of any shape; beyond calibrated sizes the nearest."""
        row = torch.tensor(at_level(level, self.levels, getattr(self, table)), dtype=torch.float64, device=areas.device)
        return row[torch.bucketize(areas.double(), torch.tensor(self.areas[1:-1], dtype=torch.float64, device=areas.device))]


@dataclass(frozen=True)
class AlarmReference:
    """What the alarm's witnesses say about ordinary images, for `bdgd.inference.alarm`.

    names: the J witnesses; shares: of the budget of false alarms. quantiles: of the logarithm of each witness on one half of the
    calibration images, from 0 to 90 %, (J, quantiles); tails: its mean excess beyond. scores: the combined scores of the other
    half, rising. false_alarms: the share of ordinary images that may turn red.
    """

    names: tuple[str, ...]
    shares: Row
    quantiles: Table
    tails: Row
    scores: Row
    false_alarms: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """levels: the L stated levels, rising. std_edges: the predicted standard deviations between strata. z: to how many Gaussian
    standard deviations the predictive's interval must reach, (L, strata). images: those that the guarantee rests on.
    weights: the model's fingerprint; arguments: how it is built, None in files from before this was kept.
    """

    draws: int
    draw: str
    noise: dict[str, Any] | None
    geometry: dict[str, Any] | None
    weights: str
    images: int
    levels: Row
    std_edges: Row
    z: Table
    regions: RegionCalibration | None = None
    alarm: AlarmReference | None = None
    arguments: dict[str, Any] | None = None

    def z_at(self, level: float, std: Tensor) -> Tensor:
        """z for pixels of predicted standard deviation `std`, shaped like it, float64."""
        row = torch.tensor(at_level(level, self.levels, self.z), dtype=torch.float64, device=std.device)
        return row[torch.bucketize(std.double(), torch.tensor(self.std_edges, dtype=torch.float64, device=std.device))]

    def fits(self, A: LinearOperator) -> bool:
        """Whether the operator has the geometry of the calibration images, as far as both are known."""
        geometry = getattr(A, "geometry", None)
        return not isinstance(geometry, Geometry) or self.geometry is None or geometry.to_dict() == self.geometry

    def require(self, draws: int, draw: str, complete: bool = True) -> None:
        """Raise unless a posterior was made as the calibration images were."""
        if not complete:
            raise InputError(
                "the calibration holds for the whole cascade, not for its first blocks; ask for interval(..., calibrated=False)"
            )
        if (draws, draw) != (self.draws, self.draw):
            raise InputError(
                f"the calibration holds for {self.draws} draws of {self.draw}, the posterior has {draws} of {draw}; reconstruct with"
                f" draws={self.draws}, draw={self.draw!r}, calibrate anew, or ask for interval(..., calibrated=False)"
            )

    def require_noise(self, noise: dict[str, Any] | None) -> None:
        """Raise if scans are known to have another noise than the calibration images; unknown noise passes."""
        if noise is not None and self.noise is not None and noise != self.noise:
            raise InputError(f"the calibration holds for the noise {self.noise}, the scans have {noise}; calibrate on scans like these")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file; `calibration_from_dict` reads them back."""
        return asdict(self)

    def fingerprint(self) -> str:
        """Sixteen letters that are the same for the same calibration, also for one of a file from before `arguments` was kept."""
        told = {name: value for name, value in self.to_dict().items() if name != "arguments" or value is not None}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def calibration_from_dict(values: dict[str, Any]) -> Calibration:
    """The calibration that `to_dict` described; an unknown or missing key is an error."""
    if not isinstance(values, dict):
        raise InputError(f"a calibration must be a table of names and values, got {type(values).__name__}; calibrate the model anew")
    parts: dict[str, Any] = {"regions": RegionCalibration, "alarm": AlarmReference}
    inner = {name: _built(kind, values[name]) for name, kind in parts.items() if values.get(name) is not None}
    calibration: Calibration = _built(Calibration, values | inner)
    try:
        whole = _is_whole(calibration)
    except (TypeError, ValueError, IndexError):
        whole = False
    if not whole:
        raise InputError("the calibration is damaged: its tables do not fit its levels and strata; calibrate the model anew")
    return calibration


def _is_whole(calibration: Calibration) -> bool:
    """Whether tables have a row per level and an entry per stratum or size, of numbers that can be half widths."""
    levels, regions, alarm = calibration.levels, calibration.regions, calibration.alarm
    fits = [isinstance(calibration.draws, int), _rises(levels), _rises(calibration.std_edges)]
    fits.append(_is_table(calibration.z, len(levels), len(calibration.std_edges) + 1))
    if regions is not None:
        tables = (regions.mean, regions.contrast, regions.area)
        fits += [_rises(regions.levels), _rises(regions.areas)]
        fits += [_is_table(table, len(regions.levels), len(regions.areas) - 1) for table in tables]
    if alarm is not None:
        witnesses = {len(part) for part in (alarm.names, alarm.shares, alarm.quantiles, alarm.tails)}
        fits += [len(witnesses) == 1, list(alarm.scores) == sorted(alarm.scores)]
    return all(fits)


def _rises(row: Row) -> bool:
    return all(a <= b for a, b in pairwise(row))


def _is_table(table: Table, rows: int, columns: int) -> bool:
    """Whether a table has that size, of numbers from 0 on; a width may be infinite."""
    return len(table) == rows and all(len(row) == columns and all(value >= 0 for value in row) for row in table)


def _built(kind: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        raise InputError(f"a {kind.__name__} must be a table of names and values, got {type(values).__name__}; calibrate the model anew")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise InputError(f"unknown key {unknown[0]!r} in a {kind.__name__}; known are {', '.join(sorted(known))}")
    try:
        return kind(**{name: _tuples(value) for name, value in values.items()})
    except TypeError as error:
        raise InputError(f"a {kind.__name__} is not complete: {error}") from None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value


def require_level(level: float) -> float:
    """`level` as a float; raise unless it lies between 0 and 1."""
    if not 0 < require_number(level, "level") < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    return float(level)


def at_level(level: float, levels: Row, table: Table) -> list[float]:
    """The row of `table` (L, n) for that level, linear between stated levels and from 0 at level 0; raise above the highest."""
    level = require_level(level)
    if not levels or level > levels[-1] + 1e-6:
        highest = f"up to {levels[-1]:g}" if levels else "for no level at all"
        raise InputError(f"the calibration holds {highest}, got level {level:g}; calibrate on more images for higher levels")
    above = next(number for number, stated in enumerate(levels) if stated >= level - 1e-6)
    low_level, low = (levels[above - 1], table[above - 1]) if above else (0.0, (0.0,) * len(table[0]))
    part = min(1.0, (level - low_level) / (levels[above] - low_level))
    return [a + part * (b - a) for a, b in zip(low, table[above], strict=True)]
