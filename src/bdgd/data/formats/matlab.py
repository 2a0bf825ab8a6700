"""`.mat` files of the Helsinki Tomography Challenge 2022, as downloaded: a struct CtDataFull or CtDataLimited with sinogram and parameters.

A `.mat` may hold anything, objects and packed elements of any size included. So the file is walked first: what is packed is unpacked
within limits, and only one struct of numbers and text, without cells, objects or functions, is handed to SciPy.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bdgd.checks import InputError, require_count, require_positive
from bdgd.data.formats import htc
from bdgd.data.formats.contents import EXPANSION, SMALL, Contents, InMemory, size_in_words

_SCANS = ("CtDataFull", "CtDataLimited")
_LARGEST = 2**30  # bytes, packed or unpacked: a thousand views of a wide detector are 32 MB
_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _COMPLEX = 2, 0x0800
_PLAIN = {4, *range(6, 16)}  # text and numbers
_REFUSED = {1: "a cell array", 3: "an object", 5: "a sparse matrix", 16: "a function handle", 17: "an object"}
_DEEPEST = 4


@contextlib.contextmanager
def open_matlab(path: Path) -> Iterator[Contents]:
    import scipy.io

    if path.stat().st_size > _LARGEST:
        raise InputError(f"it has {size_in_words(path.stat().st_size)}, more than the {size_in_words(_LARGEST)} that a .mat scan may have")
    name, plain, names = _only_the_scan(path.read_bytes())
    data = scipy.io.loadmat(io.BytesIO(plain), simplify_cells=True)[name]
    parameters = data.get("parameters") if isinstance(data, dict) else None
    if not isinstance(parameters, dict) or not isinstance(data.get("sinogram"), np.ndarray):
        raise InputError(f"{name} must be a struct with sinogram and parameters, as in the challenge's files")
    sinogram = np.atleast_2d(data["sinogram"])
    yield Contents(_attributes(parameters, sinogram), {"sinogram": InMemory(sinogram[None])}, names, "variable")


def _attributes(parameters: dict[str, Any], sinogram: np.ndarray) -> dict[str, Any]:
    needed = ("distanceSourceOrigin", "distanceSourceDetector", "pixelSizePost", "numDetectorsPost", "angles", "distanceUnit")
    if missing := [name for name in needed if name not in parameters]:
        raise InputError(f"parameters needs {missing[0]!r}, as in the challenge's files")
    sod, sdd, spacing = (require_positive(parameters[name], name) for name in needed[:3])
    detectors = require_count(parameters["numDetectorsPost"], "numDetectorsPost")
    angles = np.atleast_1d(parameters["angles"])
    if angles.shape != sinogram.shape[:1]:
        raise InputError(f"parameters has {angles.size} angles for a sinogram of {sinogram.shape[0]} views; correct one of them")
    return htc.attributes((sod, sdd, spacing), detectors, angles, parameters["distanceUnit"])


def _only_the_scan(data: bytes) -> tuple[str, bytes, tuple[str, ...]]:
    """The name of the scan's struct, a `.mat` file with nothing else in it, and the names of all variables."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if data[:10] == b"MATLAB 7.3":
        raise InputError("it is a version 7.3 file; save it in MATLAB with the option '-v7'")
    if data[:6] != b"MATLAB" or order is None:
        raise InputError("it is no .mat file of version 5; save it in MATLAB with the option '-v7'")
    variables = {}
    for kind, packed in _elements(memoryview(data)[128:], order, padded=False):
        element = memoryview(_unpacked(packed) if kind == _COMPRESSED else _whole(kind, packed, order))
        ((kind, content),) = _elements(element, order)
        if kind == _MATRIX:
            variables[_variable_name(content, order)] = (element, content)
    found = [name for name in _SCANS if name in variables]
    if len(found) != 1:
        holds = ", ".join(sorted(variables))[:200] or "nothing"
        raise InputError(f"a scan of the challenge holds CtDataFull or CtDataLimited, this file holds {holds}; give the scan's own file")
    element, content = variables[found[0]]
    _require_plain(content, order, found[0])
    return found[0], data[:128] + bytes(element), tuple(variables)


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


def _whole(kind: int, content: memoryview, order: str) -> bytes:
    """An element with its tag, as it stood in the file."""
    return struct.pack(order + "II", kind, len(content)) + bytes(content) + bytes(-len(content) % 8)


def _elements(data: memoryview, order: str, *, padded: bool = True) -> Iterator[tuple[int, memoryview]]:
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
        at = at + 8 if start == at + 4 else start + size + (-size % 8 if padded or kind != _COMPRESSED else 0)


def _variable_name(matrix: memoryview, order: str) -> str:
    parts = list(_elements(matrix, order))
    return bytes(parts[2][1]).decode("latin1") if len(parts) > 2 else ""


def _require_plain(matrix: memoryview, order: str, name: str, depth: int = 0) -> None:
    """Raise unless a matrix is text, real numbers, or one struct of such: before SciPy makes room for what it declares."""
    if len(matrix) == 0:
        return
    parts = list(_elements(matrix, order))
    flags = struct.unpack_from(order + "I", parts[0][1])[0]
    sides = struct.unpack(f"{order}{len(parts[1][1]) // 4}i", parts[1][1])
    kind = flags & 0xFF
    if flags & _COMPLEX:
        raise InputError(f"{name} holds complex numbers; save its real part")
    if kind == _STRUCT and math.prod(sides) == 1 and depth < _DEEPEST:
        for _, field in parts[5:]:
            _require_plain(field, order, f"a field of {name}" if depth == 0 else name, depth + 1)
    elif kind not in _PLAIN:
        what = _REFUSED.get(kind, "a struct array or a struct nested too deep" if kind == _STRUCT else "an unknown class")
        raise InputError(f"{name} holds {what}, which no scan of the challenge has; save it as one struct of numbers and text")
    elif min(sides) < 0 or math.prod(sides) > sum(len(values) for _, values in parts[3:4]):  # a value takes a byte or more
        raise InputError(f"{name} declares {math.prod(sides)} values of which the file does not hold all; save it again")
