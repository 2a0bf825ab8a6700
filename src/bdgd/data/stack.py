"""A scan file as a stack of slices: everything is known when it is open, and slices are read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.axis import axis_of_offset, estimate_axis, offset_of_axis
from bdgd.data.counts import Repairs, line_integrals, without_gaps
from bdgd.data.doubts import doubts_about
from bdgd.data.formats.attributes import read_header
from bdgd.data.formats.contents import Array, Contents, named_errors, require_readable_at_once, require_values
from bdgd.data.noise import Noise
from bdgd.data.scans import Scans
from bdgd.operators.geometry import Geometry

Slices = int | np.integer | slice | Sequence[int] | np.ndarray | None
_FOR_THE_AXIS = 3  # slices from which the axis of a stack is estimated


class Stack:
    """The slices of an open scan file, one geometry for all: `len(stack)`, `stack[3]`, `for scan in stack`, each a Scans of one slice.

    geometry, unit and slice_spacing are those of every slice. Made by `open_stack`.
    """

    def __init__(self, path: Path, kind: str, contents: Contents, dtype: torch.dtype, axis: float | str | None):
        self._path, self._kind, self._dtype = path, kind, dtype
        header = read_header(contents.attributes)
        self._values, self._image, self._fields = _arrays(contents, header.geometry)
        self._header, self._notes = header, (*contents.notes, *header.notes)
        if axis is not None:
            self._place_axis(axis)

    def __len__(self) -> int:
        """B, the number of slices."""
        return self._values.shape[0]

    @property
    def geometry(self) -> Geometry:
        return self._header.geometry

    @property
    def unit(self) -> str | None:
        return self._header.unit

    @property
    def slice_spacing(self) -> float | None:
        return self._header.slice_spacing

    @property
    def noise(self) -> Noise | None:
        return self._header.noise

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to every slice; a Scans says besides what was done to its own."""
        return self._notes

    def __getitem__(self, slices: Slices) -> Scans:
        return self.read(slices)

    def __iter__(self) -> Iterator[Scans]:
        return (self.read(index) for index in range(len(self)))

    def read(self, slices: Slices = None) -> Scans:
        """Some of the slices, or all, as one Scans."""
        with named_errors(self._path, self._kind), np.errstate(invalid="ignore"):  # what is not finite is named, not warned about
            chosen = _chosen(slices, len(self))
            images = None if self._image is None else self._tensor(self._image, chosen)
            sinograms, repairs = self._sinograms(chosen)
            header = self._header
            doubts = () if self._fields else doubts_about(sinograms, self._values.dtype)
            notes = (*self._notes, *repairs.notes(), *doubts)
            return Scans(sinograms, header.geometry, images, header.noise, header.unit, header.slice_spacing, notes=notes)

    def _sinograms(self, chosen: Sequence[int]) -> tuple[Tensor, Repairs]:
        """(B, 1, V, D) line integrals of the chosen slices, and what had to be repaired in them."""
        values, repairs = self._room(self._values, chosen), Repairs()
        for to, index in enumerate(chosen):
            y, repaired = self._line_integrals(index)
            values[to, 0], repairs = torch.from_numpy(y), repairs + repaired
        return values, repairs

    def _line_integrals(self, index: int) -> tuple[np.ndarray, Repairs]:
        """(V, D) of one slice, from its counts or as the file has them."""
        if not self._fields:
            return without_gaps(self._values[index].astype(np.float64))
        dark, detectors = self._fields.get("dark"), self.geometry.detectors
        beam = _mean_field(self._fields["flat"], index, detectors)
        return line_integrals(self._values[index], beam, 0.0 if dark is None else _mean_field(dark, index, detectors))

    def _tensor(self, array: Array, chosen: Sequence[int]) -> Tensor:
        values = self._room(array, chosen)
        for to, index in enumerate(chosen):
            values[to, 0] = torch.from_numpy(array[index].astype(np.float64))
        return values

    def _room(self, array: Array, chosen: Sequence[int]) -> Tensor:
        shape = (len(chosen), 1, *array.shape[1:])
        require_readable_at_once(int(np.prod(shape, dtype=object)) * self._dtype.itemsize)
        return torch.empty(shape, dtype=self._dtype)

    def _place_axis(self, axis: float | str) -> None:
        """Replace the geometry's detector_offset by that of an axis which is given, or estimated from slices of the whole stack."""
        if isinstance(axis, str):
            if axis != "estimate":
                raise InputError(f"axis must be the number of a detector or 'estimate', got {axis!r}")
            some = np.unique(np.linspace(0, len(self) - 1, _FOR_THE_AXIS + 2).round()[1:-1].astype(int)).tolist()
            offset = estimate_axis(self._sinograms(some)[0], self.geometry)
        else:
            offset = offset_of_axis(axis, self.geometry)
        placed = replace(self.geometry, detector_offset=offset)
        how = "estimated" if isinstance(axis, str) else "given"
        was, now = (f"{each:.6g}" for each in (self.geometry.detector_offset, offset))
        instead = "where the geometry has it" if was == now else f"detector_offset is {now} instead of {was}"
        note = f"the axis is {how} to be at detector {axis_of_offset(placed):.2f}: {instead}"
        self._header = replace(self._header, geometry=placed)
        self._notes = (*self._notes, note)


def _arrays(contents: Contents, geometry: Geometry) -> tuple[Array, Array | None, dict[str, Array]]:
    """The sinogram or the counts, the image where there is one, and the fields of counts, all as the geometry says."""
    views, detectors = geometry.views, geometry.detectors
    counted = "counts" in contents.arrays
    if counted and "sinogram" in contents.arrays:
        raise InputError("the file holds both sinogram and counts; leave out one of them")
    values = contents.require("counts" if counted else "sinogram", (None, views, detectors), "(slices, views, detectors)")
    image = None
    if "image" in contents.arrays:
        image = contents.require("image", (values.shape[0], *geometry.image_size), "(slices, *image_size)")
    fields = {name: contents.arrays[name] for name in ("flat", "dark") if name in contents.arrays}
    if counted and "flat" not in fields:
        raise InputError("counts need 'flat', the counts of the open beam, and 'dark' where the detector counts without beam; add them")
    if fields and not counted:
        raise InputError(f"{' and '.join(fields)} belong to 'counts', but the file holds 'sinogram'; rename it, or leave them out")
    for name, field in fields.items():
        _require_field(name, field, values.shape[0], detectors)
    return values, image, fields


def _require_field(name: str, field: Array, slices: int, detectors: int) -> None:
    shape = field.shape
    if shape and (len(shape) > 3 or shape[-1] != detectors or (len(shape) == 3 and shape[0] not in (1, slices))):
        raise InputError(
            f"{name} must be one number, (detectors,), (frames, detectors) or (slices, frames, detectors)"
            f" with {detectors} detectors and {slices} slices, got {shape}; correct it"
        )
    require_values(name, field)


def _mean_field(field: Array, index: int, detectors: int) -> np.ndarray:
    """(D,) the mean frame of a slice; one number is that of every detector."""
    frames = field[index if field.shape[0] > 1 else 0] if len(field.shape) == 3 else field[...]
    mean = np.atleast_2d(frames.astype(np.float64)).mean(0)
    return np.broadcast_to(mean, (detectors,))


def _chosen(slices: Slices, count: int) -> range | list[int]:
    """The numbers of the slices to read."""
    try:
        if slices is None:
            return range(count)
        if isinstance(slices, slice):
            chosen: range | list[int] = range(count)[slices]
        else:
            numbers = [slices] if isinstance(slices, int | np.integer) else list(slices)
            if any(isinstance(number, bool) for number in numbers):  # a mask is no numbers
                raise TypeError
            chosen = [range(count)[number] for number in numbers]
    except (IndexError, TypeError):
        raise InputError(f"slices must be numbers from 0 to {count - 1}, got {slices!r}") from None
    if len(chosen) == 0:
        raise InputError(f"slices {slices!r} choose none of the {count} slices in the file; choose at least one")
    return chosen
