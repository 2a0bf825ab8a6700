"""One file per format of a scan; each opens its files as `Contents`, and nothing else knows about the format."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from bdgd.checks import InputError
from bdgd.data.formats.contents import Contents
from bdgd.data.formats.hdf5 import open_hdf5
from bdgd.data.formats.matlab import open_matlab
from bdgd.data.formats.npz import open_npz
from bdgd.data.formats.tiff import open_tiff


class Format(NamedTuple):
    name: str
    open: Callable[[Path], AbstractContextManager[Contents]]


_HDF5, _TIFF = Format("HDF5", open_hdf5), Format("TIFF", open_tiff)
FORMATS = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".nxs"), _HDF5),
    **dict.fromkeys((".tif", ".tiff"), _TIFF),
    ".npz": Format("npz", open_npz),
    ".mat": Format("MATLAB", open_matlab),
}
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def require_hdf5_name(path: Path) -> None:
    """Raise where a file that is written as HDF5 would be read as another format for its suffix."""
    if FORMATS.get(path.suffix.lower(), _HDF5) is not _HDF5:
        raise InputError(f"scans are written as HDF5, and {path} would be read as another format; let its name end in .h5")


def format_of(path: Path) -> Format:
    """The format of a scan file by its suffix; without a known one, HDF5 where the file begins like it."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the file of a scan inside it ({', '.join(FORMATS)})")
    if not path.exists():
        raise InputError(f"there is no file {path}; check the path")
    if not path.is_file():
        raise InputError(f"{path} is no regular file; give the file of a scan ({', '.join(FORMATS)})")
    if path.suffix.lower() in FORMATS:
        return FORMATS[path.suffix.lower()]
    try:
        with path.open("rb") as file:
            if file.read(len(_SIGNATURE)) == _SIGNATURE:
                return _HDF5
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    raise InputError(
        f"{path} has a suffix that no scan file has; known are {', '.join(FORMATS)}: an array alone has no geometry,"
        " write both with np.savez('scan.npz', sinogram=array, beam='parallel', image_size=..., angles_degrees=..., detectors=...)"
    )
