"""Every format gives the same scans, in one piece or slice by slice, with units, spacing and angles as its file says."""

from __future__ import annotations

import json
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
from bdgd.data import GaussianNoise, Scans, open_stack, read_scans, write_scans
from bdgd.data.formats.contents import LARGEST_READ
from bdgd.data.formats.matlab import _read_scan
from bdgd.data.units import millimetres, shorter_unit
from bdgd.operators import FanBeam, ParallelBeam

FAN = FanBeam(
    image_size=(5, 6),
    angles=[0.0, 1.0, 3.0, 5.5],
    detectors=9,
    detector_offset=0.2,
    pixel_size=0.3,
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


def test_slices_are_chosen_by_numbers_of_numpy_too_and_not_by_a_mask(tmp_path: Path) -> None:
    path = as_npz(tmp_path)
    assert np.array_equal(read_scans(path, np.int64(5)).sinograms[0, 0].numpy(), Y[5])
    assert np.array_equal(read_scans(path, np.array([5, 1])).sinograms[:, 0].numpy(), Y[[5, 1]])
    for mask in ([True] * 7, True):
        with pytest.raises(InputError, match="slices must be numbers from 0 to 6"):
            read_scans(path, mask)


def test_one_header_for_many_pages_is_no_shorter_stack(tmp_path: Path) -> None:
    """ImageJ writes stacks of more than 4 GB like this."""
    path = as_tiff(tmp_path)
    for how in ({"imagej": False}, {"imagej": True}):
        tifffile.imwrite(path, Y, photometric="minisblack", truncate=True, **how)
        with pytest.raises(InputError, match=r"scan\.tif has one header for many pages.*write it again with tifffile\.imwrite"):
            read_scans(path)
        tifffile.imwrite(path, Y, photometric="minisblack", **how)
        assert len(read_scans(path)) == len(Y)


def test_the_geometry_beside_a_tiff_may_begin_with_the_mark_that_windows_writes(tmp_path: Path) -> None:
    path = as_tiff(tmp_path)
    text = path.with_suffix(".toml").read_text()
    path.with_suffix(".toml").write_text(text, encoding="utf-8-sig")
    assert read_scans(path).geometry == FAN


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
    assert millimetres("\N{GREEK SMALL LETTER MU}m") == millimetres("\N{MICRO SIGN}m") == millimetres("um") == 1e-3
    assert shorter_unit("cm", 10) == "mm" and shorter_unit("mm", 2) == "0.5 mm" and shorter_unit(None, 3) is None
    for wrong in ("parsec", "", "x mm", "-1 mm", 3):
        with pytest.raises(InputError):
            Scans(torch.ones(1, 1, 4, 9), FAN, unit=wrong)  # type: ignore[arg-type]


def test_the_mat_reader_agrees_with_scipy(shared_data: Path) -> None:
    path = shared_data / "htc2022_mat" / "htc2022_ta_full.mat"
    theirs = scipy.io.loadmat(path, simplify_cells=True)["CtDataFull"]
    name, ours, names = _read_scan(path.read_bytes())
    assert name == "CtDataFull" and names == ("CtDataFull",) and set(ours) == set(theirs)
    assert np.array_equal(ours["sinogram"], theirs["sinogram"]) and set(ours["parameters"]) == set(theirs["parameters"])
    for key, value in theirs["parameters"].items():
        mine = ours["parameters"][key]
        assert mine == value if isinstance(value, str) else np.array_equal(np.squeeze(mine), value), key
