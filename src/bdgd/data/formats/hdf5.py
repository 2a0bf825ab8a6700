"""Scans in HDF5 files.

    /            attributes: beam ("parallel" or "fan") and the arguments of ParallelBeam or FanBeam by name;
                 optional: angles_degrees in place of angles, unit, slice_spacing, noise (JSON of `to_dict`), format_version (1)
    /sinogram    (B, V, D) floating point or whole numbers, one chunk per slice; or, as the detector counted them:
    /counts      (B, V, D) with /flat and /dark, each (D,), (F, D) for F frames or (B, F, D)
    /image       (B, H, W), optional: the truth

A file made by other means needs no more than the sinogram and the attributes. An attribute of another name is an error, since a
misspelt `detector_offset` would be a wrong image; keep notes of your own on a group or a dataset.
Links, virtual datasets and external storage are refused: they make a file read other files.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from bdgd.checks import InputError
from bdgd.data.formats.contents import ARRAYS, LARGEST_ATTRIBUTE, Contents, require_plausible, size_in_words

if TYPE_CHECKING:
    import h5py


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Contents]:
    import h5py

    with h5py.File(path, "r") as file:
        attributes = {name: _attribute(file, name) for name in file.attrs}
        names = tuple(file)
        yield Contents(attributes, {name: array for name in ARRAYS if name in names and (array := _array(file, name)) is not None}, names)


class _Dataset:
    """A dataset that is in this file, as an `Array`."""

    def __init__(self, dataset: h5py.Dataset):
        self._dataset = dataset
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype = dataset.dtype

    @property
    def stored(self) -> int:
        """HDF5 would make up missing values, of any declared size, as zeros: so a chunk less is a value less."""
        dataset, size = self._dataset, int(self._dataset.id.get_storage_size())
        if dataset.chunks is None:
            return size if size >= math.prod(self.shape) * self.dtype.itemsize else -1
        if dataset.id.get_num_chunks() != math.prod(-(-n // chunk) for n, chunk in zip(self.shape, dataset.chunks, strict=True)):
            return -1
        require_plausible("a chunk", math.prod(dataset.chunks) * self.dtype.itemsize, size)  # it is unpacked as a whole
        return size

    def __getitem__(self, index: int | EllipsisType) -> np.ndarray:
        return np.asarray(self._dataset[index])


def _array(file: h5py.File, name: str) -> _Dataset | None:
    """The dataset of that name, or None where it is a group."""
    import h5py

    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise InputError(f"{name} is a link to elsewhere, which is not followed; copy the values into the file")
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        return None
    if found.is_virtual or found.external:
        raise InputError(f"{name} keeps its values in another file, which is not opened; copy the values into this one")
    if found.shape is None:
        raise InputError(f"{name} is empty; write it as (slices, views, detectors)")
    return _Dataset(found)


def _attribute(file: h5py.File, name: str) -> Any:
    """An attribute as plain numbers, text and lists, once its declared size is one that an attribute has."""
    declared = file.attrs.get_id(name)
    size = math.prod(declared.shape or ()) * declared.dtype.itemsize
    if size > LARGEST_ATTRIBUTE:
        raise InputError(f"the attribute {name[:40]!r} declares {size_in_words(size)}; an attribute has at most 8 MB")
    value = file.attrs[name]
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value
