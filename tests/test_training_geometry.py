"""The geometry to train on for a scan: its views, arc and size as wished, over the same field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from discs import COARSE_FAN as FAN

from bdgd.checks import InputError
from bdgd.data.scanner import training_geometry
from bdgd.operators import Geometry


def angles(geometry: Geometry, **wishes: Any) -> np.ndarray:
    """Those of the geometry to train on, in degrees."""
    return np.rad2deg(training_geometry(geometry, **wishes)[0].angles)


def test_views_and_arcs_of_a_scan_that_ends_where_it_began() -> None:
    closed = replace(FAN, angles=np.deg2rad(np.arange(0, 360.1, 0.5)))  # 721 views
    assert np.allclose(angles(closed, views=60), np.arange(0, 360, 6))
    assert np.allclose(angles(closed, arc=30), np.arange(0, 30, 0.5))
    assert np.allclose(angles(closed, arc=90, views=45), np.arange(0, 90, 2))
    backwards = replace(FAN, angles=np.deg2rad(200 - np.arange(0, 180, 1.0)))
    assert np.allclose(angles(backwards, arc=4), [200, 199, 198, 197])
    assert len(training_geometry(FAN)[0].angles) == FAN.views


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"views": 91}, "--views 91: there are only 90 views"),
        ({"arc": 0}, "--arc must be above 0"),
        ({"arc": 361}, "at most the 360 degrees"),
        ({"size": 8}, "--size must lie between 16 and 1024 pixels, got 8"),
    ],
)
def test_impossible_wishes(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_geometry(FAN, **wishes)


def test_another_size_keeps_the_field_and_joins_detectors() -> None:
    geometry, notes = training_geometry(replace(FAN, image_size=(64, 48), detectors=141, detector_offset=0.3), size=32)
    assert geometry.image_size == (32, 32) and geometry.pixel_size * 32 == pytest.approx(FAN.pixel_size * 64)
    assert geometry.axis_spacing == pytest.approx(geometry.pixel_size, rel=0.01) and geometry.detectors == 35
    # the joined cells are where the first 140 of 141 were
    assert float(geometry.detector_positions()[0]) == pytest.approx((0 - 70) * 0.8 + 0.3 + 1.5 * 0.8)
    assert len(notes) == 2 and "averaged into one" in notes[1]
    assert training_geometry(replace(FAN, image_size=600, pixel_size=0.1))[0].image_size == (256, 256)
