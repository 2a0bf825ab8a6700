"""A scanner as a file describes it, and the geometry that a model for it is trained on: its views, its grid, its detectors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from bdgd.checks import InputError, require_count, require_number
from bdgd.data.files import open_stack
from bdgd.data.formats import format_of
from bdgd.data.formats.attributes import read_header
from bdgd.data.scans import Scans
from bdgd.operators import Geometry
from bdgd.operators.geometry_files import OF_A_STACK, read_attributes

#: pixels along a side unless the scan's image has fewer, or --size says otherwise
USUAL_SIZE = 256
SMALLEST, LARGEST = 16, 1024
_SAME_ANGLE = 1e-6  # radians: views closer than this are one view measured twice

G = TypeVar("G", bound=Geometry)


@dataclass(frozen=True, eq=False)
class Scanner:
    """A geometry and, where the file was a scan, its middle slice."""

    name: str
    geometry: Geometry
    scan: Scans | None = None
    unit: str | None = None
    notes: tuple[str, ...] = ()  # what its reader repaired or found strange


def read_scanner(path: Path) -> Scanner:
    """From any scan file, or from a geometry as TOML or JSON."""
    if path.suffix.lower() in (".toml", ".json") or (path.is_file() and not _is_scan(path)):
        header = read_header({name: value for name, value in read_attributes(path).items() if name not in OF_A_STACK})
        return Scanner(path.name, header.geometry, None, header.unit, header.notes)
    with open_stack(path) as stack:
        scan = stack[len(stack) // 2]
    assert scan.geometry is not None
    return Scanner(path.name, scan.geometry, scan, scan.unit, scan.notes)


def _is_scan(path: Path) -> bool:
    """Whether a scan file's reader knows the file; all else is taken as a geometry."""
    try:
        format_of(path)
    except InputError:
        return False
    return True


def training_geometry(
    geometry: Geometry, *, views: int | None = None, arc: float | None = None, size: int | None = None
) -> tuple[Geometry, list[str]]:
    """The geometry that a model for this scanner has, and a sentence for each thing that differs.

    arc: only the first so many degrees. views: so many of the rest, equally far apart. size: pixels along a side, over the same
    field; the image becomes square, and detectors narrower than half a pixel are joined.
    """
    notes: list[str] = []
    chosen = _views(geometry, views, arc)
    if len(chosen) < geometry.views:
        notes.append(f"{len(chosen)} of the scan's {geometry.views} views")
        geometry = geometry[chosen]
    sides = geometry.image_size
    side = min(max(sides), USUAL_SIZE) if size is None else require_count(size, "--size")
    if not SMALLEST <= side <= LARGEST:
        raise InputError(f"--size must lie between {SMALLEST} and {LARGEST} pixels, got {side}")
    if sides != (side, side):
        pixel = geometry.pixel_size * max(sides) / side
        notes.append(f"{side} x {side} pixels of {pixel:.5g} for the scan's {sides[0]} x {sides[1]} of {geometry.pixel_size:.5g}")
        geometry = replace(geometry, image_size=(side, side), pixel_size=pixel)
    joined = int(geometry.pixel_size / geometry.axis_spacing + 0.05)
    if joined > 1:
        notes.append(f"{joined} neighbouring detectors averaged into one, as wide as a pixel")
        geometry = _binned(geometry, joined)
    return geometry, notes


def _views(geometry: Geometry, views: int | None, arc: float | None) -> list[int]:
    """Numbers of the views to use; one that only repeats the first, a whole period later, is left out."""
    gone = _gone(geometry)
    periods = float(gone.max()) / geometry.period
    closed = round(periods) >= 1 and abs(periods - round(periods)) < 1e-6
    chosen = np.flatnonzero(gone < gone.max() - 1e-6) if closed and (views, arc) != (None, None) else np.arange(len(gone))
    if arc is not None:
        wanted, span = require_number(arc, "--arc"), math.degrees(geometry.arc[1])  # a view stands for the way to the next
        if not 0 < wanted <= span * (1 + 1e-6):
            raise InputError(f"--arc must be above 0 and at most the {span:.4g} degrees that the scan's views stand for, got {wanted:g}")
        chosen = chosen[gone[chosen] < math.radians(wanted) - 1e-9]
    if views is not None:
        wanted_views = require_count(views, "--views")
        if wanted_views > len(chosen):
            raise InputError(f"--views {views}: there are only {len(chosen)} views to choose from; give at most that many")
        chosen = chosen[_equally_far(gone[chosen], wanted_views)]
    return [int(number) for number in chosen]


def _gone(geometry: Geometry) -> np.ndarray:
    """(V,) how far, in radians, each view is from the first in the direction of the scan.

    Angles that start again at 0 within one turn are continued. Of views in no order, or of angles that start again more than once,
    nobody knows how often the scanner went round: they are as far as their angles say, modulo the geometry's period.
    """
    angles = np.asarray(geometry.angles)
    if _rises(angles):
        return np.abs(angles - angles[0])
    continued = np.unwrap(angles)
    turned = np.abs(continued - continued[0])
    if _rises(continued) and turned.max() < 2 * math.pi + _SAME_ANGLE:
        return turned
    direction = 1.0 if continued[-1] >= continued[0] else -1.0
    gone: np.ndarray = np.mod(direction * (angles - angles[0]) + _SAME_ANGLE, geometry.period) - _SAME_ANGLE
    return gone


def _rises(angles: np.ndarray) -> bool:
    """Whether every view lies behind the one before it, in one direction."""
    steps = np.diff(angles)
    return bool((steps > -_SAME_ANGLE).all() or (steps < _SAME_ANGLE).all())


def _equally_far(gone: np.ndarray, count: int) -> np.ndarray:
    """(count,) places in `gone`, rising, of views about equally far apart in angle: the last at or before each whole share of the arc."""
    around = np.mod(gone + _SAME_ANGLE, 2 * math.pi) - _SAME_ANGLE
    order = np.argsort(around, kind="stable")
    around = around[order]
    steps = int((np.diff(around) > _SAME_ANGLE).sum())
    arc = min(around[-1] * (steps + 1) / max(steps, 1), 2 * math.pi)  # the last view too stands for the way to the next
    first = np.arange(count)
    places = np.searchsorted(around, first * arc / count + _SAME_ANGLE, side="right") - 1
    places = np.maximum.accumulate(places - first) + first  # no view twice,
    places = np.minimum(places, len(gone) - count + first)  # nor more than there are
    return np.sort(order[places])


def _binned(geometry: G, joined: int) -> G:
    """The detectors in groups of `joined`; what is left over is left out at both ends."""
    groups = geometry.detectors // joined
    first = (geometry.detectors - groups * joined) // 2
    middle = first + (groups * joined - 1) / 2 - (geometry.detectors - 1) / 2  # of the new line, in detectors from the old middle
    offset = geometry.detector_offset + middle * geometry.detector_spacing
    return replace(geometry, detectors=groups, detector_spacing=joined * geometry.detector_spacing, detector_offset=offset)
