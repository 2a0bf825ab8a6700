"""How a model degrades on scans that it was not made for: error, error bars and alarm under every condition.

A result that gets worse is not the fault that is looked for. The fault is one that gets worse while its error bars stay as they are
and its light stays green.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Mismatch, Noise, Scans, named_generator, noise_from_dict
from bdgd.evaluation.conditions import KINDS, ORDINARY, Condition, geometry_of, ordinary_value, scans_under, standard_conditions
from bdgd.evaluation.uncertainty import UncertaintyScores, score_uncertainty
from bdgd.inference import Posterior, alarm, reconstruct
from bdgd.metrics import psnr
from bdgd.models import Reconstructor

LEVEL = 0.9
#: Coverage may fall short of the level by this much and still counts as held.
SLACK = 0.02
#: The alarm has rung for a condition if the light is red on at least this share of the images.
MOST = 0.5


@dataclass(frozen=True)
class Point:
    """The scores under one condition, pooled over its images.

    psnr: mean in dB, with the model's largest value as data range. rmse, coverage, width: of the object's pixels, in the unit of the
    image. worst_coverage: what nine images in ten exceed. ause, error_auroc: over all pixels. red, amber: the share of images with
    that light. reasons: how often each witness of the alarm was why the light was red. All three are None without an alarm.
    """

    condition: Condition
    images: int
    psnr: float
    rmse: float
    coverage: float
    worst_coverage: float
    width: float
    ause: float
    error_auroc: float
    red: float | None = None
    amber: float | None = None
    reasons: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Degradation:
    """All points, the first under ordinary conditions.

    level: of the intervals. views, noise: what is ordinary for the model. false_alarms: the share of ordinary scans on which its light
    may be red; None without an alarm.
    """

    points: tuple[Point, ...]
    level: float
    draws: int
    views: int
    noise: dict[str, Any]
    false_alarms: float | None

    @property
    def ordinary(self) -> Point:
        return self.points[0]

    def kinds(self) -> list[str]:
        """The kinds of conditions that were tried, in the order of `KINDS`."""
        return [kind for kind in KINDS if any(point.condition.kind == kind for point in self.points)]

    def curve(self, kind: str) -> list[tuple[float, Point]]:
        """(value, point) by rising value, with the ordinary point where it belongs on the curve."""
        found = [(point.condition.value, point) for point in self.points if point.condition.kind == kind]
        usual = ordinary_value(kind, self.views, self.noise)
        if usual is not None and all(value != usual for value, _ in found):
            found.append((usual, self.ordinary))
        return sorted(found, key=lambda pair: pair[0])

    def verdict(self, point: Point) -> str:
        """ "holds": the intervals cover what they say. "rings": they do not, but the light is red on most images. "silent": neither."""
        if point.coverage >= self.level - SLACK:
            return "holds"
        return "rings" if point.red is not None and point.red >= MOST else "silent"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file, each point with its verdict."""
        described = {name: getattr(self, name) for name in ("level", "draws", "views", "noise", "false_alarms")}
        return {**described, "points": [{**asdict(point), "verdict": self.verdict(point)} for point in self.points]}


def degradation_curves(
    model: Reconstructor,
    images: Tensor,
    *,
    slices: Tensor | None = None,
    conditions: Sequence[Condition] | None = None,
    noise: Noise | None = None,
    mismatch: Mismatch | None = None,
    draws: int | None = None,
    level: float = LEVEL,
    seed: int = 0,
    batch: int | None = None,
    report: Callable[[Condition, int], None] | None = None,
) -> Degradation:
    """Score the model on scans of the images (B, 1, H, W) under ordinary conditions, then under each of `conditions`.

    slices: images of another kind (C, 1, H, W), scanned under ordinary conditions: the condition "anatomy". conditions: those of
    `standard_conditions` unless given. noise, draws: unless given those of the calibration, else 1 % and 100 draws. mismatch: the
    scanner's ordinary errors. batch: images at a time; the result does not depend on it. `report(condition, images done)` is called
    after every batch.
    """
    usual, draws = _as_calibrated(model, noise, draws)
    chosen = standard_conditions(model, usual) if conditions is None else list(conditions)
    if any(condition.kind == "anatomy" for condition in chosen):
        raise InputError("anatomy needs images of its own: leave it out of conditions and give them as slices")
    sets = [(condition, images) for condition in (Condition(), *(each for each in chosen if each.kind != ORDINARY))]
    if slices is not None:
        sets.append((Condition("anatomy"), slices))
    points = []
    for condition, x in sets:
        scans = scans_under(condition, model, x.to(getattr(model.A, "device", x.device)), usual, seed, mismatch)
        points.append(_point(model, condition, scans, draws, level, seed, batch, report))
    watched = None if model.calibration is None else model.calibration.alarm
    rate = None if watched is None else watched.false_alarms
    return Degradation(tuple(points), level, draws, geometry_of(model).views, usual.to_dict(), rate)


def _as_calibrated(model: Reconstructor, noise: Noise | None, draws: int | None) -> tuple[Noise, int]:
    """The noise and the number of draws that are ordinary for the model; raise for draws that its calibration does not hold for."""
    calibration = model.calibration
    if calibration is None:
        return noise or GaussianNoise(0.01), 100 if draws is None else draws
    calibration.require(calibration.draws if draws is None else draws, calibration.draw)
    known = noise_from_dict(calibration.noise) if calibration.noise is not None else GaussianNoise(0.01)
    return noise or known, calibration.draws


def _point(
    model: Reconstructor,
    condition: Condition,
    scans: Scans,
    draws: int,
    level: float,
    seed: int,
    batch: int | None,
    report: Callable[[Condition, int], None] | None,
) -> Point:
    assert scans.images is not None
    watch = _Watch(model, scans.images, draws, seed)
    done = None if report is None else lambda images, _: report(condition, images)
    scores = score_uncertainty(watch, scans, (level,), patches=(), unit=model.value_scale, batch=batch, report=done)
    return watch.point(condition, scores)


class _Watch:
    """The posterior of each batch of sinograms, in their order. Notes on the way what `score_uncertainty` does not: PSNR and alarm."""

    def __init__(self, model: Reconstructor, truth: Tensor, draws: int, seed: int):
        self.model, self.truth, self.draws, self.seed = model, truth, draws, seed
        self.psnr: list[float] = []
        self.lights: list[str] = []
        self.reasons: Counter[str] = Counter()
        self.alarmed = model.has_alarm

    def __call__(self, y: Tensor) -> Posterior:
        # Every batch gets the same draws of the weights, so that the result does not depend on its size.
        draw = "weights" if self.model.calibration is None else self.model.calibration.draw
        posterior = reconstruct(self.model, y, self.draws, generator=named_generator("draws", self.seed), draw=draw)
        first = len(self.psnr)
        self.psnr += psnr(posterior.mean, self.truth[first : first + len(y)], self.model.value_scale).tolist()
        if self.alarmed:
            found = alarm(self.model, y, posterior)
            self.lights += found.light
            self.reasons.update(found.reason(k) for k, light in enumerate(found.light) if light == "red")
        return posterior

    def point(self, condition: Condition, scores: UncertaintyScores) -> Point:
        if "object" not in scores.strata:
            raise InputError("coverage is counted on the pixels of the object (truth > 1e-6), but all images are empty")
        inside, everywhere = scores.strata["object"], scores.strata["all"]
        (interval,) = inside.intervals
        return Point(
            condition=condition,
            images=scores.images,
            psnr=float(torch.tensor(self.psnr, dtype=torch.float64).mean()),
            rmse=inside.rmse,
            coverage=interval.coverage,
            worst_coverage=interval.worst_coverage,
            width=interval.width,
            ause=everywhere.ause,
            error_auroc=everywhere.error_auroc,
            red=self._share("red"),
            amber=self._share("amber"),
            reasons=dict(self.reasons.most_common()) if self.alarmed else None,
        )

    def _share(self, light: str) -> float | None:
        return self.lights.count(light) / len(self.lights) if self.alarmed else None
