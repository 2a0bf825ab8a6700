"""Geometries from what they were written as: plain values, TOML or JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from bdgd.checks import InputError
from bdgd.operators.geometry import FanBeam, Geometry, ParallelBeam

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
    return _BEAMS[name](**values)


def read_geometry(path: str | Path) -> Geometry:
    """The geometry in a `.toml` or `.json` file."""
    import tomllib

    path = Path(path)
    try:
        text = path.read_text()
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the geometry {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid {path.suffix.lstrip('.').upper() or 'TOML'}: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold the keys of a geometry, got {type(values).__name__}")
    return geometry_from_dict(values)
