"""From the attributes of a scan file, whatever its format, to the geometry and what else is known of the scan."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bdgd.checks import InputError, require_positive
from bdgd.data.noise import Noise, noise_from_dict
from bdgd.data.units import millimetres
from bdgd.operators import Geometry
from bdgd.operators.geometry_files import OF_A_SCAN, geometry_from_attributes

VERSION = 1
OWN = (*OF_A_SCAN, "angles_degrees")  # attributes that are not the geometry's own
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
    geometry = geometry_from_attributes({name: value for name, value in attributes.items() if name not in OF_A_SCAN})
    spacing = attributes.get("slice_spacing")
    return Header(
        geometry,
        _noise(attributes["noise"]) if "noise" in attributes else None,
        _unit(attributes.get("unit")),
        None if spacing is None else require_positive(spacing, "slice_spacing"),
        _doubts(geometry),
    )


def _noise(value: Any) -> Noise:
    try:
        values = value if isinstance(value, dict) else json.loads(value)
    except (TypeError, ValueError, RecursionError):
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
