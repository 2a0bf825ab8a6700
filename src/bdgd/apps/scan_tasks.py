"""Scan files as work to be done: examined before the first is begun, then read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdgd.apps.options import make_folder
from bdgd.apps.outputs import Grid
from bdgd.apps.places import Places, default_places, read_places
from bdgd.checks import InputError
from bdgd.data import Scans, read_scans
from bdgd.models import Reconstructor
from bdgd.operators import Geometry


@dataclass(frozen=True, eq=False)
class Task:
    """One scan file that can be reconstructed."""

    path: Path
    grid: Grid
    geometry: Geometry
    places: Places
    shown: int  # the slice that the report shows
    notes: tuple[str, ...] = ()  # what a reader did to the values

    def slices(self) -> Iterator[Scans]:
        """One slice after the other; no other is in memory."""
        for index in range(self.grid.slices):
            yield read_scans(self.path, index)


def examine(path: Path, model: Reconstructor, name: str, *, regions: Path | None = None, shown: int | None = None) -> Task:
    """Raise, before any work is done, unless the file fits the model and the options fit the file."""
    first, count = read_scans(path, 0), _count(path)
    _require_same_geometry(first, model, name)
    assert first.geometry is not None
    if shown is not None and shown >= count:
        raise InputError(f"--slice {shown}: {path} holds {count} slices, numbered from 0; give at most {count - 1}")
    places = default_places(first.geometry) if regions is None else read_places(regions, first.geometry)
    return Task(path, Grid.of(first, count), first.geometry, places, count // 2 if shown is None else shown, getattr(first, "notes", ()))


def _count(path: Path) -> int:
    """How many slices a scan file holds; of HDF5 without reading them."""
    import h5py

    if not h5py.is_hdf5(path):
        return len(read_scans(path))
    with h5py.File(path, "r") as file:
        return int(file["sinogram"].shape[0])


def result_folders(output: Path, scans: Sequence[Path]) -> list[Path]:
    """OUTPUT for one scan; for several a folder inside it with the name of each, numbered where names repeat."""
    if len(scans) == 1:
        return [make_folder(output)]
    names: list[str] = []
    for scan in scans:
        copies = [name for name in names if name == scan.stem or name.rpartition("-")[0] == scan.stem]
        names.append(f"{scan.stem}-{len(copies) + 1}" if copies else scan.stem)
    return [make_folder(output / name) for name in names]


def _require_same_geometry(scans: Scans, model: Reconstructor, name: str) -> None:
    ours, theirs = scans.geometry, getattr(model.A, "geometry", None)
    if ours == theirs or ours is None:
        return
    mine, known = ours.to_dict(), theirs.to_dict() if theirs is not None else {}
    differing = [key for key in mine if mine.get(key) != known.get(key)]
    words = "; ".join(f"{key} is {_short(mine.get(key))} in the scan and {_short(known.get(key))} in the model" for key in differing)
    raise InputError(f"the model {name} was trained for another geometry: {words}; train a model for this geometry with bdgd train")


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"{len(value)} values from {value[0]:.4g} to {value[-1]:.4g}"
    return f"{value}"
