"""Scans in HDF5 files, with the geometry in the file.

    /            attributes: beam ("parallel" or "fan") and the arguments of ParallelBeam or FanBeam by name;
                 optional: noise (JSON of `to_dict`), format_version (1)
    /sinogram    (B, V, D) floating point or whole numbers, one chunk per slice
    /image       (B, H, W), optional: the truth

A file made by other means needs no more than the sinogram and the attributes. An attribute of another name is an error, since a
misspelt `detector_offset` would be a wrong image; keep notes of your own on a group or a dataset.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.noise import Noise, noise_from_dict
from bdgd.data.scans import Scans
from bdgd.operators.geometry import Geometry, geometry_from_dict
from bdgd.storage import replacing

if TYPE_CHECKING:
    import h5py

_VERSION = 1
_OWN = ("format_version", "noise")  # root attributes that are not the geometry's


def write_scans(path: str | Path, scans: Scans) -> None:
    """Write scans to an HDF5 file, replacing one that is there; a failure leaves what was there, and nothing else.

    Every slice is a chunk with a checksum: slices are read one by one, and a damaged file is an error, not a wrong image.
    """
    import h5py

    path = Path(path)
    if not isinstance(scans, Scans):
        raise InputError(f"write_scans needs Scans, got {type(scans).__name__}; make them with bdgd.simulate or Scans(sinograms, geometry)")
    if scans.geometry is None:
        raise InputError("a scan file holds its geometry, but these scans have none; pass Scans(sinograms, geometry)")
    attributes = {"format_version": _VERSION, **scans.geometry.to_dict()}
    if scans.noise is not None:
        attributes["noise"] = json.dumps(noise_from_dict(scans.noise.to_dict()).to_dict())  # fails now if it could not be read back
    # Format 1.8, which every HDF5 since 2008 reads: before it an attribute ended at 64 KB, so at 8191 angles.
    with replacing(path) as temporary, h5py.File(temporary, "x", libver=("v108", "v108")) as file:
        file.attrs.update(attributes)
        for name, tensor in (("sinogram", scans.sinograms), ("image", scans.images)):
            if tensor is not None:
                values = _as_numpy(tensor[:, 0])
                file.create_dataset(name, data=values, chunks=(1, *values.shape[1:]), fletcher32=True)


def read_scans(path: str | Path, slices: int | slice | Sequence[int] | None = None, dtype: torch.dtype = torch.float32) -> Scans:
    """The scans in an HDF5 file, or only some of its slices: `read_scans(path, 3)`, `read_scans(path, slice(0, 10))`.

    Only the chosen slices are read, and what the file declares is checked before any memory is taken for it.
    """
    import h5py

    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the HDF5 file of a scan inside it")
    if not path.exists():
        raise InputError(f"there is no file {path}; check the path")
    try:
        with h5py.File(path, "r") as file:
            return _read(file, slices, dtype)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except MemoryError:
        raise InputError(f"{path} is too large for this machine's memory; read part of it with read_scans(path, slice(0, 10))") from None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # what h5py raises for damaged files
        raise InputError(f"{path} is not a readable HDF5 file ({_reason(error)}); check that it was copied completely") from None


def _read(file: h5py.File, slices: int | slice | Sequence[int] | None, dtype: torch.dtype) -> Scans:
    geometry, noise = _read_attributes({name: _plain(value) for name, value in file.attrs.items()})
    sinogram = _dataset(file, "sinogram", (None, geometry.views, geometry.detectors), "(slices, views, detectors)")
    image = _dataset(file, "image", (sinogram.shape[0], *geometry.image_size), "(slices, *image_size)") if "image" in file else None
    chosen = _chosen(slices, sinogram.shape[0])
    images = None if image is None else _load(image, chosen, dtype)
    return Scans(_load(sinogram, chosen, dtype), geometry, images, noise)


def _read_attributes(attributes: dict[str, Any]) -> tuple[Geometry, Noise | None]:
    version = attributes.get("format_version", _VERSION)
    if version != _VERSION:
        raise InputError(f"format_version is {version!r}, but this bdgd reads {_VERSION}; update bdgd")
    geometry = geometry_from_dict({name: value for name, value in attributes.items() if name not in _OWN})
    if "noise" not in attributes:
        return geometry, None
    try:
        values = json.loads(attributes["noise"])
    except (TypeError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"noise must be a JSON object such as {{'kind': 'gaussian', 'relative': 0.01}}, got {attributes['noise']!r}")
    return geometry, noise_from_dict(values)


def _dataset(file: h5py.File, name: str, shape: tuple[int | None, ...], meaning: str) -> h5py.Dataset:
    """The dataset, once its rank, shape, type and storage are what the geometry says."""
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        holds = ", ".join(sorted(file)) or "nothing"
        raise InputError(f"a scan needs the dataset {name!r}, but the file holds {holds}; write it as {meaning}")
    if found.ndim != len(shape) or any(n is not None and n != got for n, got in zip(shape, found.shape, strict=True)):
        expected = "(" + ", ".join("B" if n is None else str(n) for n in shape) + ")"
        raise InputError(f"{name} must be {meaning} = {expected} by the geometry in the file, got {found.shape}; correct one of them")
    if found.shape[0] == 0:
        raise InputError(f"{name} is empty: shape {found.shape} holds no slice")
    if found.dtype.kind not in "fiu":
        raise InputError(f"{name} must hold real numbers, got {found.dtype}; write it as float32")
    if not found.is_virtual and not found.external and not _is_stored(found):
        raise InputError(f"{name} declares {found.size} values of which the file does not hold all; write it again")
    return found


def _is_stored(dataset: h5py.Dataset) -> bool:
    """Whether the declared values are in the file: HDF5 would make up missing ones, of any declared size, as zeros."""
    if dataset.chunks is None:
        return bool(dataset.id.get_storage_size() >= dataset.size * dataset.dtype.itemsize)
    expected = math.prod(-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    return bool(dataset.id.get_num_chunks() == expected)


def _chosen(slices: int | slice | Sequence[int] | None, count: int) -> range | list[int]:
    """The numbers of the slices to read."""
    try:
        if slices is None:
            return range(count)
        if isinstance(slices, slice):
            chosen: range | list[int] = range(count)[slices]
        else:
            chosen = [range(count)[i] for i in ([slices] if isinstance(slices, int) else slices)]
    except (IndexError, TypeError):
        raise InputError(f"slices must be numbers from 0 to {count - 1}, got {slices!r}") from None
    if len(chosen) == 0:
        raise InputError(f"slices {slices!r} choose none of the {count} slices in the file; choose at least one")
    return chosen


def _load(dataset: h5py.Dataset, chosen: range | list[int], dtype: torch.dtype) -> Tensor:
    """(B, 1, ...) the chosen slices, one by one."""
    values = torch.empty((len(chosen), 1, *dataset.shape[1:]), dtype=dtype)
    for to, index in enumerate(chosen):
        values[to, 0] = torch.from_numpy(dataset[index].astype(np.float64))
    return values


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """float64 stays, all else is written as float32."""
    values: np.ndarray = tensor.detach().to("cpu", torch.float64 if tensor.dtype == torch.float64 else torch.float32).numpy()
    return values


def _plain(value: Any) -> Any:
    """An HDF5 attribute as plain numbers, text and lists."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _reason(error: Exception) -> str:
    """HDF5's message on one line, without the address book of its file driver."""
    return " ".join(str(error).split("\n")[0].split()).removesuffix(".")
