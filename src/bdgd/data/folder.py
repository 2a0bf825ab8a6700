"""Pictures of one's own as phantoms: every PNG, TIFF or npy file of a folder, brought to [0, 1], turned, flipped and moved about."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_choice, require_count
from bdgd.data.formats.contents import named_errors

SUFFIXES = (".png", ".tif", ".tiff", ".npy")
LARGEST = 2**26  # pixels of one picture: more than any that would be trained on
#: Which set each tenth of all files is for. "head" is for a scale head, which must not see what trained the cascade.
FILE_SETS = (*("train",) * 6, "validation", "head", "calibration", "test")
_LENDING = {"train": "validation", "validation": "train"}  # neither is what anything is promised on
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, as ITU-R 601 weighs them
_NUMBERS = 6  # random numbers per image


def folder_images(
    folder: str | Path, set_name: str, count: int, size: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Tensor:
    """(count, 1, size, size) float32 in [0, 1] from the pictures of a folder, each used as often as it takes.

    A picture is shifted to minimum 0 and divided by its maximum, cut to a square around its middle, turned by quarter turns, flipped,
    made 3/4 to 1 times as large as the image and laid somewhere in it; around it is 0. Colours become grey. A page of a TIFF or a
    slice of a three-dimensional npy is a picture. No file is in two sets: a hash of its content says which of the tenths in
    `FILE_SETS` it belongs to, so that copies are together, and no file changes its set when others come or go. Where only one of
    training and validation has any files, both use them; a set without a file is an error.
    """
    count, size = require_count(count, "count"), require_count(size, "size")
    pictures = [picture for path in _files(folder, set_name) for picture in _pictures(path, size)]
    numbers = torch.rand(count, _NUMBERS, generator=generator)
    order = torch.cat([torch.randperm(len(pictures), generator=generator) for _ in range(-(-count // len(pictures)))])[:count]
    images = [_placed(pictures[int(k)], size, row.tolist()) for k, row in zip(order, numbers, strict=True)]
    return torch.stack(images)[:, None].to(device)


def distinct_pictures(folder: str | Path, set_name: str, size: int) -> int:
    """How many different pictures the images of a set are made of, however many images there are; copies count once."""
    return len({picture.numpy().tobytes() for path in _files(folder, set_name) for picture in _pictures(path, size)})


def _files(folder: str | Path, set_name: str) -> list[Path]:
    folder = Path(folder)
    require_choice(set_name, tuple(dict.fromkeys(FILE_SETS)), "set_name")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; phantoms are 'ellipses', 'discs-with-holes' or a folder of {', '.join(SUFFIXES)}")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise InputError(f"the folder {folder} holds no picture; put {', '.join(SUFFIXES)} files into it")
    sets: dict[str, list[Path]] = {name: [] for name in FILE_SETS}
    for path in files:
        sets[_set_of(path)].append(path)
    chosen = sets[set_name]
    if not chosen and set_name in _LENDING:
        chosen = sets[_LENDING[set_name]]
    if not chosen:
        raise InputError(
            f"none of the {len(files)} picture files in {folder} is for {set_name}: the content of a file says what it is for, and that is"
            f" {set_name} for {FILE_SETS.count(set_name)} of ten; put more pictures into it, or bring scans with known images"
        )
    return chosen


def _set_of(path: Path) -> str:
    """The set that a file is for, by its content alone."""
    with named_errors(path, path.suffix[1:].upper()), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return FILE_SETS[int.from_bytes(digest[:8], "big") % len(FILE_SETS)]


def _pictures(path: Path, size: int) -> list[Tensor]:
    """The pictures in a file, each grey and a square of at most `size` pixels in [0, 1], first index x."""
    with named_errors(path, path.suffix[1:].upper()):
        arrays = [_grey(array) for array in _read(path)]
    for array in arrays:
        if array.dtype.kind not in "fiub" or array.ndim not in (2, 3) or 0 in array.shape or not np.isfinite(array).all():
            got = f"{array.dtype} {array.shape}"
            raise InputError(f"{path} holds {got}; a picture is (rows, columns), or several of them, of finite numbers")
    return [_square(page.astype(np.float64), size) for array in arrays for page in (array[None] if array.ndim == 2 else array)]


def _grey(array: np.ndarray) -> np.ndarray:
    """Colours on the last axis, of three or four columns, become grey as Pillow makes it; what covers them is left aside."""
    if array.ndim < 3 or array.shape[-1] not in (3, 4) or array.dtype.kind not in "fiub":
        return array
    grey: np.ndarray = array[..., :3].astype(np.float64) @ _LUMA
    return grey


def _read(path: Path) -> list[np.ndarray]:
    """What the file holds, colours on the last axis; a TIFF may hold several series of pages, each of a size of its own."""
    if path.suffix.lower() == ".npy":
        stored: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        _require_small(int(np.prod(stored.shape, dtype=object)))
        return [np.asarray(stored)]
    if path.suffix.lower() == ".png":
        from PIL.PngImagePlugin import PngImageFile

        with PngImageFile(path) as picture:  # Image.open would judge the size first, with a warning or an error of its own
            _require_small(picture.width * picture.height)
            # 16-bit grey stays as it is; colours become grey
            return [np.asarray(picture if picture.mode.startswith(("I", "F")) else picture.convert("L"))]
    import tifffile

    with tifffile.TiffFile(path) as file:
        if not file.series:
            raise ValueError("it has no page")
        _require_small(sum(int(np.prod(series.shape, dtype=object)) for series in file.series))
        return [_samples_last(series.asarray(), series.axes) for series in file.series]


def _samples_last(pages: np.ndarray, axes: str) -> np.ndarray:
    """TIFF pages with their samples (S), if there are several, on the last axis; of grey with what covers it, the grey alone."""
    if "S" not in axes:
        return pages
    moved = np.moveaxis(pages, axes.index("S"), -1)
    return moved[..., 0] if moved.shape[-1] == 2 else moved


def _require_small(pixels: int) -> None:
    if pixels > LARGEST:
        raise InputError(f"a picture of {pixels} pixels is more than the {LARGEST} that are read; cut or bin it")


def _square(page: np.ndarray, size: int) -> Tensor:
    """Rows from top to bottom become x to the right and y upward; the middle square, no larger than needed, in [0, 1]."""
    picture = torch.from_numpy(np.flip(page, 0).T.copy())
    side = min(picture.shape)
    x, y = ((n - side) // 2 for n in picture.shape)
    picture = picture[x : x + side, y : y + side]
    picture = _resized(picture, size) if side > size else picture
    low, high = picture.min(), picture.max()
    return ((picture - low) / (high - low) if float(high) > float(low) else torch.zeros_like(picture)).float()


def _resized(picture: Tensor, size: int) -> Tensor:
    """Averaged where it gets smaller, interpolated where it gets larger."""
    return F.interpolate(picture[None, None], size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0, 0]


def _placed(picture: Tensor, size: int, numbers: list[float]) -> Tensor:
    """(size, size) the picture turned, flipped, made smaller and laid into an image of zeros."""
    turned = torch.rot90(picture, int(4 * numbers[0]))
    turned = turned.flip(0) if numbers[1] < 0.5 else turned
    side = max(1, round(size * (0.75 + 0.25 * numbers[2])))
    x, y = int((size - side + 1) * numbers[3]), int((size - side + 1) * numbers[4])
    image = torch.zeros(size, size)
    image[x : x + side, y : y + side] = _resized(turned, side).clamp(0, 1)
    return image
