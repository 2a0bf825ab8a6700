"""Methods on measured scans, all scans of a condition as one batch, and the references that they are compared with.

A single image keeps a GPU waiting for the next instruction: all scans together take about as long as one. The scan of an arc that starts
elsewhere is the same scanner with the object turned, so the scans of a condition have one geometry (`ViewCondition.counted_from_start`).

A model's name followed by `+rest` has the smooth rest of each scan added (`bdgd.inference.rest`).
A method's name followed by `+linear` takes the same scans with their air offset and beam hardening corrected, and is compared with a
reference from corrected views. A model that carries a correction is only evaluated so: its values are those of corrected scans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import fbp, tv
from bdgd.data import Correction, Scans, match, named_generator
from bdgd.evaluation.challenge import MeasuredScan, ViewCondition
from bdgd.evaluation.measured import Reconstructed, score_measured
from bdgd.evaluation.mismatch import CORRECTION
from bdgd.inference import explain_rest, reconstruct_and_keep
from bdgd.models import Reconstructor, ray_transform
from bdgd.operators import RayTransform
from bdgd.storage import replacing

LINEAR, REST = "+linear", "+rest"
#: TV weights that are tried; acrylic is about 0.035 / mm, so these are 3e-5 to 3e-2 for values up to 1.
TV_WEIGHTS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
#: Of the reference: from the 180 odd views of tc it misses the even ones by 0.0110, with 3e-6 by 0.0111 and with 1e-6 by 0.0118.
REFERENCE_WEIGHT = 1e-5
#: Arcs converge slowly: from FBP, MCC inside of 07a over 30 degrees is 0.151, 0.184, 0.186 after 300, 600, 2400 iterations.
TOLERANCE, MOST_ITERATIONS = 3e-3, 2000

#: A method on measured scans: scans and the condition in, one result for all of them per setting that it tries (the weights of TV) out.
MeasuredMethod = Callable[[Sequence[MeasuredScan], ViewCondition], Iterator[tuple[str, Reconstructed]]]


def measured_fbp(device: torch.device, scans: Sequence[MeasuredScan], condition: ViewCondition) -> Iterator[tuple[str, Reconstructed]]:
    """Filtered back-projection with a Hann window on the ramp: measured scans are noisy.

    One by one, where the scan lies: over an arc its streaks reach into the corners, which a turned square does not have.
    """
    images = []
    for scan in scans:
        seen = scan.seen(condition.used(scan.name))
        assert seen.geometry is not None
        A = RayTransform(seen.geometry, device, strategy="matrix-free")
        images.append(fbp(A, seen.sinograms.to(device), filter="hann"))
    yield "hann", Reconstructed(torch.cat(images), (0.0,) * len(scans))


def measured_tv(device: torch.device, scans: Sequence[MeasuredScan], condition: ViewCondition) -> Iterator[tuple[str, Reconstructed]]:
    """Total variation for every weight, from the largest down, each from the images before, with all arcs `upright`."""
    seen = condition.counted_from_start(scans, condition.used, at=condition.upright)
    rotations = tuple(condition.rotation(scan.name) - condition.upright for scan in scans)
    for weight, images in zip(TV_WEIGHTS, _tv_images(seen, TV_WEIGHTS, device), strict=True):
        yield f"{weight:g}", Reconstructed(images, rotations)


def _tv_images(seen: Scans, weights: Sequence[float], device: torch.device) -> Iterator[Tensor]:
    """(B, 1, N, N) for each weight; every image has a stopping rule of its own, so that none depends on the others."""
    assert seen.geometry is not None
    A, y = RayTransform(seen.geometry, device), seen.sinograms.to(device)
    images = fbp(A, y, filter="hann").clamp(min=0)
    for weight in weights:
        images = tv(A, y, weight, start=images, tolerance=TOLERANCE, most_iterations=MOST_ITERATIONS)
        yield images


def measured_model(
    model: Reconstructor, draws: int, seed: int, scans: Sequence[MeasuredScan], condition: ViewCondition, *, rest: bool = False
) -> Iterator[tuple[str, Reconstructed]]:
    """A trained model: the scans' views are matched to its geometry. The weights of a draw are the same for all scans.

    A model that carries a correction gets it, unless the scans have it already. A calibration for other numbers of draws is left out.
    rest: whether the smooth rest that it leaves of each scan is added.
    """
    model = model.calibrated_for(draws if model.random else 1)
    geometry = ray_transform(model).geometry
    seen, _ = match(condition.counted_from_start(scans, condition.used), geometry)
    if seen.correction is None:
        seen = seen.corrected(model.correction)
    elif model.correction is not None:
        require_same(model.correction, seen.correction)
    generator = named_generator("draws", seed)
    y = seen.sinograms.to(model.device)
    posterior = reconstruct_and_keep(model, y, draws, generator=generator)  # the left-out views are predicted from every draw
    posterior = explain_rest(model, y, posterior) if rest else posterior
    rotations = tuple(condition.rotation(scan.name) + seen.rotation for scan in scans)
    yield f"{posterior.number} draws", Reconstructed(posterior.mean, rotations, posterior, geometry, seen.correction)


def require_same(carried: Correction, done: Correction) -> None:
    """Raise unless a model carries the correction that was done to the scans."""
    if carried != done:
        raise InputError(
            f"the model was trained on scans corrected with {carried.to_dict()}, and the measured ones are corrected with {done.to_dict()};"
            " train it with the latter"
        )


def corrected(scan: MeasuredScan) -> MeasuredScan:
    """The scan with its air at 0 and its beam hardening undone."""
    return replace(scan, scans=scan.scans.corrected(CORRECTION))


class References:
    """The references of scans and conditions, made when they are asked for and kept in a folder, since they take as long as TV."""

    def __init__(self, folder: Path, device: torch.device):
        self.folder, self.device = folder, device

    def __call__(self, scans: Sequence[MeasuredScan], condition: ViewCondition, *, linear: bool = False) -> Tensor:
        """(B, 1, N, N) of scans, which are `corrected` already where linear says so, each as if its arc started at 0 degrees."""
        paths = [self._path(scan, condition, linear) for scan in scans]
        if missing := [(scan, path) for scan, path in zip(scans, paths, strict=True) if not path.is_file()]:
            made = reference([scan for scan, _ in missing], condition, self.device).cpu()
            self.folder.mkdir(parents=True, exist_ok=True)
            for (_, path), image in zip(missing, made.split(1), strict=True):
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.save(file, image.numpy())
        return torch.cat([torch.from_numpy(np.load(path, allow_pickle=False)) for path in paths]).to(self.device)

    def _path(self, scan: MeasuredScan, condition: ViewCondition, linear: bool) -> Path:
        """What is left out all around is the same for every number of views that are used."""
        which = "odd" if condition.views is not None else f"{condition.name}-from-start"
        return self.folder / f"{scan.name}-{which}{'-linear' if linear else ''}.npy"


def reference(scans: Sequence[MeasuredScan], condition: ViewCondition, device: torch.device) -> Tensor:
    """(B, 1, N, N) TV from the views that the condition leaves out, each image as if the scan's arc started at 0 degrees."""
    (images,) = _tv_images(condition.counted_from_start(scans, condition.left_out), (REFERENCE_WEIGHT,), device)
    return images


def evaluate_scans(
    name: str, method: MeasuredMethod, scans: Sequence[MeasuredScan], condition: ViewCondition, references: References | None
) -> dict[str, dict[str, Any]]:
    """The scores of a method by scan and by the setting that it tried: {"07a": {"1e-05": {"mcc": ...}, ...}, ...}.

    With +linear in its name the scans must be `corrected`.
    """
    truths = None if references is None else references(scans, condition, linear=name.endswith(LINEAR))
    results: dict[str, dict[str, Any]] = {scan.name: {} for scan in scans}
    start = time.perf_counter()
    for setting, found in method(scans, condition):
        seconds = (time.perf_counter() - start) / len(scans)
        for scan, scores in zip(scans, score_measured(found, scans, condition, truths, seconds), strict=True):
            results[scan.name][setting] = asdict(scores)
        start = time.perf_counter()
    return results
