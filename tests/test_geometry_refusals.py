"""Bad values, dictionaries and files of a geometry are each refused in a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from geometries import FAN, PARALLEL
from refusals import refusal

from bdgd.checks import InputError
from bdgd.data.scanner import read_scanner
from bdgd.operators import FanBeam, ParallelBeam, geometry_from_dict, read_geometry

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
    (tmp_path / "deep.toml").write_text("x = " + "[" * 10**5)
    with refusal("deep.toml is not valid TOML"):
        read_geometry(tmp_path / "deep.toml")
    (tmp_path / "binary.toml").write_bytes(b"\x89HDF\r\n\x1a\n\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.toml is not valid TOML"):
        read_geometry(tmp_path / "binary.toml")


BASE = 'beam = "parallel"\nimage_size = 8\ndetectors = 5\n'
HUGE = "9" * 400
IMPOSSIBLE = [
    (BASE + "angles_degrees = [[1, 2], [3]]\n", r"angles_degrees must be numbers, got \[\[1, 2\], \[3\]\]"),
    (BASE + "angles = [0.0]\nangles_degrees = [0.0]\n", "exclude each other"),
    (BASE + f"angles = [{HUGE}]\n", "a number of the parallel-beam geometry has more digits than a float can have"),
    (BASE + f"angles = [0.0]\ndetector_spacing = {HUGE}\n", "detector_spacing must be a finite number, got one with more digits"),
    (BASE + f"angles_degrees = {{ first = {HUGE}, step = 1, count = 3 }}\n", "angles_degrees.first must be a finite number"),
    (BASE.replace("5", "1000000000000") + "angles = [0.0]\n", "detectors is 1000000000000, more than the 1000000 that are read"),
    (BASE.replace("8", "100000") + "angles = [0.0]\n", "check that it is given in pixels"),
    (BASE + "angles = [0.0]\n#" + " " * 2**23, "has more than the 8388608 bytes that are read"),
]


@pytest.mark.parametrize(("text", "message"), IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
@pytest.mark.parametrize("read", [read_geometry, read_scanner])
def test_impossible_numbers_in_files(read: Callable[[Path], object], text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(text)
    with refusal(message):
        read(tmp_path / "g.toml")


def test_a_noise_of_brackets_in_a_geometry_file(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(BASE + 'angles = [0.0]\nnoise = "' + "[" * 10**5 + '"\n')
    with refusal("noise must be a JSON object"):
        read_scanner(tmp_path / "g.toml")
