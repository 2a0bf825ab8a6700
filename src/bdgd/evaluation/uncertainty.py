"""Scoring error bars over a set of scans, batch by batch: of all pixels, of the object, of the background, of the edges.

Background pixels are mostly exact, since the projection onto x >= 0 makes them so: they flatter every mean over all
pixels. Edges are where the errors are. So each kind of pixel is scored apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import require_count, require_finite
from bdgd.data import Scans, named_generator
from bdgd.evaluation.benchmark import Told, images_at_once, true_images
from bdgd.evaluation.strata import PosteriorLike, Stratum, StratumScores, strata
from bdgd.inference import reconstruct
from bdgd.metrics import Detection, auroc, ause
from bdgd.metrics.crps import draws_crps, gaussian_crps
from bdgd.metrics.likelihood import PatchCovariance, gaussian_nll
from bdgd.metrics.streaming import PixelFunction
from bdgd.metrics.uncertainty import pixel_mask
from bdgd.models import Reconstructor

LEVELS = (0.5, 0.68, 0.9, 0.95)
PATCHES = (2, 4, 8)


#: A model, or a function from sinograms (B, 1, V, D) to their posterior.
Source = Reconstructor | Callable[[Tensor], PosteriorLike]


@dataclass(frozen=True)
class UncertaintyScores:
    """The scores of each kind of pixel by name, pooled over all images, and what belongs to whole images, in their order.

    abnormality_auroc: how well the std finds the pixels of the abnormality, pooled and per image, where one was marked.
    """

    strata: Mapping[str, StratumScores]
    ause_per_image: tuple[float, ...]
    abnormality_auroc: float | None
    abnormality_auroc_per_image: tuple[float, ...]
    images: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        values = {key: value for key, value in asdict(self).items() if key != "strata"}
        return {**values, "strata": {name: scores.to_dict() for name, scores in self.strata.items()}}


def score_uncertainty(
    source: Source,
    scans: Scans,
    levels: Sequence[float] = LEVELS,
    *,
    draws: int = 100,
    seed: int = 0,
    patches: Sequence[int] = PATCHES,
    abnormal: Tensor | None = None,
    nll: PixelFunction = gaussian_nll,
    crps: PixelFunction = gaussian_crps,
    unit: float | None = None,
    batch: int | None = None,
    report: Told | None = None,
) -> UncertaintyScores:
    """Score the error bars of a model, or of a function from sinograms (B, 1, V, D) to their posterior.

    draws, seed: for a model, how its posterior is sampled. patches: sides of the patches whose likelihood is taken from the draws,
    which are made a second time for it; none leaves that out, and the CRPS of the draws with it. abnormal: (B, 1, H, W) true
    where an abnormality lies. nll, crps: where the predictive distribution of a pixel is not the Gaussian of mean and std.
    unit: the image value that counts as 1, on which depends what is object and how sure a pixel can be; the value_scale of a model.
    batch: images at a time, whose patch covariances are held at once; the result does not depend on it.
    `report(images, NLL of the object so far)` is called after every batch.
    """
    images, posterior_of = true_images(scans), _posterior_function(source, draws, seed)
    marked = None if abnormal is None else pixel_mask(abnormal, images)
    unit = unit or (source.value_scale if isinstance(source, Reconstructor) else 1.0)
    kinds = {name: Stratum(levels, patches, nll=nll, crps=crps, unit=unit) for name in strata(images[:1])}
    whole = _WholeImages()
    step = require_count(batch or images_at_once(scans.sinograms.device), "batch")
    start = time.perf_counter()
    for first in range(0, len(scans), step):
        part = slice(first, first + step)
        truth, posterior = images[part], posterior_of(scans.sinograms[part])
        _add(kinds, posterior, truth, strata(truth, unit), levels, patches)
        whole.add(posterior, truth, None if marked is None else marked[part])
        if report is not None:
            report(len(truth), kinds["object"].nll_so_far())
    scores = {name: kind.result() for name, kind in kinds.items() if kind.pixels}
    return whole.result(scores, time.perf_counter() - start)


def _posterior_function(source: Source, draws: int, seed: int) -> Callable[[Tensor], PosteriorLike]:
    if not isinstance(source, Reconstructor):
        return source
    model = source  # every batch gets the same draws of the weights, so that the result does not depend on its size
    return lambda y: reconstruct(model, y, draws, generator=named_generator("draws", seed))


def _add(
    kinds: dict[str, Stratum],
    posterior: PosteriorLike,
    truth: Tensor,
    masks: Mapping[str, Tensor],
    levels: Sequence[float],
    patches: Sequence[int],
) -> None:
    """Show one batch to every kind of pixel, each with the mask of that name."""
    require_finite(posterior.std, "the std of the posterior")
    intervals = [posterior.interval(level) for level in levels]
    covariances, sharpness = _replayed(posterior, truth, patches) if patches else ([], None)
    for name, mask in masks.items():
        kinds[name].add(posterior.mean, posterior.std, truth, mask)
        kinds[name].add_parts(posterior.epistemic, posterior.aleatoric, mask)
        kinds[name].add_intervals(posterior.mean, intervals, truth, mask)
        if sharpness is not None:
            kinds[name].add_draws(posterior.mean, covariances, posterior.aleatoric, truth, sharpness, mask)


def _replayed(posterior: PosteriorLike, truth: Tensor, patches: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """What needs the draws themselves: the covariance (B, N, n, n) of patches of each side, and the CRPS (B, 1, H, W) of the draws."""
    moments, kept = [PatchCovariance(side) for side in patches], []
    for draw in posterior.draws():
        for each in moments:
            each.add(draw)
        kept.append(draw)
    stacked = torch.stack(kept)  # (S, B, 1, H, W), of this batch alone
    sharpness = torch.stack([draws_crps(stacked[:, b], truth[b]) for b in range(len(truth))])
    return [each.result() for each in moments], sharpness


class _WholeImages:
    """What belongs to images rather than to kinds of pixels."""

    def __init__(self) -> None:
        self.images, self.ause, self.found = 0, [], []  # type: ignore[var-annotated]
        self.detection: Detection | None = None

    def add(self, posterior: PosteriorLike, truth: Tensor, abnormal: Tensor | None) -> None:
        self.images += len(truth)
        self.ause += ause(posterior, truth).tolist()
        if abnormal is not None:
            self.detection = self.detection or Detection()
            self.detection.add(posterior.std, abnormal)
            self.found += auroc(posterior.std, abnormal).tolist()

    def result(self, scores: Mapping[str, StratumScores], seconds: float) -> UncertaintyScores:
        pooled = self.detection.result() if self.detection else None
        return UncertaintyScores(scores, tuple(self.ause), pooled, tuple(self.found), self.images, seconds)
