"""The scanner of the Helsinki Tomography Challenge 2022 in this package's words.

A fan beam with a flat detector in millimetres; the organisers' angles are this package's, without a flip. The files do not say where the
image is: the organisers use 512 x 512 pixels for 560 detectors, each as wide as a detector is at the axis, and so does this reader.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bdgd.checks import InputError, require_count, require_number, require_positive
from bdgd.operators.geometry_files import MOST_VIEWS

_SIDE = 512 / 560  # pixels along a side of the image per detector


def attributes(lengths: tuple[float, float, float], detectors: int, degrees: Any, unit: str) -> dict[str, Any]:
    """The attributes of a scan file with the challenge's image grid; lengths: source to axis, source to detector, detector spacing."""
    source_to_axis, source_to_detector, spacing = lengths
    pixel = spacing * source_to_axis / source_to_detector
    return {
        "beam": "fan",
        "image_size": max(1, round(_SIDE * detectors)),
        "angles_degrees": degrees,
        "detectors": detectors,
        "detector_spacing": spacing,
        "pixel_size": pixel,
        "source_to_axis": source_to_axis,
        "source_to_detector": source_to_detector,
        "unit": unit,
    }


def compact_attributes(geo: dict[str, Any]) -> dict[str, Any]:
    """From the JSON of the compact files: type, sod, sdd, det_pix, n_det, unit, angles_deg ("0..359 step 1" or a list)."""
    if missing := sorted({"type", "sod", "sdd", "det_pix", "n_det", "angles_deg", "unit"} - set(geo)):
        raise InputError(f"geo needs {missing[0]!r}; add it, or give the geometry as Geometry.to_json() under the key geometry")
    if geo["type"] != "fan-flat":
        raise InputError(f"geo must have the type 'fan-flat', got {str(geo['type'])[:80]!r}")
    sod, sdd, spacing = (require_positive(geo[name], f"geo's {name}") for name in ("sod", "sdd", "det_pix"))
    return attributes((sod, sdd, spacing), require_count(geo["n_det"], "geo's n_det"), _degrees(geo["angles_deg"]), geo["unit"])


def _degrees(value: Any) -> np.ndarray | list[float]:
    if isinstance(value, list):
        return [require_number(angle, "geo's angles_deg") for angle in value]
    found = re.fullmatch(r"(-?\d{1,6})\.\.(-?\d{1,6}) step (\d{1,6})", str(value)[:80])
    if found is None or int(found[3]) == 0:
        raise InputError(f"geo's angles_deg must be a list of degrees or read like '0..359 step 1', got {str(value)[:80]!r}")
    first, last, step = map(int, found.groups())
    if not 0 <= (last - first) // step < MOST_VIEWS:
        raise InputError(f"geo's angles_deg must rise from {first} by at most {MOST_VIEWS} views, got {value!r}")
    return np.arange(first, last + 1, step)
