"""Scans in `.npz` files of numpy: `np.savez("scan.npz", sinogram=y, **geometry.to_dict())`.

Keys: `sinogram` (or `sino`), (B, V, D) or (V, D); in its place `counts` with `flat` and `dark`; optional `image`; and the attributes of
a scan file, each as a key of its own, or all of the geometry as JSON text under `geometry`. An unknown key is an error.
The compact files of the Helsinki Tomography Challenge 2022, with `sino` and their own JSON in `geo`, are read as well.

An `.npz` is a zip of arrays. Only headers are read at first; a header or a zip entry that claims more than is there is an error,
and Python objects are never unpickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import IO, Any

import numpy as np

from bdgd.checks import InputError
from bdgd.data.formats.attributes import OWN
from bdgd.data.formats.contents import (
    ARRAYS,
    LARGEST_ATTRIBUTE,
    LARGEST_READ,
    Contents,
    require_plausible,
    require_readable_at_once,
    size_in_words,
)
from bdgd.data.formats.htc import compact_attributes

_HEADER = 10_000  # bytes: no array of numbers has a longer one
_ALIASES = {"sino": "sinogram"}
_GEOMETRY = ("beam", "image_size", "angles", "detectors", "detector_spacing", "detector_offset", "pixel_size", "source_to_axis")
_ATTRIBUTES = (*_GEOMETRY, "source_to_detector", *OWN)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Contents]:
    with zipfile.ZipFile(path) as archive, contextlib.ExitStack() as open_entries:
        entries = {_name(info): info for info in archive.infolist()}
        if len(entries) != len(archive.infolist()):
            raise InputError("a name appears twice in the archive; write it again with np.savez")
        members = {name: _Member(archive, info, name, open_entries) for name, info in entries.items()}
        arrays = {_ALIASES.get(name, name): member for name, member in members.items() if _ALIASES.get(name, name) in ARRAYS}
        for name in ("sinogram", "counts", "image"):
            if name in arrays:
                arrays[name].as_stack()
        yield Contents(_attributes(members), arrays, tuple(members), "key")


class _Member:
    """One array of the archive: its header is read at once, its values when they are asked for, one slice after the other."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, open_entries: contextlib.ExitStack):
        self._archive, self._info, self._name, self._open_entries = archive, info, name, open_entries
        with archive.open(info) as file:
            head = io.BytesIO(file.read(_HEADER))
        version = np.lib.format.read_magic(head)
        if version not in ((1, 0), (2, 0)):
            raise InputError(f"{name} is in version {version} of the npy format, which is for structured arrays; save plain numbers")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self._fortran, self.dtype = read(head, max_header_size=_HEADER)
        if any(n < 0 for n in self.shape):
            raise InputError(f"{name} declares the shape {self.shape}; write it again")
        self._start = head.tell()
        self._file: IO[bytes] | None = None
        self._whole: np.ndarray | None = None

    def as_stack(self) -> None:
        """A single slice (V, D) becomes a stack of one."""
        if len(self.shape) == 2:
            self.shape = (1, *self.shape)

    @property
    def stored(self) -> int:
        declared = self._start + math.prod(self.shape) * self.dtype.itemsize
        require_plausible(self._name, self._info.file_size, self._info.compress_size)
        return self._info.compress_size if self._info.file_size == declared else -1

    def __getitem__(self, index: int | EllipsisType) -> np.ndarray:
        if isinstance(index, EllipsisType):
            return self._read_whole()
        if self._fortran and self.shape[0] > 1:  # slices lie across one another: only the whole can be read
            return np.asarray(self._read_whole()[index])
        if self._file is None:
            self._file = self._open_entries.enter_context(self._archive.open(self._info))
        length = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._file.seek(self._start + index * length)  # forward is cheap also where the entry is packed
        return self._as_array(self._file.read(length), self.shape[1:])

    def _read_whole(self) -> np.ndarray:
        if self._whole is None:
            require_readable_at_once(math.prod(self.shape) * self.dtype.itemsize)
            with self._archive.open(self._info) as file:
                file.seek(self._start)
                self._whole = self._as_array(file.read(min(self._info.file_size, LARGEST_READ)), self.shape)
        return self._whole

    def _as_array(self, data: bytes, shape: tuple[int, ...]) -> np.ndarray:
        values = np.frombuffer(data, self.dtype)
        if values.size != math.prod(shape):
            raise InputError(f"{self._name} ends after {values.size} of {math.prod(shape)} values; write it again")
        return values.reshape(shape, order="F" if self._fortran else "C")


def _name(info: zipfile.ZipInfo) -> str:
    if not info.filename.endswith(".npy"):
        raise InputError(f"the archive holds {info.filename[:80]!r}, which is no array; write it with np.savez")
    return info.filename.removesuffix(".npy")


def _attributes(members: dict[str, _Member]) -> dict[str, Any]:
    """The attributes of a scan file, from keys of their own, from `geometry` or from the challenge's `geo`."""
    if "geo" in members:
        return compact_attributes(_json(members["geo"], "geo"))
    values = _json(members["geometry"], "geometry") if "geometry" in members else {}
    for name, member in members.items():
        if name in _ATTRIBUTES:
            if name in values:
                raise InputError(f"{name} is given twice, as a key and in geometry; give it once")
            values[name] = _small(member, name)
        elif name != "geometry" and _ALIASES.get(name, name) not in ARRAYS:
            raise InputError(f"unknown key {name[:80]!r}; known are {', '.join((*ARRAYS, 'geometry', *_ATTRIBUTES))}")
    return values


def _json(member: _Member, name: str) -> dict[str, Any]:
    text = _small(member, name)
    try:
        values = json.loads(text)
    except (TypeError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{name} must be a JSON object as Geometry.to_json() writes it; write it as text")
    return values


def _small(member: _Member, name: str) -> Any:
    """The values of an attribute as plain numbers, text and lists."""
    size = max(math.prod(member.shape) * member.dtype.itemsize, member._info.file_size)
    if size > LARGEST_ATTRIBUTE:
        raise InputError(f"the key {name} declares {size_in_words(size)}; an attribute has at most 8 MB")
    if member.dtype.kind not in "fiuUS":
        raise InputError(f"the key {name} must hold numbers or text, got {member.dtype}; write it as a list of numbers")
    if member.stored < 0:
        raise InputError(f"the key {name} declares more or fewer values than the file holds; write it again")
    value = member[...].tolist()
    return value.decode(errors="replace") if isinstance(value, bytes) else value
