"""MATLAB files that are broken or hostile: cells, objects, function handles, sizes that lie."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io

from malformed.cases import Case, Y, truncated

PARAMETERS = {
    **{"distanceSourceOrigin": 410.66, "distanceSourceDetector": 553.74, "distanceUnit": "mm"},
    **{"pixelSizePost": 0.2, "numDetectorsPost": np.uint16(11), "angles": np.array([0.0, 0.5, 1.0])},
}


def mat(compress: bool = True, parameters: Any = None, **changes: Any) -> Callable[[Path], None]:
    data = {"type": "2d", "sinogram": Y[0].astype(float), "parameters": PARAMETERS | (parameters or {})} | changes
    return lambda path: scipy.io.savemat(path, {"CtDataFull": data}, do_compression=compress)


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(name: str, of_class: int, sides: tuple[int, int], *contents: bytes) -> bytes:
    head = element(6, struct.pack("<II", of_class, 0)) + element(5, struct.pack("<ii", *sides)) + element(1, name.encode())
    return element(14, head + b"".join(contents))


def struct_of(name: str, **fields: bytes) -> bytes:
    names = b"".join(field.encode().ljust(32, b"\0") for field in fields)
    return matrix(name, 2, (1, 1), struct.pack("<HHi", 5, 4, 32), element(1, names), *fields.values())


def packed(*variables: bytes) -> Callable[[Path], None]:
    """A file of these variables, each packed."""

    def write(path: Path) -> None:
        mat()(path)
        small = (zlib.compress(variable, 9) for variable in variables)
        path.write_bytes(path.read_bytes()[:128] + b"".join(struct.pack("<II", 15, len(data)) + data for data in small))

    return write


def bytes_as_doubles(count: int) -> bytes:
    """Doubles stored as bytes that pack to a 230th: within what a packed byte may become, but each becomes eight."""
    values = np.zeros(count, np.uint8)
    values[np.random.default_rng(0).integers(0, count, count // 450)] = 1
    return matrix("", 6, (2, count // 2), element(2, values.tobytes()))


def mat_expands(path: Path) -> None:
    packed(struct_of("CtDataFull", sinogram=bytes_as_doubles(4 * 10**6), parameters=struct_of("")))(path)


def mat_bomb(path: Path) -> None:
    """A packed variable of 200 MB in 200 kB, under the name of the scan."""
    packed(matrix("CtDataFull", 6, (1, 2 * 10**8), element(2, bytes(2 * 10**8))))(path)


def mat_others(path: Path) -> None:
    """A scan of nothing beside twenty variables of 200 MB each, which nobody asked for."""
    other = zlib.compress(matrix("x", 6, (1, 2 * 10**8), element(2, bytes(2 * 10**8))), 9)
    packed(struct_of("CtDataFull", sinogram=matrix("", 6, (0, 0))))(path)
    path.write_bytes(path.read_bytes() + 20 * (struct.pack("<II", 15, len(other)) + other))


def mat_hdf5(path: Path) -> None:
    """As MATLAB's -v7.3 writes it: HDF5 behind 512 bytes with its own header, and an object behind a reference."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["#refs#/a"] = 1.0
        file.create_dataset("CtDataFull", (1,), h5py.ref_dtype)[0] = file["#refs#/a"].ref
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + struct.pack("<HH", 0x0200, 0x4D49))


def mat_claims(old: bytes, new: bytes) -> Callable[[Path], None]:
    """An unpacked file in which one field declares other sides than it holds."""

    def write(path: Path) -> None:
        mat(compress=False)(path)
        data = path.read_bytes()
        assert data.count(old) >= 1
        path.write_bytes(data.replace(old, new))

    return write


def mat_class(number: int) -> Callable[[Path], None]:
    """The struct's `type` field relabelled as another class: 16 is a function handle, 3 and 17 are objects."""
    flags = struct.pack("<IIII", 6, 8, 4, 0)
    return mat_claims(flags, struct.pack("<IIII", 6, 8, number, 0))


SIDES = struct.pack("<IIii", 5, 8, 3, 11)
MAT = [
    Case("empty.mat", Path.touch, "no .mat file of version 5"),
    Case("magic.mat", lambda path: path.write_bytes(b"no matlab" * 50), "no .mat file of version 5"),
    Case("new.mat", lambda path: path.write_bytes(b"MATLAB 7.3 MAT-file" + b" " * 200), "save it in MATLAB with the option '-v7'"),
    Case("cut.mat", truncated(mat(), 0.7), "not a readable MATLAB"),
    Case("cut_unpacked.mat", truncated(mat(compress=False), 0.7), "not a readable MATLAB"),
    Case("other.mat", lambda path: scipy.io.savemat(path, {"reconFullFbpSeg": np.eye(4)}), "holds reconFullFbpSeg"),
    Case("numbers.mat", lambda path: scipy.io.savemat(path, {"CtDataFull": np.eye(4)}), "a struct with sinogram"),
    Case("hdf5.mat", mat_hdf5, "a version 7.3 file; save it in MATLAB with the option '-v7'"),
    Case("nested.mat", mat(sinogram={"a": {"b": np.eye(3)}}), "CtDataFull must be a struct with sinogram"),
    Case("nested_angles.mat", mat(parameters={"angles": {"deep": {"deeper": 1.0}}}), "angles"),
    Case(
        "cells.mat", lambda path: scipy.io.savemat(path, {"CtDataFull": np.array([[np.eye(2), {"q": 1.0}]], dtype=object)}), "a cell array"
    ),
    Case("cell.mat", mat(parameters={"angles": np.array([1, "a", "b"], dtype=object)}), "a cell array"),
    Case("structs.mat", mat(parameters=None, type=np.zeros((2, 2), dtype=[("a", "O")])), "a struct array"),
    Case("deep.mat", mat(type={"a": {"b": {"c": {"d": {"e": 1.0}}}}}), "nested too deep"),
    Case("function.mat", mat_class(16), "a function handle"),
    Case("object.mat", mat_class(3), "an object"),
    Case("opaque.mat", mat_class(17), "an object"),
    Case("complex.mat", mat(sinogram=Y[0].astype(complex) * 1j), "complex numbers"),
    Case("claims.mat", mat_claims(SIDES, struct.pack("<IIii", 5, 8, 10**9, 3)), "declares 3000000000 values"),
    Case("bomb.mat", mat_bomb, "a variable unpacks to more than"),
    Case("expands.mat", mat_expands, "CtDataFull unpacks to more than 5.* MB"),
    Case("others.mat", mat_others, "CtDataFull must be a struct with sinogram"),
    Case("text.mat", mat(sinogram="high"), "a struct with sinogram"),
    Case("words.mat", mat(parameters={"pixelSizePost": "wide"}), "pixelSizePost must be a number"),
    Case("views.mat", mat(parameters={"angles": np.arange(4.0)}), "4 angles for a sinogram of 3 views"),
    Case("nan.mat", mat(parameters={"angles": np.array([0.0, np.nan, 1.0])}), "angles must be finite"),
    Case("detectors.mat", mat(parameters={"numDetectorsPost": np.uint16(12)}), r"got \(1, 3, 11\)"),
]
