"""npz files that are broken or hostile: pickles, bombs, headers that lie, names outside the archive."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from malformed.cases import GEOMETRY, Case, Y, truncated


class Runs:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["BDGD_TEST_MARK"],)


def npz(**changes: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        values = {"sinogram": Y, **GEOMETRY.to_dict(), **changes}
        np.savez(path, allow_pickle=True, **{name: value for name, value in values.items() if value is not None})

    return write


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npz_with(
    name: str, content: Callable[[], bytes], change: Callable[[zipfile.ZipInfo], Any] = lambda info: None
) -> Callable[[Path], None]:
    """An npz whose entry `name` is written by hand."""

    def write(path: Path) -> None:
        npz(**{name: None})(path)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name + ".npy", content())
            change(archive.infolist()[-1])

    return write


def flipped_byte(path: Path) -> None:
    np.savez(path, sinogram=Y, **GEOMETRY.to_dict())
    whole = path.read_bytes()
    path.write_bytes(whole.replace(Y.tobytes(), Y.tobytes()[:-4] + b"\1\2\3\4"))


NPZ = [
    Case("empty.npz", Path.touch, "not a readable npz"),
    Case("magic.npz", lambda path: path.write_bytes(b"not a zip" * 30), "not a readable npz"),
    Case("cut.npz", truncated(npz(), 0.6), "not a readable npz"),
    Case("damaged.npz", flipped_byte, "CRC"),
    Case("key.npz", npz(sinogram=None, sinogramm=Y), "unknown key 'sinogramm'"),
    Case("keyless.npz", npz(sinogram=None), "needs the key 'sinogram'"),
    Case("beamless.npz", npz(beam=None), "beam = 'parallel' or 'fan'"),
    Case("text.npz", npz(sinogram=np.full((2, 3, 11), "high")), "must hold real numbers"),
    Case("word.npz", npz(pixel_size="wide"), "pixel_size must be a number"),
    Case("nan.npz", npz(sinogram=np.full((2, 3, 11), np.nan)), "must be finite"),
    Case("transposed.npz", npz(sinogram=Y[0].T), r"got \(1, 11, 3\); put its axes into this order"),
    Case("views_first.npz", npz(sinogram=Y.transpose(1, 0, 2)), r"got \(3, 2, 11\); put its axes into this order"),
    Case("channel.npz", npz(sinogram=Y[:, None]), r"got \(2, 1, 3, 11\); leave out the axis of length 1"),
    Case("short.npz", npz(sinogram=Y[..., :10]), r"got \(2, 3, 10\); correct one of them"),
    Case("array.npy", lambda path: np.save(path, Y), r"a suffix that no scan file has; .* np.savez\('scan.npz', sinogram=array"),
    Case("zero.npz", npz(sinogram=np.zeros((0, 3, 11))), "holds no slice"),
    Case("complex.npz", npz(sinogram=Y.astype(complex)), "must hold real numbers, got complex128"),
    Case("objects.npz", npz(sinogram=np.array([[[Runs()]]], dtype=object)), r"got \(1, 1, 1\)|holds Python objects"),
    Case("pickle.npz", npz(sinogram=np.full((2, 3, 11), Runs(), dtype=object)), "holds Python objects"),
    Case("pickled.npz", npz(angles=np.array([Runs()], dtype=object)), "numbers or text, got object"),
    Case("structured.npz", npz(sinogram=np.zeros((2, 3, 11), dtype=[("a", "f4")])), "must hold real numbers"),
    Case("claims.npz", npz_with("sinogram", lambda: header((10**9, 3, 11)) + bytes(100)), "does not hold all"),
    Case("bomb.npz", npz_with("sinogram", lambda: header((10**6, 3, 11)) + bytes(132 * 10**6)), "more than the 250-fold"),
    Case("attribute.npz", npz_with("angles", lambda: header((10**8,), "<f8") + bytes(10)), "an attribute has at most 8 MB"),
    Case("header.npz", npz_with("sinogram", lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 10**7), "not a readable npz"),
    Case("bracket.npz", npz_with("sinogram", lambda: b"\x93NUMPY\x01\x00\x10\x00{'descr': ('<f4'\n"), "not a readable npz"),
    Case("negative.npz", npz_with("sinogram", lambda: header((-2, 3, 11))), "declares the shape|not a readable"),
    Case("code.npz", npz_with("sinogram", lambda: b"\x93NUMPY\x01\x00\x20\x00__import__('os').mkdir('mark')  \n"), "not a readable npz"),
    Case("member.npz", lambda path: zipfile.ZipFile(path, "w").writestr("../../evil.sh", "rm"), "is no array"),
    Case("json.npz", npz(**dict.fromkeys(GEOMETRY.to_dict()), geometry="{'beam'"), "must be a JSON object"),
    Case("deep.npz", npz(**dict.fromkeys(GEOMETRY.to_dict()), geometry="[" * 10**5), "JSON|recursion"),
    Case("given_twice.npz", npz(geometry=GEOMETRY.to_json()), "given twice"),
    Case("geo.npz", npz(geo=json.dumps({"type": "fan-flat"})), "geo needs 'angles_deg'"),
]
