"""Every format gives the same scans; counts become line integrals; stacks are read slice by slice; the axis is found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
import tifffile
import torch

from bdgd.checks import InputError
from bdgd.data import (
    GaussianNoise,
    Scans,
    estimate_axis,
    line_integrals,
    open_stack,
    random_ellipses,
    read_scans,
    simulate,
    write_scans,
)
from bdgd.data.formats.contents import LARGEST_READ
from bdgd.data.formats.matlab import _read_scan
from bdgd.data.units import millimetres, shorter_unit
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform

FAN = FanBeam(
    **{"image_size": (5, 6), "angles": [0.0, 1.0, 3.0, 5.5], "detectors": 9, "detector_offset": 0.2, "pixel_size": 0.3},  # type: ignore[arg-type]
    source_to_axis=41.5,
    source_to_detector=55.25,
)
RNG = np.random.default_rng(3)
Y = RNG.random((7, 4, 9)).astype(np.float32)
TRUTH = RNG.random((7, 5, 6)).astype(np.float32)
KNOWN = {"unit": "mm", "slice_spacing": 0.25}


def as_hdf5(path: Path) -> Path:
    scans = Scans(torch.from_numpy(Y)[:, None], FAN, torch.from_numpy(TRUTH)[:, None], GaussianNoise(0.1), "mm", 0.25)
    write_scans(path / "scan.h5", scans)
    return path / "scan.h5"


def as_npz(path: Path, save: Callable[..., None] = np.savez, values: np.ndarray = Y, **names: Any) -> Path:
    noise = json.dumps(GaussianNoise(0.1).to_dict())
    save(path / "scan.npz", image=TRUTH, noise=noise, **{"sinogram": values, **FAN.to_dict(), **KNOWN} | names)
    return path / "scan.npz"


def as_tiff(path: Path, pages: str = "slices", **options: Any) -> Path:
    noise = 'noise = { kind = "gaussian", relative = 0.1 }\n'
    (path / "scan.toml").write_text(
        FAN.to_toml() + 'unit = "mm"\nslice_spacing = 0.25\n' + noise + f'pages = "{pages}"\nimage = "truth.tif"\n'
    )
    stack = Y if pages == "slices" else Y.transpose(1, 0, 2)
    tifffile.imwrite(path / "scan.tif", stack, photometric="minisblack", **options)
    tifffile.imwrite(path / "truth.tif", TRUTH, photometric="minisblack")
    return path / "scan.tif"


WRITERS: dict[str, Callable[[Path], Path]] = {
    "hdf5": as_hdf5,
    "npz": as_npz,
    "npz-packed": lambda path: as_npz(path, np.savez_compressed),
    "npz-fortran": lambda path: as_npz(path, values=np.asfortranarray(Y)),
    "npz-bigendian": lambda path: as_npz(path, values=Y.astype(">f8")),
    "tiff": as_tiff,
    "tiff-packed": lambda path: as_tiff(path, compression="zlib"),
    "tiff-bigtiff": lambda path: as_tiff(path, bigtiff=True),
    "tiff-views": lambda path: as_tiff(path, "views"),
    "tiff-views-packed": lambda path: as_tiff(path, "views", compression="zlib"),
    "tiff-views-bigendian": lambda path: as_tiff(path, "views", byteorder=">"),
}


@pytest.fixture(params=WRITERS)
def scan_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    yield WRITERS[request.param](tmp_path)


def test_every_format_gives_the_same_scans(scan_file: Path) -> None:
    scans = read_scans(scan_file)
    assert scans.geometry == FAN and scans.unit == "mm" and scans.slice_spacing == 0.25 and scans.noise == GaussianNoise(0.1)
    assert scans.images is not None and scans.notes == () and scans.rotation == 0.0
    assert np.array_equal(scans.sinograms[:, 0].numpy(), Y) and np.array_equal(scans.images[:, 0].numpy(), TRUTH)


def test_every_format_is_a_stack_of_slices(scan_file: Path) -> None:
    with open_stack(scan_file, torch.float64) as stack:
        assert len(stack) == 7 and stack.geometry == FAN and stack.slice_spacing == 0.25 and stack.unit == "mm"
        for number, scan in enumerate(stack):
            assert len(scan) == 1 and scan.sinograms.dtype == torch.float64 and scan.slice_spacing == 0.25
            assert np.array_equal(scan.sinograms[0, 0].numpy(), Y[number].astype(np.float64))
        backwards = stack[::-2]
    assert np.array_equal(backwards.sinograms[:, 0].numpy(), Y[::-2])
    assert np.array_equal(read_scans(scan_file, [5, 1]).sinograms[:, 0].numpy(), Y[[5, 1]])
    with pytest.raises(InputError, match="from 0 to 6"):
        read_scans(scan_file, 7)


def test_npz_takes_one_slice_json_and_degrees(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", sino=Y[0], geometry=FAN.to_json())
    degrees = {name: value for name, value in FAN.to_dict().items() if name != "angles"}
    np.savez(tmp_path / "b.npz", sinogram=np.asfortranarray(Y[0]), angles_degrees=np.rad2deg(FAN.angles), **degrees)
    for name in ("a.npz", "b.npz"):
        scans = read_scans(tmp_path / name)
        assert scans.geometry is not None and np.allclose(scans.geometry.angles, FAN.angles, atol=1e-14)
        assert np.array_equal(scans.sinograms.numpy(), Y[:1, None])


def test_toml_takes_equidistant_angles_in_degrees(tmp_path: Path) -> None:
    lines = [line for line in FAN.to_toml().splitlines() if not line.startswith("angles")]
    (tmp_path / "a.toml").write_text("\n".join([*lines, "angles_degrees = { first = 10, step = 90, count = 4 }"]))
    tifffile.imwrite(tmp_path / "a.tif", Y, photometric="minisblack")
    geometry = read_scans(tmp_path / "a.tif").geometry
    assert geometry is not None and np.allclose(np.rad2deg(geometry.angles), [10, 100, 190, 280])


def test_angles_that_look_like_degrees_are_noted(tmp_path: Path) -> None:
    as_npz(tmp_path, angles=[0.0, 90.0, 180.0, 270.0])
    assert read_scans(tmp_path / "scan.npz").notes == ("the angles span 43.0 turns: if they are degrees, name them angles_degrees",)


def test_a_stack_larger_than_memory_is_read_by_slices(tmp_path: Path) -> None:
    """The file is sparse on the disk: what it holds is there, and is zero."""
    views, detectors = 1000, 10**6
    geometry = ParallelBeam(image_size=4, angles=np.linspace(0, 3, views), detectors=detectors)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.attrs.update(geometry.to_dict())
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_layout(h5py.h5d.CONTIGUOUS)
        created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(file.id, b"sinogram", h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((10, views, detectors)), created)
    assert 10 * views * detectors * 4 > LARGEST_READ
    with pytest.raises(InputError, match=r"40 GB of memory, more than the 8.59 GB .* slice by slice with open_stack"):
        read_scans(tmp_path / "large.h5")
    with open_stack(tmp_path / "large.h5") as stack:
        assert len(stack) == 10


def test_unit_and_spacing_travel_through_hdf5(tmp_path: Path) -> None:
    path = as_hdf5(tmp_path)
    with h5py.File(path) as file:
        assert file.attrs["unit"] == "mm" and file.attrs["slice_spacing"] == 0.25
    write_scans(tmp_path / "again.h5", read_scans(path))
    assert read_scans(tmp_path / "again.h5").unit == "mm"
    turned = replace(read_scans(path), rotation=0.1)
    with pytest.raises(InputError, match="turned against their object"):
        write_scans(tmp_path / "turned.h5", turned)


def test_units_have_lengths() -> None:
    assert millimetres("cm") == 10 and millimetres("0.3 mm") == 0.3
    assert shorter_unit("cm", 10) == "mm" and shorter_unit("mm", 2) == "0.5 mm" and shorter_unit(None, 3) is None
    for wrong in ("parsec", "", "x mm", "-1 mm", 3):
        with pytest.raises(InputError):
            Scans(torch.ones(1, 1, 4, 9), FAN, unit=wrong)  # type: ignore[arg-type]


# --- counts --------------------------------------------------------------------------------------------------------------


def counted(slices: int = 3, photons: float = 5e4) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """y (B, V, D) and the counts that a detector with an uneven beam and a dark current would have of it, without noise."""
    y = RNG.uniform(0.2, 3.0, (slices, 12, 31))
    flat, dark = RNG.uniform(0.8, 1.2, 31) * photons + 200, RNG.uniform(100, 200, 31)
    return y, {"counts": dark + (flat - dark) * np.exp(-y), "flat": flat, "dark": dark}


COUNTING = ParallelBeam(image_size=8, angles=np.linspace(0, 3, 12), detectors=31)


def test_counts_become_line_integrals() -> None:
    y, raw = counted()
    found, repairs = line_integrals(raw["counts"][0], raw["flat"], raw["dark"])
    assert np.allclose(found, y[0], atol=1e-12) and repairs.notes() == ()


@pytest.mark.parametrize("frames", ["one", "frames", "per-slice"])
@pytest.mark.parametrize("suffix", [".h5", ".npz", ".tif"])
def test_counts_are_read_in_every_format(suffix: str, frames: str, tmp_path: Path) -> None:
    y, raw = counted()
    if frames != "one":  # three frames whose mean is the field
        for name in ("flat", "dark"):
            raw[name] = raw[name] + np.array([[-5.0], [0.0], [5.0]])
            raw[name] = np.stack([raw[name]] * 3) if frames == "per-slice" else raw[name]
    path = tmp_path / f"scan{suffix}"
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs.update(COUNTING.to_dict())
            for name, values in raw.items():
                file[name] = values
    elif suffix == ".npz":
        np.savez(path, **raw, **COUNTING.to_dict())
    else:
        (tmp_path / "scan.toml").write_text(COUNTING.to_toml() + 'flat = "flat.tif"\ndark = "dark.tif"\n')
        for name, values in raw.items():
            file_name = "scan.tif" if name == "counts" else f"{name}.tif"
            tifffile.imwrite(tmp_path / file_name, np.atleast_2d(values), photometric="minisblack", metadata=None)
    scans = read_scans(path, dtype=torch.float64)
    assert np.allclose(scans.sinograms[:, 0].numpy(), y, atol=1e-9) and scans.notes == ()


def test_projections_with_their_fields_are_turned_into_slices(tmp_path: Path) -> None:
    """As a scanner writes them: a page per view, each field a few pages of the whole detector."""
    y = RNG.uniform(0.2, 2.0, (3, 12, 31))
    flat, dark = RNG.uniform(4e4, 6e4, (3, 31)), RNG.uniform(0, 100, (3, 31))
    counts = np.round(dark[:, None] + (flat - dark)[:, None] * np.exp(-y)).astype(np.uint16)
    (tmp_path / "scan.toml").write_text(COUNTING.to_toml() + 'pages = "views"\nflat = "flat.tif"\ndark = "dark.tif"\n')
    tifffile.imwrite(tmp_path / "scan.tif", counts.transpose(1, 0, 2), photometric="minisblack")
    for name, field in (("flat", flat), ("dark", dark)):
        tifffile.imwrite(tmp_path / f"{name}.tif", np.stack((field - 1, field + 1)), photometric="minisblack")
    scans = read_scans(tmp_path / "scan.tif")
    assert scans.sinograms.shape == (3, 1, 12, 31) and np.allclose(scans.sinograms[:, 0].numpy(), y, atol=2e-3)


def test_bad_detectors_and_rays_are_repaired_and_counted(tmp_path: Path) -> None:
    y, raw = counted(1)
    y[:] = np.linspace(0.5, 2.5, 31)  # so that a straight line between neighbours is the truth
    counts = np.round(raw["dark"] + (raw["flat"] - raw["dark"]) * np.exp(-y)).astype(np.int64)
    counts += RNG.integers(0, 2, counts.shape)  # no detector says the same in every view
    flat, dark = raw["flat"].copy(), raw["dark"].copy()
    flat[4] = dark[4]  # sees no beam
    counts[:, :, 9] = 123  # stuck
    flat[20], dark[20] = np.nan, np.nan  # not measured
    counts[0, 3, 15] = 0  # a ray below the dark field
    counts[0, 5, 16] = -7
    np.savez(tmp_path / "scan.npz", counts=counts, flat=flat, dark=dark, **COUNTING.to_dict())
    scans = read_scans(tmp_path / "scan.npz")
    assert scans.notes == (
        "3 dead detectors (4, 9, 20) were interpolated from their neighbours",
        "2 rays without a count above the dark field were taken as half the smallest count",
    )
    found, right = scans.sinograms[0, 0].numpy(), np.ones((12, 31), bool)
    right[3, 15] = right[5, 16] = False
    assert np.allclose(found[right], y[0][right], atol=2e-3)
    for view, detector in ((3, 15), (5, 16)):
        assert found[view, detector] == pytest.approx(math.log((flat - dark)[detector] / 0.5))


def test_single_rays_without_a_number_are_interpolated() -> None:
    y, raw = counted(1)
    counts = raw["counts"][0]
    counts[2, 7] = np.nan
    found, repairs = line_integrals(counts, raw["flat"], raw["dark"])
    assert found[2, 7] == pytest.approx((y[0, 2, 6] + y[0, 2, 8]) / 2) and repairs.missing == 1
    counts[2] = np.nan
    with pytest.raises(InputError, match="view 2 has no finite value"):
        line_integrals(counts, raw["flat"], raw["dark"])


def test_gaps_of_a_sinogram_are_interpolated(tmp_path: Path) -> None:
    """NaN marks dead detectors and lost rays in line integrals as in counts; infinite values, and too many NaN, are errors."""
    y = np.tile(np.linspace(0.5, 2.5, 31), (12, 1))  # so that a straight line between neighbours is the truth
    gaps = y.copy()
    gaps[:, 4], gaps[2, 7], gaps[5, 8:10] = np.nan, np.nan, np.nan
    np.savez(tmp_path / "scan.npz", sinogram=gaps, **COUNTING.to_dict())
    scans = read_scans(tmp_path / "scan.npz", dtype=torch.float64)
    assert np.allclose(scans.sinograms[0, 0].numpy(), y, atol=1e-12)
    assert scans.notes == (
        "1 dead detectors (4) were interpolated from their neighbours",
        "3 rays without a finite value were interpolated from their neighbours",
    )
    for values, message in ((np.where(y > 2.4, np.inf, y), "must be finite"), (np.where(y > 1.5, np.nan, y), "must be finite")):
        np.savez(tmp_path / "scan.npz", sinogram=values, **COUNTING.to_dict())
        with pytest.raises(InputError, match=message):
            read_scans(tmp_path / "scan.npz")


def test_values_that_are_no_line_integrals_are_doubted(tmp_path: Path) -> None:
    """Counts, shares, a wrong sign and scaled whole numbers are told; line integrals are not, whole, truncated or of nothing."""
    chord = np.sqrt(np.clip(1 - np.linspace(-1.4, 1.4, 31) ** 2, 0, None))
    y = np.tile(2 * chord, (12, 1)) + 0.01 * RNG.standard_normal((12, 31))

    def notes(values: np.ndarray) -> str:
        np.savez(tmp_path / "scan.npz", sinogram=values, **COUNTING.to_dict())
        return "; ".join(read_scans(tmp_path / "scan.npz").notes)

    truncated, hollow = 2 + y[:, ::-1] ** 2, np.tile(1 + np.linspace(-1, 1, 31) ** 2, (12, 1))
    for innocent in (y, truncated, 0.01 * RNG.standard_normal((12, 31)), np.ones((12, 31))):
        assert notes(innocent) == ""
    for counted_ in (np.exp(-y), 2e4 * np.exp(-y), np.round(2e4 * np.exp(-y)), hollow):
        assert "should see air, read the most" in notes(counted_)
    assert "negative" in notes(-y) and "whole numbers" in notes((1000 * np.clip(y, 0, None)).astype(np.uint16))


def test_fields_that_do_not_belong_are_named() -> None:
    _, raw = counted(1)
    with pytest.raises(InputError, match="flat is not above dark"):
        line_integrals(raw["counts"][0], raw["dark"], raw["flat"])
    flat = raw["flat"].copy()
    flat[:10] = raw["dark"][:10]
    with pytest.raises(InputError, match="10 of 31 detectors are dead"):
        line_integrals(raw["counts"][0], flat, raw["dark"])
    with pytest.raises(InputError, match="no count lies above"):
        line_integrals(np.zeros((1, 31)), raw["flat"], raw["dark"])


# --- the axis ------------------------------------------------------------------------------------------------------------

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


def test_reading_estimates_or_takes_an_axis(tmp_path: Path, generator: torch.Generator) -> None:
    geometry, _ = AXES["turn"]
    shifted = replace(geometry, detector_offset=3.0)
    y = simulate(RayTransform(shifted, strategy="matrix-free"), random_ellipses(4, 48, generator=generator), None, generator=generator)
    write_scans(tmp_path / "scan.h5", Scans(y.sinograms, geometry))
    scans = read_scans(tmp_path / "scan.h5", axis="estimate")
    assert scans.geometry is not None and scans.geometry.detector_offset == pytest.approx(3.0, abs=0.05)
    assert len(scans.notes) == 1 and scans.notes[0].startswith("the axis is estimated to be at detector 4")
    assert read_scans(tmp_path / "scan.h5", axis=47).geometry == shifted  # (101 - 1) / 2 - 47 = 3
    for axis in ("guess", 101, math.nan):
        with pytest.raises(InputError, match="axis must be"):
            read_scans(tmp_path / "scan.h5", axis=axis)


def test_an_axis_that_cannot_be_found_is_named() -> None:
    fan = replace(AXES["fan"][0], angles=np.linspace(0, 1, 10))
    y = torch.rand(1, 1, 10, 121, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="from an arc of 64 degrees; give detector_offset"):
        estimate_axis(y, fan)
    with pytest.raises(InputError, match="one value throughout"):
        estimate_axis(torch.ones(1, 1, 10, 121), fan)


def test_the_axis_of_measured_scans_is_found(shared_data: Path) -> None:
    """The tooth's own description says 296, to a whole detector; the challenge's scanner was adjusted to the middle."""
    tooth = np.load(shared_data / "tooth_parallel.npz")
    geometry = ParallelBeam(image_size=256, angles=np.deg2rad(tooth["theta_deg"]), detectors=640)
    found = (640 - 1) / 2 - estimate_axis(torch.from_numpy(tooth["sino"])[:, None], geometry)
    assert found == pytest.approx(296, abs=0.5)
    disc = read_scans(shared_data / "htc2022" / "ta.npz")
    assert disc.geometry is not None
    assert estimate_axis(disc.sinograms, disc.geometry) == pytest.approx(0, abs=0.1 * disc.geometry.detector_spacing)


def test_the_mat_reader_agrees_with_scipy(shared_data: Path) -> None:
    path = shared_data / "htc2022_mat" / "htc2022_ta_full.mat"
    theirs = scipy.io.loadmat(path, simplify_cells=True)["CtDataFull"]
    name, ours, names = _read_scan(path.read_bytes())
    assert name == "CtDataFull" and names == ("CtDataFull",) and set(ours) == set(theirs)
    assert np.array_equal(ours["sinogram"], theirs["sinogram"]) and set(ours["parameters"]) == set(theirs["parameters"])
    for key, value in theirs["parameters"].items():
        mine = ours["parameters"][key]
        assert mine == value if isinstance(value, str) else np.array_equal(np.squeeze(mine), value), key
