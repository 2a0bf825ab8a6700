"""What every scan file is to the rest of the package: attributes, arrays that are read one entry at a time, and their limits.

A reader opens its format and gives `Contents`. Nothing is allocated by what a file claims: shapes, types and sizes are checked
here, in one place for all formats, before the first value is read.
"""

from __future__ import annotations

import contextlib
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any, Protocol

import numpy as np

from bdgd.checks import InputError

EXPANSION = 250  # a measured sinogram packs to a half, a simulated image to a few percent; a bomb to a thousandth
SMALL = 2**20  # bytes that nobody needs to be protected from
LARGEST_READ = 8 * 2**30  # bytes that one call takes into memory: beyond it scans are read slice by slice
LARGEST_ATTRIBUTE = 2**23  # bytes of one attribute or geometry file: a million angles
ARRAYS = ("sinogram", "counts", "flat", "dark", "image")  # what a scan file may hold, besides its attributes


class Array(Protocol):
    """An array in a file: its claims are known, its values are read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def stored(self) -> int:
        """How many bytes of the file the values come from, as they are stored; -1 where the file does not hold them all."""

    def __getitem__(self, index: int | EllipsisType) -> np.ndarray: ...


@dataclass(frozen=True)
class InMemory:
    """An array that its reader has already taken out of the file, within limits."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def stored(self) -> int:
        return self.values.nbytes

    def __getitem__(self, index: int | EllipsisType) -> np.ndarray:
        return np.asarray(self.values[index])


@dataclass(frozen=True)
class Contents:
    """An open scan file: attributes as plain numbers, text and lists; arrays by their names in `ARRAYS`."""

    attributes: Mapping[str, Any]
    arrays: Mapping[str, Array]
    names: tuple[str, ...] = ()  # of all that the file holds, for messages
    called: str = "dataset"  # what this format calls one of them
    notes: tuple[str, ...] = field(default=())

    def require(self, name: str, shape: tuple[int | None, ...], meaning: str) -> Array:
        """The array, once its rank, shape, type and storage are what the geometry says; None stands for any number of slices."""
        if name not in self.arrays:
            holds = ", ".join(sorted(self.names)) or "nothing"
            raise InputError(
                f"a scan needs the {self.called} {name!r}, but the file holds {holds[:200]}; write it as {meaning},"
                " or raw counts as 'counts' with 'flat' and 'dark'"
            )
        found = self.arrays[name]
        if len(found.shape) != len(shape) or any(n is not None and n != got for n, got in zip(shape, found.shape, strict=True)):
            expected = "(" + ", ".join("B" if n is None else str(n) for n in shape) + ")"
            raise InputError(
                f"{name} must be {meaning} = {expected} by the geometry in the file, got {found.shape}; {_shape_remedy(found.shape, shape)}"
            )
        require_values(name, found)
        return found


def _shape_remedy(got: tuple[int, ...], expected: tuple[int | None, ...]) -> str:
    """How the array becomes what was expected, where its sizes tell."""
    known = [n for n in expected if n is not None]
    if got == tuple(known):
        return "add the axis of slices with [None]"
    if len(got) > len(expected) and 1 in got[1:]:
        return "leave out the axis of length 1"
    if len(got) == len(expected) and all(got.count(n) >= known.count(n) for n in known):
        return "put its axes into this order"
    return "correct one of them"


def require_values(name: str, array: Array) -> None:
    """Raise unless the array holds real numbers, at least one, and the file is large enough to hold what it declares."""
    size = math.prod(array.shape)
    if size == 0:
        raise InputError(f"{name} is empty: shape {array.shape} holds no slice")
    if array.dtype.kind == "O":
        raise InputError(f"{name} holds Python objects, which only pickle could read; save it as an array of numbers")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must hold real numbers, got {array.dtype}; write it as float32")
    if array.stored < 0:
        raise InputError(f"{name} declares {size} values of which the file does not hold all; write it again")
    require_plausible(name, size * array.dtype.itemsize, array.stored)


def require_plausible(name: str, declared: int, stored: int) -> None:
    """Raise where `stored` bytes would unpack to a size that no measurement packs to."""
    if declared > EXPANSION * stored + SMALL:
        raise InputError(
            f"{name} declares {size_in_words(declared)} in {size_in_words(stored)} of the file,"
            f" more than the {EXPANSION}-fold that is read; write it uncompressed"
        )


def require_readable_at_once(declared: int) -> None:
    """Raise where one call would take more memory than `LARGEST_READ`."""
    if declared > LARGEST_READ:
        raise InputError(
            f"these scans need {size_in_words(declared)} of memory, more than the {size_in_words(LARGEST_READ)} that are read at once;"
            " read part of them with read_scans(path, slice(0, 10)), or slice by slice with open_stack(path)"
        )


@contextlib.contextmanager
def named_errors(path: Path, kind: str) -> Iterator[None]:
    """Whatever a library says of a damaged file, as one sentence that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except MemoryError:
        raise InputError(f"{path} is too large for this machine's memory; read part of it with read_scans(path, slice(0, 10))") from None
    except (  # what h5py, zipfile, numpy, Pillow and tifffile raise for damaged files
        *(OSError, EOFError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, AssertionError, AttributeError),
        *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, tokenize.TokenError),
    ) as error:
        raise InputError(f"{path} is not a readable {kind} file ({_reason(error)}); check that it was copied completely") from None


def size_in_words(count: int) -> str:
    """Bytes as a person reads them: "10 GB", "31 kB"."""
    for factor, word in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {word}"
    return f"{count} bytes"


def _reason(error: Exception) -> str:
    """A library's message on one line, without the address book of HDF5's file driver."""
    text = " ".join(str(error).split("\n")[0].split()).removesuffix(".")
    return text[:200] or type(error).__name__
