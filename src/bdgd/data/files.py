"""Scan files in and out: `read_scans` and `open_stack` for every format in `formats`, `write_scans` for HDF5.

What a file must hold stands in the module of its format, and with examples in docs/scans.md.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.formats import format_of, require_hdf5_name
from bdgd.data.formats.attributes import VERSION
from bdgd.data.formats.contents import named_errors
from bdgd.data.noise import Noise, noise_from_dict
from bdgd.data.scans import Scans
from bdgd.data.stack import Slices, Stack
from bdgd.storage import PatientFile, replacing


def write_scans(path: str | Path, scans: Scans, *, provenance: Mapping[str, Any] | None = None) -> None:
    """Write scans to an HDF5 file, replacing one that is there; a failure leaves what was there, and nothing else.

    Every slice is a chunk with a checksum: slices are read one by one, and a damaged file is an error, not a wrong image.
    provenance: where the scans come from, kept with the sinogram as JSON; readers leave it alone.
    """
    import h5py

    path = Path(path)
    if not isinstance(scans, Scans):
        raise InputError(f"write_scans needs Scans, got {type(scans).__name__}; make them with bdgd.simulate or Scans(sinograms, geometry)")
    require_hdf5_name(path)
    attributes = _attributes(scans)
    # Format 1.8, which every HDF5 since 2008 reads: before it an attribute ended at 64 KB, so at 8191 angles.
    with replacing(path) as temporary, PatientFile(temporary, "x+") as raw:
        with h5py.File(raw, "w", libver=("v108", "v108")) as file:
            file.attrs.update(attributes)
            for name, tensor in (("sinogram", scans.sinograms), ("image", scans.images)):
                if tensor is not None:
                    values = _as_numpy(tensor[:, 0])
                    file.create_dataset(name, data=values, chunks=(1, *values.shape[1:]), fletcher32=True)
            if provenance is not None:
                file["sinogram"].attrs["provenance"] = json.dumps(dict(provenance))
        raw.check()


def read_scans(path: str | Path, slices: Slices = None, dtype: torch.dtype = torch.float32, *, axis: float | str | None = None) -> Scans:
    """The scans in a file, or only some of its slices: `read_scans(path, 3)`, `read_scans(path, slice(0, 10))`.

    By its suffix the file is HDF5, `.npz`, `.mat` of the Helsinki Tomography Challenge 2022, or a TIFF stack with its geometry
    in a `.toml` beside it. Raw counts become line integrals. Only the chosen slices are read, and what the file declares is checked
    before any memory is taken for it. axis: the detector that sees the axis of rotation, or "estimate", in place of the
    geometry's `detector_offset`. What was repaired or replaced stands in the scans' `notes`.
    """
    with open_stack(path, dtype, axis=axis) as stack:
        return stack.read(slices)


@contextlib.contextmanager
def open_stack(path: str | Path, dtype: torch.dtype = torch.float32, *, axis: float | str | None = None) -> Iterator[Stack]:
    """A scan file of any format, to be read slice by slice: `with open_stack(path) as stack: for scan in stack: ...`.

    An estimated axis comes from a few slices and holds for all.
    """
    path = Path(path)
    format = format_of(path)
    with contextlib.ExitStack() as resources:
        with named_errors(path, format.name):
            contents = resources.enter_context(format.open(path))
            stack = Stack(path, format.name, contents, dtype, axis)
        yield stack


def _attributes(scans: Scans) -> dict[str, Any]:
    """The root attributes of a file that holds these scans."""
    if scans.geometry is None:
        raise InputError("a scan file holds its geometry, but these scans have none; pass Scans(sinograms, geometry)")
    if scans.rotation:
        raise InputError("these scans are turned against their object (`rotation`), which a scan file does not say; write them unmatched")
    if scans.correction is not None:
        raise InputError("corrected scans cannot be written, since a scan file does not say so; write them as they were measured")
    attributes = {"format_version": VERSION, **scans.geometry.to_dict()}
    attributes |= {name: value for name in ("unit", "slice_spacing") if (value := getattr(scans, name)) is not None}
    if scans.noise is not None:
        attributes["noise"] = _readable_noise(scans.noise)
    return attributes


def _readable_noise(noise: Noise) -> str:
    """As JSON, once `read_scans` is known to read it back."""
    try:
        return json.dumps(noise_from_dict(noise.to_dict()).to_dict())
    except InputError as error:
        raise InputError(f"a scan file cannot say what noise this is ({error}); write dataclasses.replace(scans, noise=None)") from None


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """float64 stays, all else is written as float32."""
    values: np.ndarray = tensor.detach().to("cpu", torch.float64 if tensor.dtype == torch.float64 else torch.float32).numpy()
    return values
