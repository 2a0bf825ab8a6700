"""Geometries are values: equal, hashable, rebuilt by their repr and their files, sliced by view, and exactly where design.md says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from geometries import GEOMETRIES, RANDOM

from bdgd.checks import InputError
from bdgd.operators import FanBeam, Geometry, ParallelBeam, geometry_from_dict, read_geometry

every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())

PARALLEL: dict[str, Any] = dict(image_size=(9, 12), angles=(0.1, 0.5, 2.0), detectors=15, detector_offset=0.5, pixel_size=0.7)
FAN: dict[str, Any] = dict(PARALLEL, source_to_axis=20.0, source_to_detector=35.0)


def degrees(*values: float) -> np.ndarray:
    return np.deg2rad(np.asarray(values, dtype=float))


# --- a value -------------------------------------------------------------------------------------------------------


@every_geometry
def test_repr_rebuilds(geometry: Geometry) -> None:
    assert eval(repr(geometry), {"ParallelBeam": ParallelBeam, "FanBeam": FanBeam}) == geometry


@every_geometry
def test_equal_values_are_equal_and_hash_alike(geometry: Geometry) -> None:
    twin = replace(geometry)
    assert twin is not geometry and twin == geometry and hash(twin) == hash(geometry)
    assert {geometry: "found"}[twin] == "found"


@pytest.mark.parametrize(("beam", "values"), [(ParallelBeam, PARALLEL), (FanBeam, FAN)])
def test_every_field_counts_for_equality(beam: type[Geometry], values: dict[str, Any]) -> None:
    geometry = beam(**values)
    for name, other in {
        "image_size": (12, 9),
        "angles": (0.1, 0.5, 2.1),
        "detectors": 16,
        "detector_spacing": 1.1,
        "detector_offset": 0.0,
        "pixel_size": 0.8,
        "source_to_axis": 21.0,
        "source_to_detector": 36.0,
    }.items():
        if name in values or name == "detector_spacing":
            assert replace(geometry, **{name: other}) != geometry, name


def test_parallel_and_fan_are_never_equal() -> None:
    assert ParallelBeam(**PARALLEL) != FanBeam(**FAN)


@pytest.mark.parametrize("convert", [list, tuple, np.asarray, torch.tensor, lambda a: torch.tensor(a, requires_grad=True)])
def test_angles_may_be_any_sequence(convert: Callable[[Any], Any]) -> None:
    angles = (0.1, 0.5, 2.0)
    geometry = ParallelBeam(image_size=np.int64(8), angles=convert(list(angles)), detectors=np.int32(3), pixel_size=np.float32(0.5))
    expected = angles if not isinstance(convert(list(angles)), torch.Tensor) else tuple(torch.tensor(angles).double().tolist())
    assert geometry.angles == expected
    assert geometry == ParallelBeam(image_size=(8, 8), angles=expected, detectors=3, pixel_size=0.5)
    assert all(type(angle) is float for angle in geometry.angles)


def test_frozen_and_keyword_only() -> None:
    geometry = ParallelBeam(**PARALLEL)
    with pytest.raises(FrozenInstanceError):
        geometry.detectors = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        ParallelBeam(128, [0.0], 183)  # type: ignore[misc]


# --- files ---------------------------------------------------------------------------------------------------------


@every_geometry
def test_dict_and_json_round_trip(geometry: Geometry) -> None:
    assert geometry_from_dict(geometry.to_dict()) == geometry
    assert geometry_from_dict(json.loads(geometry.to_json())) == geometry


@every_geometry
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_file_round_trip(geometry: Geometry, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"scanner{suffix}"
    path.write_text(geometry.to_toml() if suffix == ".toml" else geometry.to_json())
    assert read_geometry(path) == geometry
    assert read_geometry(str(path)) == geometry


def test_a_hand_written_file_may_leave_defaults_out(tmp_path: Path) -> None:
    path = tmp_path / "scanner.toml"
    path.write_text('beam = "parallel"\nimage_size = 16\nangles = [0, 1, 2]\ndetectors = 23\n')
    assert read_geometry(path) == ParallelBeam(image_size=16, angles=[0, 1, 2], detectors=23)


# --- slices --------------------------------------------------------------------------------------------------------


@every_geometry
def test_slices_by_view(geometry: Geometry) -> None:
    assert geometry[:] == geometry
    assert geometry[::2].angles == geometry.angles[::2]
    assert geometry[-1].angles == geometry.angles[-1:]
    assert geometry[[0, 0]].angles == geometry.angles[:1] * 2
    assert replace(geometry[:1], angles=geometry.angles) == geometry  # nothing else changes
    points, directions = geometry.rays()
    assert torch.equal(geometry[::2].rays()[0], points[::2]) and torch.equal(geometry[::2].rays()[1], directions[::2])


def test_a_mask_chooses_views_and_no_view_is_an_error() -> None:
    geometry = ParallelBeam.limited(degrees=5)
    assert geometry[[False, True, False, False, True]].angles == (geometry.angles[1], geometry.angles[4])
    with pytest.raises(InputError, match="non-empty"):
        geometry[5:]
    with pytest.raises(IndexError):
        geometry[5]


# --- where things are ----------------------------------------------------------------------------------------------


def test_the_papers_detector() -> None:
    sparse, limited = ParallelBeam.sparse(image_size=128, views=30), ParallelBeam.limited(image_size=128, degrees=120)
    for geometry in (sparse, limited):
        assert geometry.detectors == 183
        assert geometry.detector_spacing == pytest.approx(0.98918, abs=5e-6)
        assert geometry.detectors * geometry.detector_spacing / 2 == pytest.approx(90.5097, abs=5e-5)  # half the image diagonal
        assert geometry.detector_offset == 0 and geometry.pixel_size == 1
    assert sparse.angles == pytest.approx([(v + 0.5) * math.pi / 30 for v in range(30)])
    assert limited.angles == pytest.approx([math.radians(v + 0.5) for v in range(120)])
    assert sparse == ParallelBeam.sparse() and limited == ParallelBeam.limited()


def test_the_papers_detector_grows_with_the_pixel_and_the_diagonal() -> None:
    geometry = ParallelBeam.sparse(image_size=(30, 40), views=3, pixel_size=0.2)
    assert geometry.detectors == 2 * 25 + 1
    assert geometry.detectors * geometry.detector_spacing == pytest.approx(50 * 0.2)
    assert geometry.image_radius == pytest.approx(25 * 0.2)


@every_geometry
def test_pixels_and_detectors_lie_where_the_design_says(geometry: Geometry) -> None:
    (h, w), d = geometry.image_size, geometry.detectors
    x, y = geometry.pixel_centres()
    assert x.tolist() == pytest.approx([(i - (h - 1) / 2) * geometry.pixel_size for i in range(h)])
    assert y.tolist() == pytest.approx([(j - (w - 1) / 2) * geometry.pixel_size for j in range(w)])
    positions = [(k - (d - 1) / 2) * geometry.detector_spacing + geometry.detector_offset for k in range(d)]
    assert geometry.detector_positions().tolist() == pytest.approx(positions)


@every_geometry
def test_rays_lie_where_the_design_says(geometry: Geometry) -> None:
    points, directions = geometry.rays()
    assert points.shape == directions.shape == (geometry.views, geometry.detectors, 2)
    assert torch.allclose(directions.norm(dim=-1), torch.ones((), dtype=torch.float64))
    s = geometry.detector_positions()
    for v, theta in enumerate(geometry.angles):
        cos, sin = math.cos(theta), math.sin(theta)
        if isinstance(geometry, FanBeam):
            behind = geometry.source_to_detector - geometry.source_to_axis
            start = torch.tensor([sin, -cos], dtype=torch.float64).expand(len(s), 2) * geometry.source_to_axis
            end = torch.stack((-behind * sin + s * cos, behind * cos + s * sin), -1)
        else:
            start = torch.stack((s * cos, s * sin), -1)
            end = start + torch.tensor([-sin, cos], dtype=torch.float64)
        for target in (start, end):  # each lies on its ray: what is left across the ray is zero
            away = target - points[v]
            assert (away[:, 0] * directions[v, :, 1] - away[:, 1] * directions[v, :, 0]).abs().max() < 1e-9
        assert (((end - start) * directions[v]).sum(-1) > 0).all()


@every_geometry
def test_a_point_on_a_ray_is_seen_by_its_detector(geometry: Geometry) -> None:
    points, directions = geometry.rays()
    reach = geometry.source_to_axis if isinstance(geometry, FanBeam) else 0.0  # about the middle of the image
    for distance in (reach - 1.5, reach, reach + 2.0):
        on_rays = points + distance * directions
        for v in range(geometry.views):
            seen = geometry[v].detector_coordinates(on_rays[v])[0]
            assert torch.allclose(seen, geometry.detector_positions(), atol=1e-9)


@pytest.mark.parametrize("geometry", [ParallelBeam(**PARALLEL), FanBeam(**FAN)], ids=["parallel", "fan"])
def test_an_axis_beside_the_middle_is_an_offset(geometry: Geometry) -> None:
    axis = 5.25  # the detector, counted from 0, that sees the axis
    shifted = replace(geometry, detector_offset=((geometry.detectors - 1) / 2 - axis) * geometry.detector_spacing)
    seen = float(shifted.detector_coordinates(torch.zeros(1, 2, dtype=torch.float64))[0, 0])
    assert (seen - float(shifted.detector_positions()[0])) / shifted.detector_spacing == pytest.approx(axis)


# --- what a view stands for ----------------------------------------------------------------------------------------


def parallel(angles: Any) -> ParallelBeam:
    return ParallelBeam(image_size=4, angles=angles, detectors=5)


def fan(angles: Any) -> FanBeam:
    return FanBeam(image_size=4, angles=angles, detectors=5, source_to_axis=10.0, source_to_detector=20.0)


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


# --- bad input -----------------------------------------------------------------------------------------------------

#: what is wrong with the values of a fan beam, and what the message must say: expected, got, and the remedy where it is not the same
BAD: list[tuple[dict[str, Any], str]] = [
    ({"angles": []}, r"angles must be a non-empty sequence .* got shape \(0,\); pass one angle per view"),
    ({"angles": 0.5}, r"angles must be a non-empty sequence .* got shape \(\)"),
    ({"angles": [[0.1, 0.2]]}, r"angles must be a non-empty sequence .* got shape \(1, 2\)"),
    ({"angles": "all"}, r"angles must be a sequence of numbers in radians, got str; pass a list"),
    ({"angles": [[0.1], [0.1, 0.2]]}, r"angles must be a sequence of numbers in radians, got list"),
    ({"angles": [0.1, math.nan, math.inf]}, r"angles must be finite, but 2 of the 3 are NaN or infinite; leave those views out"),
    ({"detectors": 0}, r"detectors must be at least 1, got 0"),
    ({"detectors": -5}, r"detectors must be at least 1, got -5"),
    ({"detectors": 5.5}, r"detectors must be a whole number, got 5\.5"),
    ({"detectors": True}, r"detectors must be a whole number, got True"),
    ({"image_size": 0}, r"image_size must be at least 1, got 0"),
    ({"image_size": (8, -3)}, r"image width must be at least 1, got -3"),
    ({"image_size": (8, 8, 8)}, r"image_size must be one number or \(height, width\), got \(8, 8, 8\); pass"),
    ({"image_size": "128"}, r"image_size must be one number or \(height, width\), got '128'; pass"),
    ({"image_size": 8.0}, r"image_size must be a whole number, got 8\.0"),
    ({"pixel_size": 0}, r"pixel_size must be above 0, got 0"),
    ({"pixel_size": -1.0}, r"pixel_size must be above 0, got -1"),
    ({"pixel_size": math.nan}, r"pixel_size must be finite, got nan"),
    ({"detector_spacing": -0.4}, r"detector_spacing must be above 0, got -0\.4"),
    ({"detector_spacing": "wide"}, r"detector_spacing must be a number, got 'wide'"),
    ({"detector_offset": math.inf}, r"detector_offset must be finite, got inf"),
    ({"detector_offset": None}, r"detector_offset must be a number, got None"),
    ({"source_to_axis": -20.0}, r"source_to_axis must be above 0, got -20"),
    ({"source_to_axis": 5.0}, r"source lies inside the image: source_to_axis is 5, half the image diagonal 5\.25; check .* same unit"),
    ({"source_to_detector": 15.0}, r"source_to_detector \(15\) must be at least source_to_axis \(20\); it is measured from the source"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[f"{next(iter(w))}={next(iter(w.values()))!r}" for w, _ in BAD])
def test_bad_values_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FanBeam(**{**FAN, **wrong})
    if not next(iter(wrong)).startswith("source"):
        with pytest.raises(InputError, match=message):
            ParallelBeam(**{**PARALLEL, **wrong})


def test_bad_arguments_of_the_papers_geometries() -> None:
    with pytest.raises(InputError, match="views must be at least 1, got 0"):
        ParallelBeam.sparse(views=0)
    with pytest.raises(InputError, match=r"degrees must be a whole number, got 0\.5"):
        ParallelBeam.limited(degrees=0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pixel_size must be above 0, got -1"):
        ParallelBeam.sparse(pixel_size=-1)


def test_bad_dictionaries() -> None:
    values = FanBeam(**FAN).to_dict()
    with pytest.raises(InputError, match="needs beam = 'parallel' or 'fan', got 'cone'"):
        geometry_from_dict({**values, "beam": "cone"})
    with pytest.raises(InputError, match="needs beam = 'parallel' or 'fan', got None"):
        geometry_from_dict({})
    with pytest.raises(InputError, match=r"needs beam = 'parallel' or 'fan', got \['fan'\]"):
        geometry_from_dict({**values, "beam": ["fan"]})
    with pytest.raises(InputError, match=r"unknown key 'views' in a fan-beam geometry; known are angles, .*source_to_axis"):
        geometry_from_dict({**values, "views": 3})
    with pytest.raises(InputError, match="unknown key 'source_to_axis' in a parallel-beam geometry"):
        geometry_from_dict({**ParallelBeam(**PARALLEL).to_dict(), "source_to_axis": 3})
    del values["source_to_axis"]
    with pytest.raises(InputError, match="a fan-beam geometry needs 'source_to_axis'; add it"):
        geometry_from_dict(values)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "none.toml")) + ": No such file"):
        read_geometry(tmp_path / "none.toml")
    for name, text, message in [
        ("cut.json", '{"beam": "parallel", "ang', r"cut\.json is not valid JSON"),
        ("cut.toml", 'beam = "parallel"\nangles = [0.1,', r"cut\.toml is not valid TOML"),
        ("list.json", "[1, 2]", r"list\.json must hold the keys of a geometry, got list"),
        ("foreign.toml", 'title = "something else"', r"needs beam = 'parallel' or 'fan', got None"),
        ("angles.toml", 'beam = "parallel"\nimage_size = 4\nangles = []\ndetectors = 3', "angles must be a non-empty sequence"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            read_geometry(tmp_path / name)
    (tmp_path / "binary.toml").write_bytes(b"\x89HDF\r\n\x1a\n\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.toml is not valid TOML"):
        read_geometry(tmp_path / "binary.toml")
