"""`.mat` files of the Helsinki Tomography Challenge 2022, as downloaded: a struct CtDataFull or CtDataLimited with sinogram and parameters.

A `.mat` may hold anything: objects, functions, packed elements of any size. This reader knows one struct of numbers and text, and
nothing else. It is not SciPy's, which makes room for whatever a file declares and dies with the process on some damaged ones.
The format: "MAT-File Level 5", a header of 128 bytes, then elements of (type, size, content); a matrix is an element of elements.
"""

from __future__ import annotations

import contextlib
import math
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bdgd.checks import InputError, require_count, require_positive
from bdgd.data.formats import htc
from bdgd.data.formats.contents import EXPANSION, SMALL, Contents, InMemory, named_errors, size_in_words

_SCANS = ("CtDataFull", "CtDataLimited")
_LARGEST = 2**30  # bytes, packed or unpacked: a thousand views of a wide detector are 32 MB
_MATRIX, _COMPRESSED = 14, 15  # types of elements
_STRUCT, _CHAR = 2, 4  # classes of matrices
_NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}  # class to what it is
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # type to how it is stored
_TEXT = {1: "latin1", 2: "latin1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_COMPLEX = 0x0800
_REFUSED = {1: "a cell array", 3: "an object", 5: "a sparse matrix", 16: "a function handle", 17: "an object"}
_DEEPEST = 4
_HEAD = 4096  # bytes: flags, sides and name of any matrix


@contextlib.contextmanager
def open_matlab(path: Path) -> Iterator[Contents]:
    if path.stat().st_size > _LARGEST:
        raise InputError(f"it has {size_in_words(path.stat().st_size)}, more than the {size_in_words(_LARGEST)} that a .mat scan may have")
    name, data, names = _read_scan(path.read_bytes())
    parameters = data.get("parameters") if isinstance(data, dict) else None
    sinogram = data.get("sinogram") if isinstance(data, dict) else None
    if not isinstance(parameters, dict) or not isinstance(sinogram, np.ndarray) or sinogram.ndim != 2:
        raise InputError(f"{name} must be a struct with sinogram (views, detectors) and parameters, as in the challenge's files")
    yield Contents(_attributes(parameters, sinogram), {"sinogram": InMemory(sinogram[None])}, names, "variable")


def _attributes(parameters: dict[str, Any], sinogram: np.ndarray) -> dict[str, Any]:
    needed = ("distanceSourceOrigin", "distanceSourceDetector", "pixelSizePost", "numDetectorsPost", "angles", "distanceUnit")
    if missing := [name for name in needed if name not in parameters]:
        raise InputError(f"parameters needs {missing[0]!r}, as in the challenge's files")
    sod, sdd, spacing = (require_positive(_single(parameters[name]), name) for name in needed[:3])
    detectors = require_count(_single(parameters["numDetectorsPost"]), "numDetectorsPost")
    angles = np.ravel(parameters["angles"])
    if angles.shape != sinogram.shape[:1]:
        raise InputError(f"parameters has {angles.size} angles for a sinogram of {sinogram.shape[0]} views; correct one of them")
    return htc.attributes((sod, sdd, spacing), detectors, angles, parameters["distanceUnit"])


def _single(value: Any) -> Any:
    """MATLAB's 1 x 1 matrix as a number, whole where it is whole: MATLAB keeps counts as doubles."""
    number = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _read_scan(data: bytes) -> tuple[str, Any, tuple[str, ...]]:
    """The name and the value of the scan's struct, and the names of all variables."""
    order = _byte_order(data)
    variables = _variables(data, order)
    found = [name for name in _SCANS if name in variables]
    if len(found) != 1:
        holds = ", ".join(sorted(variables))[:200] or "nothing"
        raise InputError(f"a scan of the challenge holds CtDataFull or CtDataLimited, this file holds {holds}; give the scan's own file")
    return found[0], _read(variables[found[0]], order, found[0]), tuple(variables)


def read_matrix(path: Path, name: str) -> np.ndarray:
    """One variable of a `.mat` file, which must be a matrix of numbers: the organisers' segmentation lies in a file of its own."""
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path} has {size_in_words(path.stat().st_size)}, more than the {size_in_words(_LARGEST)} that it may have")
    data = path.read_bytes()
    with named_errors(path, ".mat"):
        order = _byte_order(data)
        variables = _variables(data, order)
        value = _read(variables[name], order, name) if name in variables else None
        if not isinstance(value, np.ndarray) or value.ndim != 2:
            raise InputError(f"it must hold {name}, a matrix of numbers, and holds {', '.join(sorted(variables))[:200] or 'nothing'}")
    return value


def _byte_order(data: bytes) -> str:
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if data[:10] == b"MATLAB 7.3":
        raise InputError("it is a version 7.3 file; save it in MATLAB with the option '-v7'")
    if data[:6] != b"MATLAB" or order is None:
        raise InputError("it is no .mat file of version 5; save it in MATLAB with the option '-v7'")
    return order


def _variables(data: bytes, order: str) -> dict[str, tuple[int, memoryview]]:
    """Every matrix in the file by its name, as (type of its element, content): packed ones are opened as far as their names."""
    variables = {}
    for kind, content in _elements(memoryview(data)[128:], order):
        if kind == _COMPRESSED:
            head = memoryview(zlib.decompressobj().decompress(bytes(content[:_HEAD]), _HEAD))
            if len(head) >= 8 and struct.unpack_from(order + "I", head)[0] == _MATRIX:
                variables[_variable_name(head[8:], order)] = kind, content
        elif kind == _MATRIX:
            variables[_variable_name(content, order)] = kind, content
    return variables


def _read(variable: tuple[int, memoryview], order: str, name: str) -> Any:
    """The value of a variable, within `EXPANSION` times what the file holds of it."""
    kind, content = variable
    room = _Room(name, len(content))
    if kind == _COMPRESSED:
        ((kind, content),) = _elements(memoryview(_unpacked(content)), order)
    return _value(content, order, name, room)


class _Room:
    """How much memory the numbers of a variable may still take: a double may be stored as a byte."""

    def __init__(self, name: str, stored: int):
        self._name, self._stored = name, stored
        self._left = min(EXPANSION * stored + SMALL, _LARGEST)

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            most = size_in_words(min(EXPANSION * self._stored + SMALL, _LARGEST))
            raise InputError(f"{self._name} unpacks to more than {most} from {size_in_words(self._stored)}; save it with '-v6'")


def _unpacked(packed: memoryview) -> bytes:
    """One packed element, within `EXPANSION` times its size, which is counted before it is kept."""
    most = min(EXPANSION * len(packed) + SMALL, _LARGEST)
    stream, rest, size = zlib.decompressobj(), bytes(packed), 0
    while rest and not stream.eof:
        size += len(stream.decompress(rest, SMALL))
        rest = stream.unconsumed_tail
        if size > most:
            raise InputError(f"a variable unpacks to more than {size_in_words(most)} from {size_in_words(len(packed))}; save it with '-v6'")
    if not stream.eof:
        raise ValueError("a packed variable ends too early")
    return zlib.decompress(packed, bufsize=max(size, 1))


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """(type, content) of one element after the other; small ones have both in eight bytes."""
    at = 0
    while at < len(data):
        first, size = struct.unpack_from(order + "II", data, at)
        kind, start = first, at + 8
        if first >> 16:
            kind, size, start = first & 0xFFFF, first >> 16, at + 4
        if start + size > len(data) or (start == at + 4 and size > 4):
            raise ValueError("an element ends after the end of the file")
        yield kind, data[start : start + size]
        at = at + 8 if start == at + 4 else start + size + (0 if kind == _COMPRESSED else -size % 8)


def _variable_name(matrix: memoryview, order: str) -> str:
    parts = list(islice(_elements(matrix, order), 3))
    return bytes(parts[2][1]).decode("latin1") if len(parts) > 2 else ""


def _value(matrix: memoryview, order: str, name: str, room: _Room, depth: int = 0) -> Any:
    """A matrix as text, as an array of real numbers, or, of a struct, as a dict of such; anything else is refused."""
    if len(matrix) == 0:
        return np.zeros(0)
    parts = list(_elements(matrix, order))
    flags = struct.unpack_from(order + "I", parts[0][1])[0]
    sides = struct.unpack(f"{order}{len(parts[1][1]) // 4}i", parts[1][1])
    kind = flags & 0xFF
    if flags & _COMPLEX:
        raise InputError(f"{name} holds complex numbers; save its real part")
    if kind == _STRUCT and math.prod(sides) == 1 and depth < _DEEPEST:
        return _fields(parts[3:], order, name, room, depth)
    if kind != _CHAR and kind not in _NUMBERS:
        what = _REFUSED.get(kind, "a struct array or a struct nested too deep" if kind == _STRUCT else "an unknown class")
        raise InputError(f"{name} holds {what}, which no scan of the challenge has; save it as one struct of numbers and text")
    stored, values = parts[3] if len(parts) > 3 else (2, memoryview(b""))
    if kind == _CHAR:
        return bytes(values).decode(_TEXT[stored] if stored < 3 or stored == 16 else _TEXT[stored] + ("-le" if order == "<" else "-be"))
    numbers = np.frombuffer(values, order + _STORED[stored])
    if min(sides) < 0 or math.prod(sides) != numbers.size:
        raise InputError(f"{name} declares {math.prod(sides)} values of which the file does not hold all; save it again")
    room.take(numbers.size * np.dtype(_NUMBERS[kind]).itemsize)
    return numbers.astype(_NUMBERS[kind]).reshape(sides, order="F")


def _fields(parts: list[tuple[int, memoryview]], order: str, name: str, room: _Room, depth: int) -> dict[str, Any]:
    """The fields of a struct by name: the length of a name, all names, then a matrix for each."""
    length = struct.unpack_from(order + "i", parts[0][1])[0]
    names = bytes(parts[1][1])
    if not 0 < length <= 64 or len(names) != length * len(parts[2:]):
        raise ValueError("a struct has other fields than names")
    fields = {}
    for number, (_, content) in enumerate(parts[2:]):
        field = names[number * length : (number + 1) * length].split(b"\0")[0].decode("latin1")
        fields[field] = _value(content, order, f"{name}.{field}", room, depth + 1)
    return fields
