"""Geometries are values: equal, hashable, rebuilt by their repr and their files, sliced by view."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from geometries import FAN, PARALLEL, every_geometry

from bdgd.checks import InputError
from bdgd.operators import FanBeam, Geometry, ParallelBeam, geometry_from_dict, read_geometry

# --- a value ---------------------------------------------------------------------------------------------------------


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


# --- files -----------------------------------------------------------------------------------------------------------


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


def test_a_file_may_begin_with_the_mark_that_windows_writes(tmp_path: Path) -> None:
    geometry = ParallelBeam(image_size=16, angles=[0, 1, 2], detectors=23)
    for name, text in (("scanner.toml", geometry.to_toml()), ("scanner.json", geometry.to_json())):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_geometry(tmp_path / name) == geometry


# --- slices ----------------------------------------------------------------------------------------------------------


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


def test_views_are_chosen_by_a_tuple_as_by_a_list() -> None:
    geometry = ParallelBeam.sparse(image_size=8, views=9)
    assert geometry[(0, 7)] == geometry[[0, 7]] and geometry[(0, 7)].views == 2
