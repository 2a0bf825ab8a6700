"""Methods scored on scans of one's own whose truth is known: a rehearsal with the geometry, values and noise of a scanner.

The scans are brought to the geometry of the models and corrected as these need it, and every method gets the same ones. TV takes for
each scan the weight of best mean PSNR on the *other* scans. The data range of PSNR and SSIM is that of the truth, and what an interval
covers is counted on the object, as in a report: background is easy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import fbp, tv
from bdgd.data import Scans, match
from bdgd.evaluation.benchmark import FULL, Effort, Told
from bdgd.evaluation.measured_methods import MOST_ITERATIONS, TOLERANCE
from bdgd.evaluation.methods import METHODS, find_method
from bdgd.evaluation.strata import PosteriorLike, object_pixels
from bdgd.evaluation.timing import synchronise
from bdgd.metrics import psnr, ssim
from bdgd.models import load
from bdgd.operators import RayTransform

#: Weights tried for TV on an image of range 1, from much too smooth to much too rough, each from the result of the one before; for other
#: ranges in proportion.
TV_WEIGHTS = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
LEVEL = 0.95


@dataclass(frozen=True)
class ScanScores:
    """One value per scan; coverage and width: of the 95 % interval on the object's pixels, None for a method without error bars."""

    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    seconds: float
    recipe: dict[str, Any]
    coverage: tuple[float, ...] | None = None
    width: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file, with the means over the scans first."""
        lists = {name: list(values) for name in ("psnr", "ssim", "coverage", "width") if (values := getattr(self, name)) is not None}
        means = {f"mean_{name}": sum(values) / len(values) for name, values in lists.items()}
        return {**means, "seconds": self.seconds, "recipe": self.recipe, **lists}


def scans_for(scans: Scans, methods: Sequence[str]) -> Scans:
    """The scans as the trained models among the methods need them, by geometry and correction; as they are where there is none.

    InputError where the truth is not known, where models need different scans, or where TV has no other scan to choose on.
    """
    if "tv" in methods and len(scans) < 2:
        raise InputError("tv chooses its weight on other scans than it is scored on, and there is one; simulate more with --count")
    needs = [(name, load(name)) for name in methods if name not in METHODS]
    for name, model in needs[1:]:
        first, other = needs[0]
        if (model.geometry, model.correction) != (other.geometry, other.correction):
            raise InputError(f"the models {first} and {name} need different scans, by geometry or correction; score them one by one")
    if needs:
        geometry = needs[0][1].geometry
        if geometry is None:
            raise InputError(f"the model {needs[0][0]} has no geometry, so scans cannot be fitted to it; choose a model of a scanner")
        scans = match(scans, geometry)[0].corrected(needs[0][1].correction)
    if scans.images is None:
        why = next((f": {note}" for note in scans.notes if "true images" in note), "")
        raise InputError(f"a score needs the true images, and the scans have none{why}; make such scans with bdgd simulate --geometry SCAN")
    return scans


def score_on_scans(
    name: str, A: RayTransform, scans: Scans, *, seed: int = 0, effort: Effort = FULL, report: Told | None = None
) -> ScanScores:
    """The scores of one method on the scans of `scans_for`, which are those of the operator, one scan at a time."""
    if name == "tv":
        return _score_tv(A, scans, report)
    if name == "fbp":
        return _score(lambda y: fbp(A, y), scans, {"filter": "ram-lak"}, report)
    method = find_method(name)(A, seed, effort)
    assert method.posterior is not None
    return _score(method.posterior, scans, method.recipe, report)


def _score(make: Callable[[Tensor], Tensor | PosteriorLike], scans: Scans, recipe: dict[str, Any], report: Told | None) -> ScanScores:
    """make: sinograms (1, 1, V, D) to an image or to a posterior."""
    found: dict[str, list[float]] = {"psnr": [], "ssim": [], "coverage": [], "width": []}
    seconds = 0.0
    for scan in (scans[index] for index in range(len(scans))):
        assert scan.images is not None
        start = time.perf_counter()
        made = make(scan.sinograms)
        image = made if isinstance(made, Tensor) else made.mean
        synchronise(image.device)
        seconds += time.perf_counter() - start
        _add_quality(found, image, scan)
        if not isinstance(made, Tensor):
            covered, width = on_object(made, scan.images, LEVEL)
            found["coverage"].append(covered)
            found["width"].append(width)
        if report is not None:
            report(1, sum(found["psnr"]) / len(found["psnr"]))
    bars = {name: tuple(found[name]) or None for name in ("coverage", "width")}
    return ScanScores(tuple(found["psnr"]), tuple(found["ssim"]), seconds, recipe, **bars)


def _add_quality(found: dict[str, list[float]], image: Tensor, scan: Scans) -> None:
    assert scan.images is not None
    data_range = range_of(scan.images)
    found["psnr"].append(float(psnr(image, scan.images, data_range)))
    found["ssim"].append(float(ssim(image, scan.images, data_range)))


def range_of(truth: Tensor) -> float:
    """The data range of scores against this truth: its largest value minus its least; of a constant one its value, or 1 of an empty one.

    Whether values are known to be per mm or not, an image of 0.05 at most has errors of that size.
    """
    return float(truth.max() - truth.min()) or float(truth.abs().max()) or 1.0


def on_object(posterior: PosteriorLike, truth: Tensor, level: float) -> tuple[float, float]:
    """Which part of the object's pixels of truth (1, 1, H, W) lies in the interval, and its mean width there; of an empty truth, of all."""
    lower, upper = (end.to(truth.device) for end in posterior.interval(level))
    counted = object_pixels(truth, range_of(truth))
    counted = counted if bool(counted.any()) else torch.ones_like(counted)
    held = (lower <= truth) & (truth <= upper)
    return float(held[counted].double().mean()), float((upper - lower)[counted].double().mean())


def _score_tv(A: RayTransform, scans: Scans, report: Told | None) -> ScanScores:
    assert scans.images is not None
    weights = [weight * range_of(scans.images) for weight in TV_WEIGHTS]
    seconds, found, image = 0.0, [], None
    for weight in weights:
        quality: dict[str, list[float]] = {"psnr": [], "ssim": []}
        start = time.perf_counter()
        image = tv(A, scans.sinograms, weight, start=image, tolerance=TOLERANCE, most_iterations=MOST_ITERATIONS)
        seconds += time.perf_counter() - start
        for index in range(len(scans)):
            _add_quality(quality, image[index : index + 1], scans[index])
        found.append(quality)
        if report is not None:
            report(len(scans), sum(quality["psnr"]) / len(scans))
    chosen = chosen_elsewhere(torch.tensor([quality["psnr"] for quality in found]))
    parts = {name: tuple(found[w][name][index] for index, w in enumerate(chosen)) for name in ("psnr", "ssim")}
    recipe = {"weights": [weights[w] for w in chosen], "chosen_on": "the other scans"}
    return ScanScores(parts["psnr"], parts["ssim"], seconds, recipe)


def chosen_elsewhere(quality: Tensor) -> list[int]:
    """For each of B scans the candidate of best mean quality (C, B) on the other scans."""
    others = quality.sum(1, keepdim=True) - quality
    return [int(best) for best in others.argmax(0)]
