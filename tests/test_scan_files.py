"""Scan files in HDF5: what is written comes back, slice by slice, all or nothing, and every wrong file is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from few_scans import PARALLEL, some_scans

from bdgd.checks import InputError
from bdgd.data.files import read_scans, write_scans
from bdgd.data.noise import GaussianNoise
from bdgd.data.scans import Scans
from bdgd.operators.geometry import FanBeam, Geometry, ParallelBeam

FAN = FanBeam(image_size=6, angles=[0.0, 1.0, 3.0, 5.5], detectors=9, pixel_size=0.3, source_to_axis=41.5, source_to_detector=55.25)


@pytest.mark.parametrize("geometry", [PARALLEL, FAN], ids=["parallel", "fan"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files_give_back_what_was_written(geometry: Geometry, dtype: torch.dtype, tmp_path: Path) -> None:
    scans = some_scans(geometry, dtype=dtype)
    write_scans(tmp_path / "scan.h5", scans)
    back = read_scans(tmp_path / "scan.h5", dtype=dtype)
    assert back.geometry == geometry and back.noise == scans.noise
    assert torch.equal(back.sinograms, scans.sinograms)
    assert back.images is not None and scans.images is not None and torch.equal(back.images, scans.images)
    assert read_scans(tmp_path / "scan.h5").sinograms.dtype == torch.float32
    assert os.listdir(tmp_path) == ["scan.h5"]


def test_a_noise_that_no_file_can_say_is_named(tmp_path: Path) -> None:
    class Salt(GaussianNoise):
        def to_dict(self) -> dict[str, Any]:
            return {"kind": "salt"}

    scans = replace(some_scans(), noise=Salt(0.1))
    with pytest.raises(InputError, match=r"got 'salt'\); write dataclasses.replace\(scans, noise=None\)"):
        write_scans(tmp_path / "scan.h5", scans)


def test_files_hold_plain_attributes_and_one_chunk_per_slice(tmp_path: Path) -> None:
    write_scans(str(tmp_path / "scan.h5"), Scans(some_scans(FAN).sinograms, FAN))
    with h5py.File(tmp_path / "scan.h5") as file:
        assert file["sinogram"].shape == (10, 4, 9) and file["sinogram"].chunks == (1, 4, 9)
        assert set(file.attrs) == {"format_version", *FAN.to_dict()} and "image" not in file
        assert file.attrs["beam"] == "fan" and file.attrs["source_to_axis"] == 41.5 and file.attrs["angles"].tolist() == list(FAN.angles)
    back = read_scans(tmp_path / "scan.h5")
    assert back.images is None and back.noise is None


def test_files_take_many_angles(tmp_path: Path) -> None:
    geometry = ParallelBeam(image_size=4, angles=np.linspace(0, 3, 20000), detectors=2)
    write_scans(tmp_path / "scan.h5", Scans(torch.ones(1, 1, 20000, 2), geometry))
    assert read_scans(tmp_path / "scan.h5").geometry == geometry


@pytest.mark.parametrize(
    ("slices", "numbers"), [(3, [3]), (-1, [9]), (slice(2, 5), [2, 3, 4]), (slice(None, None, -4), [9, 5, 1]), ([7, 0, 7], [7, 0, 7])]
)
def test_files_are_read_slice_by_slice(slices: Any, numbers: list[int], tmp_path: Path) -> None:
    scans = some_scans()
    write_scans(tmp_path / "scan.h5", scans)
    part = read_scans(tmp_path / "scan.h5", slices)
    assert torch.equal(part.sinograms, scans.sinograms[numbers])
    assert part.images is not None and scans.images is not None and torch.equal(part.images, scans.images[numbers])


@pytest.mark.parametrize(
    ("slices", "message"), [(10, "from 0 to 9, got 10"), ([0, -11], "from 0 to 9"), (slice(5, 5), "choose none"), ("x", "slices must be")]
)
def test_bad_slices_are_named(slices: Any, message: str, tmp_path: Path) -> None:
    write_scans(tmp_path / "scan.h5", some_scans())
    with pytest.raises(InputError, match=message):
        read_scans(tmp_path / "scan.h5", slices)


@pytest.mark.parametrize("name", ["scan.npz", "scan.TIF", "scan.mat"])
def test_scans_are_not_written_under_the_name_of_another_format(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would be read as another format"):
        write_scans(tmp_path / name, some_scans())
    write_scans(tmp_path / "scan", some_scans())
    assert len(read_scans(tmp_path / "scan")) == len(some_scans())


def test_hand_made_files_need_no_more_than_the_contract(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["sinogram"] = np.arange(2 * 3 * 5, dtype=">u2").reshape(2, 3, 5)
        file.attrs.update(beam=np.bytes_("parallel"), image_size=4, angles=[0, 1, 2], detectors=np.int32(5))
    scans = read_scans(tmp_path / "scan.h5")
    assert scans.geometry == ParallelBeam(image_size=4, angles=[0, 1, 2], detectors=5)
    assert scans.sinograms.flatten().tolist() == list(range(30))


def replace_dataset(file: h5py.File, name: str, values: Any) -> None:
    if name in file:
        del file[name]
    file[name] = values


def declare_without_data(file: h5py.File, shape: tuple[int, ...]) -> None:
    del file["sinogram"], file["image"]
    file.create_dataset("sinogram", shape=shape, dtype="f8", chunks=(1, *shape[1:]))


BREAKS: list[tuple[Callable[[h5py.File], Any], str]] = [
    (lambda f: f.__delitem__("sinogram"), "needs the dataset 'sinogram', but the file holds image"),
    (lambda f: (f.__delitem__("sinogram"), f.create_group("sinogram")), "needs the dataset 'sinogram'"),
    (
        lambda f: replace_dataset(f, "sinogram", np.zeros((3, 11))),
        r"\(B, 3, 11\) by the geometry in the file, got \(3, 11\); add the axis of slices",
    ),
    (lambda f: replace_dataset(f, "sinogram", np.zeros((10, 11, 3))), r"got \(10, 11, 3\)"),
    (lambda f: replace_dataset(f, "sinogram", np.zeros((0, 3, 11))), "holds no slice"),
    (lambda f: replace_dataset(f, "sinogram", np.zeros((10, 3, 11), dtype=complex)), "must hold real numbers, got complex128"),
    (lambda f: replace_dataset(f, "sinogram", np.full((10, 3, 11), np.nan)), "sinograms must be finite"),
    (lambda f: replace_dataset(f, "image", np.zeros((9, 6, 7))), r"image must be .* got \(9, 6, 7\)"),
    (lambda f: replace_dataset(f, "image", np.zeros((10, 7, 6))), r"got \(10, 7, 6\)"),
    (lambda f: replace_dataset(f, "sinogram", np.array([["a"]], dtype="S1")), "by the geometry"),
    (lambda f: declare_without_data(f, (10**12, 3, 11)), "declares 33000000000000 values of which the file does not hold all"),
    (lambda f: f.attrs.__delitem__("beam"), "beam = 'parallel' or 'fan', got None"),
    (lambda f: f.attrs.__setitem__("beam", "cone"), "got 'cone'"),
    (lambda f: f.attrs.__delitem__("angles"), "needs 'angles'"),
    (lambda f: f.attrs.__delitem__("image_size"), "needs 'image_size'"),
    (lambda f: f.attrs.__setitem__("detector_ofset", 1.0), "unknown key 'detector_ofset'"),
    (lambda f: f.attrs.__setitem__("angles", "many"), "angles must be"),
    (lambda f: f.attrs.__setitem__("angles", h5py.Empty("f8")), "angles must be|not a readable"),
    (lambda f: f.attrs.__setitem__("detectors", 12), r"got \(10, 3, 11\)"),
    (lambda f: f.attrs.__setitem__("pixel_size", -1.0), "pixel_size must be above 0"),
    (lambda f: f.attrs.__setitem__("format_version", 99), "format_version is 99.*update bdgd"),
    (lambda f: f.attrs.__setitem__("noise", "loud"), "noise must be a JSON object"),
    (lambda f: f.attrs.__setitem__("noise", '{"kind": "pink"}'), "got 'pink'"),
]


@pytest.mark.parametrize(("break_it", "message"), BREAKS)
def test_wrong_files_are_named(break_it: Callable[[h5py.File], Any], message: str, tmp_path: Path) -> None:
    write_scans(tmp_path / "scan.h5", some_scans())
    with h5py.File(tmp_path / "scan.h5", "r+") as file:
        break_it(file)
    with pytest.raises(InputError, match=message) as caught:
        read_scans(tmp_path / "scan.h5")
    assert "scan.h5" in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "scan.h5"
    write_scans(path, some_scans(count=100))
    whole = path.read_bytes()
    for length in (0, 1, 7, 100, 600, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"scan\.h5 is not a readable HDF5 file .* copied completely$"):
            read_scans(path)
    values = some_scans(count=100).sinograms[50].numpy().tobytes()
    path.write_bytes(whole.replace(values, values[:-8] + b"\0" * 8))
    assert len(read_scans(path, 49)) == 1
    with pytest.raises(InputError, match="not a readable HDF5"):  # the checksum
        read_scans(path, 50)


def test_wrong_paths_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5 at all, but a text that is long enough for a header")
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "none.h5", "there is no file"),
        (tmp_path / "text.h5", "not a readable HDF5"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_scans(path)
        assert "\n" not in str(caught.value)


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scan.h5"
    write_scans(path, some_scans(count=2))
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for target in ("h5py.Group.create_dataset", "os.fsync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(target, full)
            with pytest.raises(InputError, match=r"cannot write .*scan\.h5: No space left on device"):
                write_scans(path, some_scans())
        assert os.listdir(tmp_path) == ["scan.h5"] and path.read_bytes() == before
    write_scans(path, some_scans(count=3))
    assert len(read_scans(path)) == 3


def test_wrong_writes_are_named(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class OwnNoise:
        def __call__(self, clean: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
            return clean

        def to_dict(self) -> dict[str, Any]:
            return {"kind": "own"}

    own = Scans(some_scans().sinograms, PARALLEL, noise=OwnNoise())
    cases: list[tuple[Path, Any, str]] = [
        (tmp_path / "none" / "scan.h5", some_scans(), "check that the folder exists"),
        (tmp_path, some_scans(), "it is a folder"),
        (tmp_path / "scan.h5", Scans(torch.ones(1, 2), None), "these scans have none"),
        (tmp_path / "scan.h5", torch.ones(1), "needs Scans, got Tensor"),
        (tmp_path / "scan.h5", own, "got 'own'"),
    ]
    for path, scans, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            write_scans(path, scans)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []
