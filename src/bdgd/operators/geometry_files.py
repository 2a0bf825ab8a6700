"""Geometries from what they were written as: plain values, TOML or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from bdgd.checks import InputError, require_count, require_number
from bdgd.operators.geometry import FanBeam, Geometry, ParallelBeam

LARGEST_FILE = 2**23  # bytes: a million angles
MOST_PIXELS = 2**28  # 16384 x 16384: an image that no machine should be asked for by a misprint
MOST_VIEWS = MOST_DETECTORS = 10**6
#: what a file has besides its geometry: what is known of a scan, and where the rest of a TIFF scan lies
OF_A_SCAN = ("format_version", "noise", "unit", "slice_spacing")
OF_A_STACK = ("pages", "flat", "dark", "image")

_BEAMS: dict[str, type[Geometry]] = {kind.beam: kind for kind in (ParallelBeam, FanBeam)}


def geometry_from_dict(values: dict[str, Any]) -> Geometry:
    """The geometry that `Geometry.to_dict` described; an unknown or missing key is an error."""
    values = dict(values)
    name = values.pop("beam", None)
    if not isinstance(name, str) or name not in _BEAMS:
        raise InputError(f"a geometry needs beam = 'parallel' or 'fan', got {name!r}")
    known = {field.name for field in fields(_BEAMS[name])}
    required = known - {"detector_spacing", "detector_offset", "pixel_size"}
    if unknown := sorted(set(values) - known):
        raise InputError(f"unknown key {unknown[0]!r} in a {name}-beam geometry; known are {', '.join(sorted(known))}")
    if missing := sorted(required - set(values)):
        raise InputError(f"a {name}-beam geometry needs {missing[0]!r}; add it")
    try:
        return _BEAMS[name](**values)
    except OverflowError:
        raise InputError(f"a number of the {name}-beam geometry has more digits than a float can have; write a smaller one") from None


def geometry_from_attributes(attributes: Mapping[str, Any]) -> Geometry:
    """The geometry that a file describes: angles may be `angles_degrees`, and a misprint must not ask for more than any machine has."""
    values = dict(attributes)
    if "angles_degrees" in values:
        if "angles" in values:
            raise InputError("angles (in radians) and angles_degrees exclude each other; give one of them")
        values["angles"] = np.deg2rad(_degrees(values.pop("angles_degrees")))
    if isinstance(values.get("angles"), str):  # numpy would read text as a number
        raise InputError("angles must be numbers in radians, got text; write one number per view")
    geometry = geometry_from_dict(values)
    if math.prod(geometry.image_size) > MOST_PIXELS:
        raise InputError(f"image_size is {_short(geometry.image_size)}, more than {MOST_PIXELS} pixels; check that it is given in pixels")
    if geometry.detectors > MOST_DETECTORS:
        raise InputError(f"detectors is {_short(geometry.detectors)}, more than the {MOST_DETECTORS} that are read; check their number")
    return geometry


def _degrees(value: Any) -> np.ndarray:
    """(V,) angles in degrees: a list, or equidistant as {first, step, count}."""
    if isinstance(value, Mapping):
        if set(value) != {"first", "step", "count"}:
            raise InputError(f"angles_degrees needs first, step and count, got {', '.join(map(str, value))[:200] or 'nothing'}")
        count = require_count(value["count"], "angles_degrees.count")
        if count > MOST_VIEWS:
            raise InputError(f"angles_degrees.count is {_short(count)}, more than the {MOST_VIEWS} views that are read")
        first, step = require_number(value["first"], "angles_degrees.first"), require_number(value["step"], "angles_degrees.step")
        return first + step * np.arange(count)
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiu":
        raise InputError(f"angles_degrees must be numbers, got {_short(value)}; write one number per view")
    return array.astype(np.float64)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_geometry(path: str | Path) -> Geometry:
    """The geometry in a `.toml` or `.json` file, written with angles in radians or degrees; what else such a file says is left aside."""
    values = read_attributes(Path(path))
    return geometry_from_attributes({name: value for name, value in values.items() if name not in (*OF_A_SCAN, *OF_A_STACK)})


def read_attributes(path: Path) -> dict[str, Any]:
    """What a geometry file says: JSON where its suffix says so, else TOML."""
    import tomllib

    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot read the geometry {path}: {error.strerror}") from None
    if len(data) > LARGEST_FILE:
        raise InputError(f"the geometry {path} has more than the {LARGEST_FILE} bytes that are read; give the geometry alone")
    kind, read = ("JSON", json.loads) if path.suffix.lower() == ".json" else ("TOML", tomllib.loads)
    try:
        values = read(data.decode("utf-8-sig"))  # editors on Windows begin a file with a mark
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid {kind}, and has no suffix of a scan file: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold the keys of a geometry, got {type(values).__name__}")
    return values
