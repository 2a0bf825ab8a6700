"""Scans as a TIFF stack `scan.tif` with a geometry file `scan.toml` beside it.

The TOML holds the attributes of a scan file (`Geometry.to_toml()` writes them), and may say

    pages = "slices"     a page is one sinogram (V, D): the default
    pages = "views"      a page is one view of all slices (B, D), as scanners write them
    flat = "flat.tif"    then the stack holds raw counts; pages of frames (F, D), one for all slices or one each; (B, D) each for "views"
    dark = "dark.tif"    the same without beam
    image = "truth.tif"  pages (H, W), one per slice: the truth

Files named there lie in the same folder. Pages are read one at a time; views of uncompressed stacks are mapped, not loaded.
"""

from __future__ import annotations

import contextlib
import logging
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from bdgd.checks import InputError, require_choice
from bdgd.data.formats.contents import LARGEST_ATTRIBUTE, Contents, require_plausible

if TYPE_CHECKING:
    import tifffile

_BESIDE = ("flat", "dark", "image")
_UNPACKED = 1  # TIFF's number for "not compressed"


@contextlib.contextmanager
def open_tiff(path: Path) -> Iterator[Contents]:
    attributes = _read_toml(path.with_suffix(".toml"))
    pages = require_choice(attributes.pop("pages", "slices"), ("slices", "views"), "pages")
    beside = {name: _beside(path, name, attributes.pop(name)) for name in _BESIDE if name in attributes}
    with contextlib.ExitStack() as files:
        arrays = {"counts" if "flat" in beside else "sinogram": files.enter_context(_pages(path, pages == "views"))}
        for name, file in beside.items():
            arrays[name] = files.enter_context(_pages(file, pages == "views" and name != "image"))
        yield Contents(attributes, arrays, tuple(arrays), "page")


class _Pages:
    """Pages of one shape as an `Array` of slices: page by page, or the same row of every page."""

    def __init__(self, path: Path, file: tifffile.TiffFile, across: bool):
        self._path, self._across = path, across
        with _library_remarks() as remarks:
            self._pages: list[Any] = list(file.pages)
        if remarks or not self._pages:
            raise InputError(f"{path.name} ends after {len(self._pages)} whole pages; check that it was copied completely")
        images = int((file.imagej_metadata or {}).get("images", 1))
        values = sum(math.prod(array["shape"]) for array in file.shaped_metadata or ())
        if images > len(self._pages) or values > sum(math.prod(page.shape) for page in self._pages):
            raise InputError(
                f"{path.name} has one header for many pages, as ImageJ writes large stacks, and only pages with a header of their own"
                " are read; write it again with tifffile.imwrite"
            )
        first = self._pages[0]
        if len(first.shape) != 2 or first.dtype is None:
            raise InputError(f"{path.name} has pages of {first.dtype} {first.shape}; a page must be a grey picture, one number per pixel")
        for number, page in enumerate(self._pages):
            if (page.shape, page.dtype) != (first.shape, first.dtype):
                raise InputError(
                    f"page {number} of {path.name} is {page.dtype} {page.shape} and page 0 is {first.dtype} {first.shape};"
                    " all pages must have one size and type"
                )
        rows, detectors = first.shape
        self.shape: tuple[int, ...] = (rows, len(self._pages), detectors) if across else (len(self._pages), rows, detectors)
        self.dtype: np.dtype = first.dtype

    @property
    def stored(self) -> int:
        """The bytes of all pages, once every page has what it declares inside the file."""
        end, total = self._path.stat().st_size, 0
        for page in self._pages:
            size = sum(page.databytecounts)
            if any(start + count > end for start, count in zip(page.dataoffsets, page.databytecounts, strict=True)):
                return -1
            if page.compression == _UNPACKED and size < self._page_bytes:
                return -1
            require_plausible(f"a page of {self._path.name}", max(self._page_bytes, self._segment_bytes(page)), size)
            total += size
        return total

    @property
    def _page_bytes(self) -> int:
        return int(self._pages[0].shape[0]) * int(self._pages[0].shape[1]) * int(self.dtype.itemsize)

    def _segment_bytes(self, page: Any) -> int:
        """What one strip or tile unpacks to: it may be declared larger than its page."""
        return int(np.prod(page.chunks, dtype=object)) * int(self.dtype.itemsize)

    def __getitem__(self, index: int | EllipsisType) -> np.ndarray:
        if isinstance(index, EllipsisType):
            return np.stack([self[i] for i in range(self.shape[0])])
        if self._across:
            return np.stack([self._mapped(page)[index] for page in self._pages])
        return np.asarray(self._pages[index].asarray())

    def _mapped(self, page: Any) -> np.ndarray:
        if not page.is_memmappable:
            return np.asarray(page.asarray())
        return np.memmap(self._path, dtype=page.parent.byteorder + page.dtype.char, mode="r", offset=page.dataoffsets[0], shape=page.shape)


@contextlib.contextmanager
def _pages(path: Path, across: bool) -> Iterator[_Pages]:
    import tifffile

    if not path.is_file():
        raise InputError(f"there is no file {path.name} beside the geometry; check its name")
    with contextlib.ExitStack() as files:
        with _library_remarks():
            file = files.enter_context(tifffile.TiffFile(path))
        yield _Pages(path, file, across)


def _beside(path: Path, name: str, value: Any) -> Path:
    """A file in the folder of the scan, and nowhere else."""
    if not isinstance(value, str) or not value or Path(value).name != value:
        raise InputError(f"{name} must be the name of a TIFF file in the scan's folder, got {str(value)[:80]!r}")
    return path.with_name(value)


def _read_toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(
            f"a TIFF scan needs its geometry in {path.name} beside it: a text file with beam, image_size, angles_degrees,"
            " detectors and so on, as docs/scans.md shows it; Geometry.to_toml() writes one"
        )
    if path.stat().st_size > LARGEST_ATTRIBUTE:
        raise InputError(f"the geometry {path.name} has {path.stat().st_size} bytes; a geometry has at most 8 MB")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not valid TOML: {' '.join(str(error).split())[:200]}") from None


@contextlib.contextmanager
def _library_remarks() -> Iterator[list[str]]:
    """What tifffile would log about pages that it left out, as a list: a shorter stack must not look like a whole one."""
    logger, remarks = logging.getLogger("tifffile"), _Remarks()
    logger.addFilter(remarks)
    try:
        yield remarks.texts
    finally:
        logger.removeFilter(remarks)


class _Remarks(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what is said of pages; say nothing, since a library prints nothing."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING and ("page" in text or "IFD" in text):
            self.texts.append(text)
        return False
