"""The axis of rotation is found from the scan itself, or named as not to be found."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bdgd.checks import InputError
from bdgd.data import Ellipses, GaussianNoise, Scans, ellipse_sinogram, estimate_axis, random_ellipses, read_scans, simulate, write_scans
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform

TURN = np.linspace(0, 2 * np.pi, 90, endpoint=False)
SOURCE = {"source_to_axis": 150.0, "source_to_detector": 210.0}
AXES: dict[str, tuple[Geometry, float]] = {  # and to how many detectors the axis is found
    "half-turn-and-one": (ParallelBeam(image_size=48, angles=np.linspace(0, np.pi, 61), detectors=101), 0.05),
    "half-turn": (ParallelBeam(image_size=48, angles=np.linspace(0, np.pi, 90, endpoint=False), detectors=101), 0.1),
    "turn": (ParallelBeam(image_size=48, angles=TURN, detectors=101), 0.05),
    "arc": (ParallelBeam(image_size=48, angles=np.linspace(0, 2, 60), detectors=101), 0.15),
    "fan": (FanBeam(image_size=48, angles=TURN, detectors=121, **SOURCE), 0.05),
    "fan-short": (FanBeam(image_size=48, angles=np.linspace(0, 3.8, 90), detectors=121, **SOURCE), 0.05),
}


@pytest.mark.parametrize("name", AXES)
def test_the_axis_is_found_from_the_scan(name: str, generator: torch.Generator) -> None:
    geometry, precision = AXES[name]
    x = random_ellipses(1, 48, generator=generator)
    for offset in (-6.3, 2.6):
        shifted = replace(geometry, detector_offset=offset)
        y = simulate(RayTransform(shifted, strategy="matrix-free"), x, GaussianNoise(0.01), generator=generator).sinograms
        assert estimate_axis(y, geometry) == pytest.approx(offset, abs=precision)


@pytest.mark.parametrize(("name", "found"), [("fan", True), ("turn", True), ("half-turn", False), ("half-turn-and-one", False)])
def test_the_axis_of_a_thin_object_in_much_noise(name: str, found: bool, generator: torch.Generator) -> None:
    """With the right axis, too, opposite rays differ by a good part of what they measure: many views tell it all the same, few do not."""
    geometry, _ = AXES[name]
    y = ellipse_sinogram(Ellipses.from_rows([(1.0, 1.5, 1.5, 11.0, -7.0, 0.0)]), replace(geometry, detector_offset=3.4), unit=1.0)
    noisy = y + y.amax() / 7 * torch.randn(y.shape, generator=generator)
    if found:
        assert estimate_axis(noisy, geometry) == pytest.approx(3.4, abs=0.2)
    else:
        with pytest.raises(InputError, match="the axis cannot be estimated"):
            estimate_axis(noisy, geometry)


def test_reading_estimates_or_takes_an_axis(tmp_path: Path, generator: torch.Generator) -> None:
    geometry, _ = AXES["turn"]
    shifted = replace(geometry, detector_offset=3.0)
    y = simulate(RayTransform(shifted, strategy="matrix-free"), random_ellipses(4, 48, generator=generator), None, generator=generator)
    write_scans(tmp_path / "scan.h5", Scans(y.sinograms, geometry))
    scans = read_scans(tmp_path / "scan.h5", axis="estimate")
    assert scans.geometry is not None and scans.geometry.detector_offset == pytest.approx(3.0, abs=0.05)
    assert len(scans.notes) == 1 and scans.notes[0].startswith("the axis is estimated to be at detector 4")
    assert read_scans(tmp_path / "scan.h5", axis=47).geometry == shifted  # (101 - 1) / 2 - 47 = 3
    note = "the axis is given to be at detector 50.00: where the geometry has it"
    assert read_scans(tmp_path / "scan.h5", axis=50).notes == (note,)
    for axis in ("guess", 101, math.nan):
        with pytest.raises(InputError, match="axis must be"):
            read_scans(tmp_path / "scan.h5", axis=axis)


@pytest.mark.parametrize(
    "bad", [torch.full((1, 1, 90, 101), math.nan), torch.rand(1, 1, 89, 101), torch.rand(90, 101)], ids=["nan", "views", "axes"]
)
def test_sinograms_that_are_not_the_geometrys_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(InputError, match="the sinogram must"):
        estimate_axis(bad, AXES["turn"][0])


def test_an_axis_that_cannot_be_found_is_named() -> None:
    fan = replace(AXES["fan"][0], angles=np.linspace(0, 1, 10))
    y = torch.rand(1, 1, 10, 121, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="from an arc of 64 degrees; give detector_offset"):
        estimate_axis(y, fan)
    with pytest.raises(InputError, match="one value throughout"):
        estimate_axis(torch.ones(1, 1, 10, 121), fan)


@pytest.mark.parametrize("offset", [40.0, -45.0])
@pytest.mark.parametrize("name", ["turn", "fan", "half-turn"])
def test_an_axis_near_the_end_of_the_detector_is_not_guessed(name: str, offset: float) -> None:
    shifted = replace(AXES[name][0], detector_offset=offset)
    y = ellipse_sinogram(Ellipses.from_rows([(1.0, 18.0, 13.0, 2.0, 3.0, 0.4), (0.8, 4.0, 6.0, 9.0, 5.0, 0.0)]), shifted, unit=1.0)
    with pytest.raises(InputError, match=r"none in the middle half of the detector .* agree, so .*; give detector_offset"):
        estimate_axis(y, AXES[name][0])


def test_the_axis_of_measured_scans_is_found(shared_data: Path) -> None:
    """The tooth's own description says 296, to a whole detector; the challenge's scanner was adjusted to the middle."""
    tooth = np.load(shared_data / "tooth_parallel.npz")
    geometry = ParallelBeam(image_size=256, angles=np.deg2rad(tooth["theta_deg"]), detectors=640)
    found = (640 - 1) / 2 - estimate_axis(torch.from_numpy(tooth["sino"])[:, None], geometry)
    assert found == pytest.approx(296, abs=0.5)
    disc = read_scans(shared_data / "htc2022" / "ta.npz")
    assert disc.geometry is not None
    assert estimate_axis(disc.sinograms, disc.geometry) == pytest.approx(0, abs=0.1 * disc.geometry.detector_spacing)
