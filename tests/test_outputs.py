"""What a reconstruction is written as: every file read back by a library that is not ours, and a disk that has no room."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import torch
from torch import Tensor

from bdgd.apps import outputs
from bdgd.apps.nifti import nifti_header, nifti_stack
from bdgd.apps.outputs import Grid, posterior_files
from bdgd.checks import InputError
from bdgd.inference import Posterior
from bdgd.storage import replacing_together

GRID = Grid(3, (6, 4), pixel_size=0.25, slice_spacing=0.5, unit="mm")
ORIGIN = {"model": "a model", "seed": 7, "scan": "sçan <b>.h5", "commit": None, "model_provenance": {"preset_text": "x" * 100_000}}


def some_posterior(index: int, shape: tuple[int, int] = (6, 4)) -> Posterior:
    g = torch.Generator().manual_seed(index)
    mean, epistemic, aleatoric = (torch.rand(1, 1, *shape, generator=g) for _ in range(3))

    def no_draws() -> Iterator[Tensor]:
        raise AssertionError("writing needs no draws")

    return Posterior(mean, epistemic, aleatoric, 10, 0, no_draws)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with posterior_files(tmp_path, GRID, 0.9, ORIGIN, nifti=True) as add:
        for index in range(3):
            add(some_posterior(index))
    return tmp_path


def test_hdf5_holds_every_slice_and_where_it_comes_from(folder: Path) -> None:
    with h5py.File(folder / "posterior.h5") as file:
        assert set(file) == {"mean", "std", "epistemic", "aleatoric", "lower", "upper"}
        for index in range(3):
            posterior = some_posterior(index)
            lower, upper = posterior.interval(0.9)
            for name in ("mean", "std", "epistemic", "aleatoric"):
                assert np.array_equal(file[name][index], getattr(posterior, name)[0, 0])
            assert np.array_equal(file["lower"][index], lower[0, 0]) and np.array_equal(file["upper"][index], upper[0, 0])
        assert file["mean"].chunks == (1, 6, 4) and file["mean"].fletcher32
        attributes = dict(file.attrs)
        assert file["std"].attrs["unit"] == "1/mm" and file["epistemic"].attrs["unit"] == "(1/mm)^2"
        assert file["upper"].attrs["level"] == 0.9
    assert attributes["pixel_size"] == 0.25 and attributes["slice_spacing"] == 0.5 and attributes["unit"] == "mm"
    assert attributes["seed"] == 7 and attributes["scan"] == "sçan <b>.h5" and attributes["level"] == 0.9
    assert "first" not in attributes and "x" in attributes["axes"]
    assert json.loads(attributes["model_provenance"]) == ORIGIN["model_provenance"]
    assert json.loads(attributes["provenance"]) == ORIGIN


def test_tiff_pages_are_what_a_screen_shows(folder: Path) -> None:
    pages = tifffile.imread(folder / "mean.tif")
    assert pages.shape == (3, 4, 6) and pages.dtype == np.float32
    for index in range(3):
        assert np.array_equal(pages[index], some_posterior(index).mean[0, 0].numpy().T[::-1]), "x to the right, y upward"
    assert np.array_equal(tifffile.imread(folder / "std.tif")[2], some_posterior(2).std[0, 0].numpy().T[::-1])


def test_tiff_knows_its_spacing_as_imagej_does(folder: Path) -> None:
    with tifffile.TiffFile(folder / "mean.tif") as file:
        told = file.imagej_metadata
        assert told is not None and (told["images"], told["slices"], told["spacing"], told["unit"]) == (3, 3, 0.5, "mm")
        numerator, denominator = file.pages[0].tags["XResolution"].value
        assert numerator / denominator == pytest.approx(4.0)  # pixels per mm
        assert int(file.pages[0].tags["ResolutionUnit"].value) == 1, "no unit of TIFF's own: ImageJ takes that of the description"
        starts = [page.dataoffsets[0] for page in file.pages]
    assert np.diff(starts).tolist() == [6 * 4 * 4] * 2, "ImageJ reads only the first page's place"


def test_a_unit_that_is_no_ascii_is_written_all_the_same(tmp_path: Path) -> None:
    with posterior_files(tmp_path, Grid(1, (6, 4), 2.0, unit="µm"), 0.5, {}, nifti=True) as add:
        add(some_posterior(0))
    with tifffile.TiffFile(tmp_path / "mean.tif") as file:
        assert r"unit=\xb5m" in file.pages[0].tags["ImageDescription"].value


def test_nifti_by_its_bytes(folder: Path) -> None:
    """Against nifti1.h: the places of the fields that a reader needs."""
    written = (folder / "std.nii").read_bytes()
    assert len(written) == 352 + 3 * 6 * 4 * 4
    assert struct.unpack_from("<i", written, 0) == (348,) and written[344:352] == b"n+1\0\0\0\0\0"
    assert struct.unpack_from("<8h", written, 40) == (3, 6, 4, 3, 1, 1, 1, 1)
    assert struct.unpack_from("<2h", written, 70) == (16, 32)
    assert struct.unpack_from("<4f", written, 76) == (1.0, 0.25, 0.25, 0.5)
    assert struct.unpack_from("<2f", written, 108) == (352.0, 1.0) and written[123] == 2
    assert struct.unpack_from("<2h", written, 252) == (1, 1)
    assert struct.unpack_from("<4f", written, 280) == (0.25, 0.0, 0.0, -0.625)
    values = np.frombuffer(written, "<f4", offset=352).reshape(6, 4, 3, order="F")
    assert np.array_equal(values[:, :, 1], some_posterior(1).std[0, 0])


def test_nibabel_reads_what_we_write(folder: Path) -> None:
    for name in ("mean", "std"):
        image = nibabel.load(folder / f"{name}.nii")
        assert image.shape == (6, 4, 3) and image.header.get_data_dtype() == np.float32
        assert image.header.get_zooms() == pytest.approx((0.25, 0.25, 0.5)) and image.header.get_xyzt_units()[0] == "mm"
        wanted = [[0.25, 0, 0, -0.625], [0, 0.25, 0, -0.375], [0, 0, 0.5, 0], [0, 0, 0, 1]]
        for affine in (image.affine, image.get_qform(), image.get_sform()):
            assert np.allclose(affine, wanted)
        for index in range(3):
            assert np.array_equal(np.asarray(image.dataobj)[..., index], getattr(some_posterior(index), name)[0, 0])


@pytest.mark.parametrize(("unit", "code", "size"), [("cm", 2, 20.0), ("µm", 2, 0.002), ("in", 2, 50.8), ("0.5 mm", 2, 1.0), (None, 0, 2.0)])
def test_nifti_is_in_millimetres_where_the_unit_is_known(unit: str | None, code: int, size: float) -> None:
    header = nifti_header((2, 2, 1), (2.0, 2.0, 2.0), unit)
    assert header[123] == code and struct.unpack_from("<f", header, 80) == pytest.approx((size,))


def test_nifti_has_limits(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 32767"), nifti_stack(tmp_path / "a.nii", (4, 4, 40_000), (1, 1, 1), None):
        pass


def test_a_long_stack_becomes_bigtiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_CLASSIC_TIFF", 100)
    with outputs.tiff_stack(tmp_path / "a.tif", GRID) as add:
        for index in range(3):
            add(some_posterior(index).mean[0, 0])
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert file.is_bigtiff and file.asarray().shape == (3, 4, 6)


# Whole or not there


def test_files_appear_together_and_nothing_of_an_earlier_result_stays(tmp_path: Path) -> None:
    for name in ("a", "b", "mine"):
        (tmp_path / name).write_text("old")
    with replacing_together(tmp_path, earlier=("a", "b", "c")) as temporary:
        (temporary / "a").write_text("new")
        (temporary / "c").write_text("new")
        assert (tmp_path / "a").read_text() == "old" and not (tmp_path / "c").exists()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "c": "new", "mine": "old"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failure_leaves_the_earlier_result(error: BaseException, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with (
        pytest.raises(InputError if isinstance(error, OSError) else type(error)),
        replacing_together(tmp_path, earlier=("a",)) as temporary,
    ):
        (temporary / "a").write_text("half")
        raise error
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_a_folder_in_the_place_of_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match="it is a folder"), replacing_together(tmp_path) as temporary:
        (temporary / "a").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from pathlib import Path
import torch
from bdgd.apps.outputs import Grid, hdf5_stack
from bdgd.inference import Posterior
image = torch.rand(1, 1, 32, 32)
posterior = Posterior(image, image, image, 1, 0, lambda: iter(()))
for room in range(0, 70_000, 3_000):
    path = Path(sys.argv[1]) / f"{room}.h5"
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        with hdf5_stack(path, Grid(4, (32, 32)), 0.9, {"text": "x" * 4000}) as add:
            for _ in range(4):
                add(posterior)
        print("written", room)
    except OSError as error:
        print("failed", error.strerror)
"""


@pytest.mark.skipif(os.name != "posix", reason="only there a process can be given less room")
def test_hdf5_without_room_is_an_error_and_no_crash(tmp_path: Path) -> None:
    """A plain h5py file without room cannot be closed, and ends the process by a segmentation fault."""
    source = str(Path(__file__).resolve().parents[1] / "src")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source}
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert lines == ["failed File too large"] * 24
