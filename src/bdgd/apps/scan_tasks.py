"""Scan files as work to be done: examined before the first is begun, then read slice by slice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from bdgd.apps.options import make_folder, wrong_draws
from bdgd.apps.outputs import Grid
from bdgd.apps.places import Places, default_places, read_places
from bdgd.apps.provenance import printable
from bdgd.checks import InputError
from bdgd.data import Correction, Scans, match, open_stack
from bdgd.data.axis import axis_of_offset
from bdgd.data.matching import REMEDY
from bdgd.models import Reconstructor, geometry_of, pretrained, ray_transform
from bdgd.operators import Geometry


@dataclass(frozen=True, eq=False)
class Task:
    """One scan file that can be reconstructed."""

    path: Path
    grid: Grid
    geometry: Geometry
    places: Places
    shown: int  # the slice that the report shows
    notes: tuple[str, ...] = ()  # what a reader did to the values, and what does not hold for them
    calibrated: bool = False  # whether the model's calibration holds for this scan
    correction: Correction | None = None  # what the model needs to be done to it
    axis: float | None = None  # the detector that sees the axis of rotation, where it is not as the file says
    rotation: float = 0.0  # radians, counter-clockwise, by which its images must be turned to lie as the object did

    def slices(self) -> Iterator[Scans]:
        """One slice after the other, fitted to the model and corrected as it needs; no other is in memory."""
        with open_stack(self.path, axis=self.axis) as stack:
            for scan in stack:
                yield match(scan, self.geometry)[0].corrected(self.correction)


def examine(
    path: Path,
    model: Reconstructor,
    draws: int,
    *,
    regions: Path | None = None,
    shown: int | None = None,
    axis: float | str | None = None,
) -> Task:
    """Raise, before any work is done, unless the file fits the model and the options fit the file."""
    with open_stack(path, axis=axis) as stack:
        scan, count = stack[0], len(stack)
        seen = None if axis is None else axis_of_offset(stack.geometry)  # an estimate is made once
    geometry = ray_transform(model).geometry
    try:
        first = match(scan, geometry)[0].corrected(model.correction)
    except InputError as error:
        raise InputError(f"{path}: {_with_remedy(str(error), path, scan)}") from None
    if shown is not None and shown >= count:
        raise InputError(f"--slice {shown}: {path} holds {count} slices, numbered from 0; give at most {count - 1}")
    places = default_places(geometry) if regions is None else read_places(regions, geometry)
    objection = _objection(model, first, draws)
    each = "every slice is corrected by its own air; the one above is that of slice 0" if count > 1 and _subtracts_air(model) else None
    notes, calibrated = (*first.notes, *filter(None, [each, objection])), model.calibration is not None and objection is None
    shown = count // 2 if shown is None else shown
    return Task(path, Grid.of(first, count), geometry, places, shown, notes, calibrated, model.correction, seen, first.rotation)


def _subtracts_air(model: Reconstructor) -> bool:
    return model.correction is not None and model.correction.air


def _with_remedy(refusal: str, path: Path, scan: Scans) -> str:
    """What `match` said, with what the reader found strange, the shipped models that would do, and the file's name in the command."""
    fitting = [name for name in pretrained() if _fits(scan, geometry_of(name))]
    noted = f"also, {'; '.join(scan.notes)}; " if scan.notes else ""
    instead = f"choose a shipped --model that can use it ({', '.join(fitting)}), or " if fitting else ""
    return refusal.replace(REMEDY, noted + instead + REMEDY.replace("SCAN", shlex.quote(printable(str(path)))))


def _fits(scan: Scans, geometry: Geometry | None) -> bool:
    if geometry is None:
        return False
    try:
        match(scan, geometry)
    except InputError:
        return False
    return True


def _objection(model: Reconstructor, scan: Scans, draws: int) -> str | None:
    """Why the model's calibration does not hold for this scan; None where it does or there is none."""
    if model.calibration is None:
        return None
    if wrong := wrong_draws(model, draws):
        return wrong
    try:
        model.calibration.require(model.calibration.draws, "weights")
        model.calibration.require_noise(scan.noise.to_dict() if scan.noise is not None else None)
    except InputError as reason:
        return f"the intervals are not calibrated: {reason}"
    return None


def result_folders(output: Path, scans: Sequence[Path]) -> list[Path]:
    """OUTPUT for one scan; for several a folder inside it with the name of each, numbered where names repeat."""
    if len(scans) == 1:
        return [make_folder(output)]
    names: list[str] = []
    for scan in scans:
        names.append(_unused(scan.stem, names))
    return [make_folder(output / name) for name in names]


def _unused(name: str, used: Sequence[str]) -> str:
    """The name, or NAME-2, NAME-3, ...: the first that is not used, also where capitals are not told apart."""
    taken = {other.casefold() for other in used}
    numbered = (f"{name}-{n}" for n in count(2))
    return next(free for free in chain([name], numbered) if free.casefold() not in taken)
