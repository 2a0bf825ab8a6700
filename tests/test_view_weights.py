"""What a view stands for: the angle of its weight, for arcs, circles, turns, and views measured twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from geometries import RANDOM

from bdgd.operators import FanBeam, Geometry, ParallelBeam


def parallel(angles: Any) -> ParallelBeam:
    return ParallelBeam(image_size=4, angles=angles, detectors=5)


def fan(angles: Any) -> FanBeam:
    return FanBeam(image_size=4, angles=angles, detectors=5, source_to_axis=10.0, source_to_detector=20.0)


def degrees(*values: float) -> np.ndarray:
    return np.deg2rad(np.asarray(values, dtype=float))


#: name, geometry, the weight of each view in degrees (one number: all the same), the arc in degrees
WEIGHTS: list[tuple[str, Geometry, Any, float]] = [
    ("sparse", ParallelBeam.sparse(views=30), 6, 180),
    ("limited", ParallelBeam.limited(degrees=120), 1, 120),
    ("one view", parallel([0.3]), 180, 180),
    ("one view twice", parallel([0.3, 0.3]), 90, 180),
    ("two views", parallel(degrees(10, 20)), 10, 20),
    ("half circle, both ends measured", parallel(degrees(0, 45, 90, 135, 180)), [22.5, 45, 45, 45, 22.5], 180),
    ("parallel full circle: every line twice", parallel(degrees(*range(360))), 0.5, 180),
    ("parallel, two turns: every line four times", parallel(degrees(*range(720))), 0.25, 180),
    ("fan full circle", fan(degrees(*range(0, 360, 4))), 4, 360),
    ("fan short arc", fan(degrees(*range(40, 250))), 1, 210),
    ("fan, arc over zero", fan(degrees(*range(300, 480, 2))), 2, 180),
    ("fan, two turns", fan(degrees(*range(720))), 0.5, 360),
    ("a gap of twice the others opens the circle", parallel(degrees(*range(0, 161, 10))), 10, 170),
    ("a gap of 1.2 times the others does not", parallel(degrees(*range(0, 155, 22))), [24, 22, 22, 22, 22, 22, 22, 24], 180),
    ("nonuniform circle", fan(degrees(0, 100, 200, 300)), [80, 100, 100, 80], 360),
    ("nonuniform arc", parallel(degrees(20, 22, 26, 27)), [2, 3, 2.5, 1], 8.5),
    ("in no order", parallel(degrees(26, 20, 27, 22)), [2.5, 2, 1, 3], 8.5),
    ("the ends of an arc measured twice", parallel(degrees(0, 0, 1, 2, 3, 3)), [0.5, 0.5, 1, 1, 0.5, 0.5], 4),
    ("an arc measured three times", fan(degrees(*[*range(10, 60)] * 3)), 1 / 3, 50),
]


@pytest.mark.parametrize(("geometry", "expected", "arc"), [case[1:] for case in WEIGHTS], ids=[case[0] for case in WEIGHTS])
def test_view_weights(geometry: Geometry, expected: Any, arc: float) -> None:
    weights = geometry.view_weights
    assert weights.shape == (geometry.views,) and weights.dtype == torch.float64
    assert np.rad2deg(weights.numpy()) == pytest.approx(np.broadcast_to(expected, geometry.views), rel=1e-6)
    assert math.degrees(geometry.arc[1]) == pytest.approx(arc)
    assert math.degrees(float(weights.sum())) == pytest.approx(arc)


def test_an_arc_starts_half_a_step_before_its_first_view() -> None:
    assert math.degrees(parallel(degrees(20, 22, 24, 26)).arc[0]) == pytest.approx(19)
    assert math.degrees(parallel(degrees(20, 20, 22, 24, 26)).arc[0]) == pytest.approx(19)
    assert math.degrees(fan(degrees(*range(300, 480, 2))).arc[0]) == pytest.approx(299)


@pytest.mark.parametrize("make", [parallel, fan])
@pytest.mark.parametrize("views", [2, 3, 8, 24])
def test_weights_of_random_angles_are_positive_and_turn_with_them(make: Callable[[Any], Geometry], views: int) -> None:
    geometry = make(RANDOM[:views])
    weights = geometry.view_weights
    assert (weights > 0).all() and float(weights.sum()) <= geometry.period + 1e-9
    turned = make([angle + 1.234 for angle in RANDOM[:views]])
    assert torch.allclose(turned.view_weights, weights)
