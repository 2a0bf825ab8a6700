"""HDF5 files that are broken or hostile: claims, links, other files, bombs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from malformed.cases import GEOMETRY, Case, Y


def hdf5(change: Callable[[h5py.File], Any], **values: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.attrs.update(GEOMETRY.to_dict() | values)
            file["sinogram"] = Y
            change(file)

    return write


def without(name: str, then: Callable[[h5py.File], Any]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        then(file)

    return change


def packed_zeros(file: h5py.File) -> None:
    """A chunk that declares three million zeros and holds a kilobyte."""
    dataset = file.create_dataset("sinogram", (1, 3, 10**6), "f4", chunks=(1, 3, 10**6), compression="gzip")
    dataset.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(10**6), 9))


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((2, 3, 11), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "sinogram", (2, 3, 11))
    file.create_virtual_dataset("sinogram", layout)


def external(file: h5py.File) -> None:
    file.create_dataset("sinogram", (2, 3, 11), "f4", external=[("/etc/hostname", 0, 264)])


HDF5 = [
    Case("none.h5", lambda path: None, "there is no file"),
    Case("folder.h5", Path.mkdir, "is a folder"),
    Case("empty.h5", Path.touch, "not a readable HDF5"),
    Case("magic.h5", lambda path: path.write_bytes(b"GIF89a" * 50), "not a readable HDF5"),
    Case("suffix.xyz", lambda path: path.write_bytes(b"x" * 100), "known are .h5, .hdf5"),
    Case("pipe.h5", os.mkfifo, "no regular file"),
    Case("both.h5", hdf5(lambda f: f.create_dataset("counts", data=Y)), "both sinogram and counts"),
    Case("flatless.h5", hdf5(lambda f: f.move("sinogram", "counts")), "counts need 'flat'"),
    Case("claims.h5", hdf5(without("sinogram", lambda f: f.create_dataset("sinogram", (10**9, 3, 11), "f4"))), "does not hold all"),
    Case("packed.h5", hdf5(without("sinogram", packed_zeros), detectors=10**6), "more than the 250-fold"),
    Case("link.h5", hdf5(without("sinogram", lambda f: f.__setitem__("sinogram", h5py.ExternalLink("/etc/hostname", "/x")))), "is a link"),
    Case("soft.h5", hdf5(without("sinogram", lambda f: f.__setitem__("sinogram", h5py.SoftLink("/x")))), "is a link"),
    Case("virtual.h5", hdf5(without("sinogram", virtual)), "in another file"),
    Case("external.h5", hdf5(without("sinogram", external)), "in another file"),
    Case("angles.h5", hdf5(lambda f: f.attrs.__setitem__("angles", [0.1, np.nan, 2.0])), "1 of the 3 are NaN"),
    Case("pixels.h5", hdf5(lambda f: f.attrs.__setitem__("image_size", 10**9)), "pixels; check that it is given in pixels"),
    Case("detectors.h5", hdf5(lambda f: f.attrs.__setitem__("detectors", 10**12)), "more than the 1000000 that are read"),
    Case("unit.h5", hdf5(lambda f: f.attrs.__setitem__("unit", "furlong")), "unit must be one of"),
    Case("spacing.h5", hdf5(lambda f: f.attrs.__setitem__("slice_spacing", -1.0)), "slice_spacing must be above 0"),
    Case("twice.h5", hdf5(lambda f: f.attrs.__setitem__("angles_degrees", [1.0, 2.0, 3.0])), "exclude each other"),
]
