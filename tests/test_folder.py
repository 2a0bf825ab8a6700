"""Pictures of a folder as phantoms: what is read, and that no picture ever changes the set it is for."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from refusals import refusal
from toys import seeded

from bdgd.data import folder_images
from bdgd.data.folder import _files, _pictures, _set_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ramp = np.arange(40 * 30).reshape(40, 30)
    Image.fromarray((ramp % 256).astype(np.uint8)).save(tmp_path / "a.png")
    tifffile.imwrite(tmp_path / "b.tif", ramp.astype(np.float32) - 1000)
    np.save(tmp_path / "c.npy", np.stack([ramp, 2 * ramp]))
    (tmp_path / "readme.txt").write_text("no picture")
    return tmp_path


def test_pictures_of_a_folder(folder: Path) -> None:
    images = folder_images(folder, "train", 9, 24, generator=seeded())
    assert images.shape == (9, 1, 24, 24) and float(images.min()) == 0 and 0.75 < float(images.amax((1, 2, 3)).min()) <= 1
    assert torch.equal(images, folder_images(folder, "train", 9, 24, generator=seeded()))
    assert len({image.numpy().tobytes() for image in images}) == 9


@pytest.mark.parametrize("side", [32, 64])
def test_air_below_zero_stays_darker_than_lung(side: int, tmp_path: Path) -> None:
    """Hounsfield units, as large as the image and twice as large: shifted to 0, not cut off there."""
    hounsfield = np.full((64, 64), -1000, np.int16)
    hounsfield[8:56, 8:56], hounsfield[16:32, 16:48], hounsfield[40:48, 40:48] = 0, -800, 1000
    np.save(tmp_path / "a.npy", hounsfield)
    (picture,) = _pictures(tmp_path / "a.npy", side)
    places = ((4, 4), (32, 40), (12, 12), (44, 20))  # x to the right and y upward, in pixels of the file
    air, lung, tissue, bone = (float(picture[x * side // 64, y * side // 64]) for x, y in places)
    assert picture.dtype == torch.float32 and (air, lung, tissue, bone) == pytest.approx((0.0, 0.1, 0.5, 1.0), abs=1e-6)


@pytest.fixture
def colours() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)


def as_png(path: Path, values: np.ndarray) -> None:
    Image.fromarray(values).save(path)


def as_planes(path: Path, values: np.ndarray) -> None:
    tifffile.imwrite(path, np.moveaxis(values, -1, 0), photometric="rgb", planarconfig="separate")


COLOURED: dict[str, Callable[[Path, np.ndarray], None]] = {
    "a.png": as_png,
    "a.npy": np.save,
    "a.tif": lambda path, values: tifffile.imwrite(path, values, photometric="rgb"),
    "planes.tif": as_planes,
    "pages.tif": lambda path, values: tifffile.imwrite(path, values[None].repeat(2, 0), photometric="rgb"),
}


@pytest.mark.parametrize("name", COLOURED)
@pytest.mark.parametrize("cover", [False, True])
def test_colours_become_grey_in_every_format(name: str, cover: bool, colours: np.ndarray, tmp_path: Path) -> None:
    values = np.dstack((colours, np.full(colours.shape[:2], 255, np.uint8))) if cover else colours
    COLOURED[name](tmp_path / name, values)
    as_png(tmp_path / "grey.png", np.asarray(Image.fromarray(colours).convert("L")))
    (grey,), found = _pictures(tmp_path / "grey.png", 40), _pictures(tmp_path / name, 40)
    assert len(found) == (2 if name == "pages.tif" else 1)
    assert all(picture.shape == (40, 40) and float((picture - grey).abs().max()) < 0.01 for picture in found)


def test_every_series_of_a_tiff_is_read(colours: np.ndarray, tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", colours[..., 0], photometric="minisblack")
    tifffile.imwrite(tmp_path / "a.tif", colours[:20, :30, 0], photometric="minisblack", append=True)
    assert [tuple(picture.shape) for picture in _pictures(tmp_path / "a.tif", 64)] == [(40, 40), (20, 20)]


NAMES = ("train", "validation", "head", "calibration", "test")


def fill(folder: Path, numbers: Iterable[int]) -> None:
    """A picture per number, each with a content of its own."""
    for n in numbers:
        np.save(folder / f"{n:03d}.npy", (n + 1) * np.eye(4))


def sets_of(folder: Path) -> dict[str, set[str]]:
    return {name: {path.stem for path in _files(folder, name)} for name in NAMES}


def test_no_picture_is_in_two_sets_and_most_are_for_training(tmp_path: Path) -> None:
    fill(tmp_path, range(200))
    sets = sets_of(tmp_path)
    assert sum(map(len, sets.values())) == len(set().union(*sets.values())) == 200
    assert 100 <= len(sets["train"]) <= 140 and all(10 <= len(sets[name]) <= 32 for name in NAMES[1:])


def test_a_picture_stays_in_its_set_when_others_come_go_or_change_their_names(tmp_path: Path) -> None:
    fill(tmp_path, range(60))
    before = sets_of(tmp_path)
    for n in (0, 7, 20):
        (tmp_path / f"{n:03d}.npy").unlink()
    fill(tmp_path, range(60, 110))
    (tmp_path / "001.npy").rename(tmp_path / "zzz.npy")
    after = sets_of(tmp_path)
    for name, files in before.items():
        assert files - {"000", "001", "007", "020"} <= after[name]
    assert next(name for name in NAMES if "001" in before[name]) == next(name for name in NAMES if "zzz" in after[name])


def test_copies_of_a_picture_are_in_one_set(tmp_path: Path) -> None:
    fill(tmp_path, range(60))
    for n in range(60):
        shutil.copy(tmp_path / f"{n:03d}.npy", tmp_path / f"{n:03d}-copy.npy")
    for files in sets_of(tmp_path).values():
        assert {name.removesuffix("-copy") for name in files} == {name for name in files if not name.endswith("-copy")}


def only(folder: Path, set_name: str, count: int) -> list[Path]:
    """Files whose content is for one set."""
    folder.mkdir()
    fill(folder, range(100))
    kept = [path for path in sorted(folder.iterdir()) if _set_of(path) == set_name][:count]
    for path in set(folder.iterdir()) - set(kept):
        path.unlink()
    return kept


@pytest.mark.parametrize("name", ["train", "validation"])
def test_a_few_pictures_of_one_set_are_for_training_and_validation(name: str, tmp_path: Path) -> None:
    kept = only(tmp_path / name, name, 2)
    assert _files(tmp_path / name, "train") == _files(tmp_path / name, "validation") == kept
    for other in ("head", "calibration", "test"):
        with refusal(rf"none of the 2 picture files in .* is for {other}: .* for 1 of ten; put more pictures"):
            _files(tmp_path / name, other)


def test_pictures_for_testing_are_not_trained_on(tmp_path: Path) -> None:
    kept = only(tmp_path / "test", "test", 1)
    assert _files(tmp_path / "test", "test") == kept
    with refusal(r"is for train: .* for 6 of ten"):
        _files(tmp_path / "test", "train")


CUT_NPY = b"\x93NUMPY\x01\x00\x10\x00{'descr': ('<f4'\n"


@pytest.mark.parametrize(("name", "content"), [("bad.png", b"no png"), ("bad.npy", b"\x93NUMPY"), ("bad.tif", b"II"), ("cut.npy", CUT_NPY)])
def test_files_that_cannot_be_read(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with refusal("is not a readable"):
        _pictures(tmp_path / name, 8)


def png_header(path: Path, width: int, height: int) -> None:
    """A PNG that says how large it is, and holds a few bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b""))


@pytest.mark.parametrize(("side", "message"), [(20000, "400000000 pixels"), (10000, "100000000 pixels"), (100, "not a readable PNG")])
def test_a_png_that_declares_too_much_is_not_unpacked(side: int, message: str, tmp_path: Path) -> None:
    png_header(tmp_path / "a.png", side, side)
    with refusal(message):
        _pictures(tmp_path / "a.png", 8)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with refusal(r"holds no picture; put \.png"):
        folder_images(tmp_path, "train", 1, 8, generator=seeded())
    with refusal("there is no folder"):
        folder_images(tmp_path / "none", "train", 1, 8, generator=seeded())


def test_pictures_that_are_none(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[np.nan]]))
    with refusal("of finite numbers"):
        _pictures(tmp_path / "a.npy", 8)
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with refusal("is not a readable"):
        _pictures(tmp_path / "a.npy", 8)
