"""NIfTI-1, the volume format of medical viewers, as far as bdgd writes it: one float32 volume behind a header of 348 bytes.

The fields and their order are those of nifti1.h. The first index is x, the second y, the third the slice, the first running
fastest. The affine puts the axis of rotation at x = y = 0 and slice k at z = k times the slice spacing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.units import millimetres

_LAYOUT = "<i10s18sihcB 8h 3f 4h 8f 3fhBB 4f 2i 80s24s 2h 6f 12f 16s4s"
_FLOAT32, _SCANNER_COORDINATES, _DATA_START, _MOST = 16, 1, 352.0, 32767
_NO_UNIT, _MILLIMETRES = 0, 2


def nifti_header(shape: tuple[int, int, int], spacing: tuple[float, float, float], unit: str | None, description: str = "") -> bytes:
    """The 348 bytes before a float32 volume of shape (H, W, slices) with the spacing of its pixels and slices in `unit`.

    Lengths are written in mm, where their unit is known.
    """
    if max(shape) > _MOST:
        raise InputError(f"NIfTI holds at most {_MOST} pixels or slices along a side, got {shape}; leave out --nifti")
    code, factor = (_MILLIMETRES, millimetres(unit)) if unit else (_NO_UNIT, 1.0)
    dx, dy, dz = (factor * size for size in spacing)
    x0, y0 = -(shape[0] - 1) / 2 * dx, -(shape[1] - 1) / 2 * dy
    values: list[float | bytes] = [348, b"", b"", 0, 0, b"r", 0]
    values += [3, *shape, 1, 1, 1, 1]  # dim
    values += [0.0, 0.0, 0.0, 0, _FLOAT32, 32, 0]  # intent, datatype, bits per value, first slice
    values += [1.0, dx, dy, dz, 0.0, 0.0, 0.0, 0.0]  # pixdim
    values += [_DATA_START, 1.0, 0.0, 0, 0, code]  # start of the data, slope, intercept, slice timing, unit
    values += [0.0] * 4 + [0, 0] + [description.encode("ascii", "replace")[:79], b""]  # display range, timing, description
    values += [_SCANNER_COORDINATES, _SCANNER_COORDINATES, 0.0, 0.0, 0.0, x0, y0, 0.0]  # a quaternion without rotation
    values += [dx, 0.0, 0.0, x0, 0.0, dy, 0.0, y0, 0.0, 0.0, dz, 0.0]  # the affine, row by row
    return struct.pack(_LAYOUT, *values, b"", b"n+1\0")


@contextmanager
def nifti_stack(
    path: Path, shape: tuple[int, int, int], spacing: tuple[float, float, float], unit: str | None, description: str = ""
) -> Iterator[Callable[[Tensor], None]]:
    """A new NIfTI file; call what is yielded with every slice (H, W) in turn."""
    with path.open("xb") as file:
        file.write(nifti_header(shape, spacing, unit, description) + bytes(4))  # four zeros: no extension follows

        def add(image: Tensor) -> None:
            file.write(image.detach().cpu().numpy().T.astype("<f4").tobytes())  # x fastest

        yield add
