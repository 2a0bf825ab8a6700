"""The geometry to train on for a scan: its views, arc and size as wished, over the same field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from discs import COARSE_FAN as FAN

from bdgd.checks import InputError
from bdgd.data.scanner import training_geometry
from bdgd.operators import Geometry, ParallelBeam

PARALLEL = ParallelBeam.sparse(image_size=64, views=30)


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


WRAPPED = (350 + np.arange(360.0)) % 360


@pytest.mark.parametrize(("degrees", "first"), [(WRAPPED, 350.0), (WRAPPED[::-1], 349.0)])
def test_an_arc_goes_on_where_the_angles_start_again_at_0(degrees: np.ndarray, first: float) -> None:
    direction = 1 if first == 350 else -1
    found = angles(replace(FAN, angles=np.deg2rad(degrees)), arc=60)
    assert np.allclose(found, (first + direction * np.arange(60)) % 360)
    found = angles(replace(FAN, angles=np.deg2rad(degrees)), arc=60, views=6)
    assert np.allclose(found, (first + direction * 10 * np.arange(6)) % 360)


def test_a_wrapped_scan_that_ends_where_it_began_is_one_turn() -> None:
    closed = replace(FAN, angles=np.deg2rad((350 + np.arange(361.0)) % 360))
    assert np.allclose(angles(closed, views=4), [350, 80, 170, 260])


def test_angles_that_only_rise_are_taken_as_they_are() -> None:
    assert np.allclose(angles(replace(FAN, angles=np.deg2rad([0.0, 200.0, 250.0])), arc=170), [0])


def test_an_arc_of_views_in_no_order_is_from_the_first_on() -> None:
    shuffled = np.random.default_rng(0).permutation(np.arange(360.0))
    found = angles(replace(FAN, angles=np.deg2rad(shuffled)), arc=60)
    assert sorted(np.round((found - shuffled[0]) % 360).tolist()) in (list(range(60)), [0, *range(301, 360)])


def gaps(found: np.ndarray, period: float) -> np.ndarray:
    """From each view to the next one, in degrees."""
    rising = np.sort(found % period)
    return np.diff(rising, append=rising[0] + period)


GOLDEN = np.arange(360) * 111.246117975


@pytest.mark.parametrize("degrees", [GOLDEN % 180, GOLDEN % 360, GOLDEN, np.random.default_rng(1).permutation(np.arange(180.0))])
def test_chosen_views_are_equally_far_apart_whatever_their_order(degrees: np.ndarray) -> None:
    wide = replace(PARALLEL, angles=np.deg2rad(degrees)) if degrees.max() < 180 else replace(FAN, angles=np.deg2rad(degrees))
    found = angles(wide, views=30)
    step = wide.period / np.pi * 180 / 30
    assert len(found) == 30 and gaps(found, 30 * step).min() > 0.7 * step and gaps(found, 30 * step).max() < 1.3 * step


def test_views_of_several_turns_are_each_another_angle() -> None:
    found = angles(replace(FAN, angles=np.deg2rad(np.arange(720.0))), views=60)
    assert np.allclose(gaps(found, 360), 6)


def test_views_that_crowd_are_each_chosen_once() -> None:
    crowded = np.concatenate((np.linspace(0, 10, 40), np.linspace(20, 170, 10)))
    for views in (2, 25, 49, 50):
        assert len(set(angles(replace(PARALLEL, angles=np.deg2rad(crowded)), views=views))) == views


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
