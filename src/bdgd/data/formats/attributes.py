"""From the attributes of a scan file, whatever its format, to the geometry and what else is known of the scan."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bdgd.checks import InputError, require_count, require_number, require_positive
from bdgd.data.noise import Noise, noise_from_dict
from bdgd.data.units import millimetres
from bdgd.operators import Geometry, geometry_from_dict

VERSION = 1
OWN = ("format_version", "noise", "unit", "slice_spacing", "angles_degrees")  # attributes that are not the geometry's own
MOST_PIXELS = 2**28  # 16384 x 16384: an image that no machine should be asked for by a misprint
MOST_VIEWS = 10**6
_TURNS = 4  # beyond so many, angles in radians are more likely degrees


@dataclass(frozen=True)
class Header:
    """What a scan file says of its scans."""

    geometry: Geometry
    noise: Noise | None = None
    unit: str | None = None
    slice_spacing: float | None = None
    notes: tuple[str, ...] = ()


def read_header(attributes: Mapping[str, Any]) -> Header:
    """The header of a scan file; an unknown, missing or impossible attribute is an error."""
    version = attributes.get("format_version", VERSION)
    if version != VERSION:
        raise InputError(f"format_version is {_short(version)}, but this bdgd reads {VERSION}; update bdgd")
    geometry = _geometry(attributes)
    if math.prod(geometry.image_size) > MOST_PIXELS:
        raise InputError(f"image_size is {geometry.image_size}, more than {MOST_PIXELS} pixels; check that it is given in pixels")
    spacing = attributes.get("slice_spacing")
    return Header(
        geometry,
        _noise(attributes["noise"]) if "noise" in attributes else None,
        _unit(attributes.get("unit")),
        None if spacing is None else require_positive(spacing, "slice_spacing"),
        _doubts(geometry),
    )


def _geometry(attributes: Mapping[str, Any]) -> Geometry:
    values = {name: value for name, value in attributes.items() if name not in OWN}
    if "angles_degrees" in attributes:
        if "angles" in values:
            raise InputError("angles (in radians) and angles_degrees exclude each other; give one of them")
        values["angles"] = np.deg2rad(_degrees(attributes["angles_degrees"]))
    if isinstance(values.get("angles"), str):  # numpy would read text as a number
        raise InputError("angles must be numbers in radians, got text; write one number per view")
    return geometry_from_dict(values)


def _degrees(value: Any) -> np.ndarray:
    """(V,) angles in degrees: a list, or equidistant as {first, step, count}."""
    if isinstance(value, Mapping):
        if set(value) != {"first", "step", "count"}:
            raise InputError(f"angles_degrees needs first, step and count, got {', '.join(map(str, value))[:200] or 'nothing'}")
        count = require_count(value["count"], "angles_degrees.count")
        if count > MOST_VIEWS:
            raise InputError(f"angles_degrees.count is {count}, more than the {MOST_VIEWS} views that are read")
        first, step = require_number(value["first"], "angles_degrees.first"), require_number(value["step"], "angles_degrees.step")
        return first + step * np.arange(count)
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise InputError(f"angles_degrees must be numbers, got {_short(value)}; write one number per view")
    return array.astype(np.float64)


def _noise(value: Any) -> Noise:
    try:
        values = value if isinstance(value, dict) else json.loads(value)
    except (TypeError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"noise must be a JSON object such as {{'kind': 'gaussian', 'relative': 0.01}}, got {_short(value)}")
    return noise_from_dict(values)


def _unit(value: Any) -> str | None:
    if value is None:
        return None
    millimetres(value)
    return str(value)


def _doubts(geometry: Geometry) -> tuple[str, ...]:
    turns = (max(geometry.angles) - min(geometry.angles)) / (2 * math.pi)
    if turns <= _TURNS:
        return ()
    return (f"the angles span {turns:.1f} turns: if they are degrees, name them angles_degrees",)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
