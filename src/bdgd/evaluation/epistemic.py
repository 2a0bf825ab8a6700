"""Kinds of epistemic uncertainty side by side: the same cascade, schedule, images and test sets; only what is random differs.

Each row is a posterior: one training or several, perhaps a closed-form last layer on top, and how draws are made. All columns
are measured by the functions that everything else is scored with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import Scans, named_generator
from bdgd.evaluation.benchmark import Effort, Method, images_at_once, noisy_scans, score, table_scans, true_images
from bdgd.evaluation.methods import remembering
from bdgd.evaluation.strata import object_pixels
from bdgd.evaluation.subjects import text_pictures
from bdgd.evaluation.timing import seconds_of
from bdgd.evaluation.uncertainty import score_uncertainty
from bdgd.inference import Posterior, reconstruct_and_keep, reconstruct_ensemble
from bdgd.metrics import auroc
from bdgd.models import Reconstructor
from bdgd.operators import RayTransform

#: The short training that all rows share, on the images of the preset sparse30-mfvi.
SETTING, PRESET = "sparse30", "sparse30-mfvi"
BLOCKS = 10
SCHEDULE = {"epochs": 5, "batch": 16, "learning_rate": 2e-3}
#: Of every so many views one is lost, and replaced by the mean of its neighbours.
LOST_VIEW_EVERY = 5
PATCH = 8  # the side of the patches whose likelihood tells draws that know about correlation from those that do not

PosteriorFunction = Callable[[Tensor], Posterior]


@dataclass(frozen=True)
class Training:
    """What one training has of its own."""

    last_layer: str
    kl_weight: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        return f"epistemic-{self.last_layer.replace('_', '-')}-kl{self.kl_weight:g}-seed{self.seed}"

    def changes(self) -> dict[str, dict[str, Any]]:
        """What it changes in the short schedule, by section of the preset."""
        return {"model": {"last_layer": self.last_layer}, "training": {"kl_weight": self.kl_weight}}


@dataclass(frozen=True)
class Row:
    """One posterior. laplace: the kl_weight of a closed-form last layer, where there is one; draw: as for `reconstruct`."""

    key: str
    name: str
    trainings: tuple[Training, ...]
    draw: str = "weights"
    laplace: float | None = None


def _mean_field(kl_weight: float, draw: str = "weights") -> Row:
    ending = "" if draw == "weights" else ", noise per pixel"
    key = f"mean-field-kl{kl_weight:g}" + ("" if draw == "weights" else "-pixels")
    return Row(key, f"mean field, kl_weight {kl_weight:g}{ending}", (Training("mean_field", kl_weight),), draw)


POINT = Training("point")
ROWS = (
    Row("point", "point weights (DGD)", (POINT,)),
    _mean_field(1),
    _mean_field(1, "pixels"),
    _mean_field(100),
    _mean_field(16384),
    _mean_field(16384, "pixels"),
    Row("full-covariance", "full covariance, kl_weight 1", (Training("full_covariance"),)),
    Row("dropout", "MC dropout", (Training("dropout"),)),
    Row("dropout-pixels", "MC dropout, features per pixel", (Training("dropout"),), "pixels"),
    Row("laplace-kl1", "closed-form Gaussian on DGD, kl_weight 1", (POINT,), laplace=1.0),
    Row("laplace-kl16384", "closed-form Gaussian on DGD, kl_weight 16384", (POINT,), laplace=16384.0),
    Row("ensemble", "deep ensemble of five DGD", tuple(replace(POINT, seed=seed) for seed in range(5))),
)


@dataclass(frozen=True)
class EpistemicScores:
    """The columns of a row; PSNR in dB, NLL in nats per pixel, seconds.

    nll, patch_nll (8 x 8) and coverage by level are over pixels of the object, ause and epistemic_part (of the variance) over all.
    text_auroc: how well the epistemic variance finds a text that no training image has. variance_growth and error_growth: the
    factors by which the mean epistemic variance and the mean squared error over the object's pixels grow when every fifth view is
    lost and interpolated. training_seconds are for all that had to be trained, sampling_seconds for one image.
    """

    psnr: float
    shepp_logan_psnr: float
    nll: float
    patch_nll: float | None
    coverage: dict[str, float]
    ause: float
    epistemic_part: float
    text_auroc: float
    variance_growth: float | None
    error_growth: float
    draws: int
    training_seconds: float
    sampling_seconds: float


def posterior_function(models: Sequence[Reconstructor], draw: str, draws: int, precision: str = "auto") -> PosteriorFunction:
    """From sinograms to the posterior of one model, or of several as an ensemble; the same draws for every batch."""

    def posterior(y: Tensor) -> Posterior:
        generator = named_generator("draws", 0)
        if len(models) == 1:
            return reconstruct_and_keep(models[0], y, draws, generator=generator, draw=draw, precision=precision)
        return reconstruct_ensemble(models, y, max(draws, len(models)), generator=generator, draw=draw, precision=precision)

    return posterior


def measure(posterior_of: PosteriorFunction, A: RayTransform, effort: Effort, training_seconds: float) -> EpistemicScores:
    """All columns of a row, on the ellipses and the Shepp-Logan image of the tables and on ellipses with a text."""
    scans = table_scans(A, effort.ellipses + 1)
    method = remembering(Method(lambda y: posterior_of(y).mean, posterior=posterior_of))
    assert method.posterior is not None
    quality = score(method, scans).summary()
    bars = score_uncertainty(method.posterior, scans[:-1], patches=(PATCH,))
    whole, inside = bars.strata["all"], bars.strata["object"]
    variance_growth, error_growth = growth(posterior_of, scans[:-1])
    draws, seconds = _pace(posterior_of, scans.sinograms)
    return EpistemicScores(
        psnr=quality["ellipses_psnr"],
        shepp_logan_psnr=quality["shepp_logan_psnr"],
        nll=inside.nll,
        patch_nll=inside.patch_nll.get(PATCH),
        coverage={f"{interval.level:g}": interval.coverage for interval in inside.intervals},
        ause=whole.ause,
        epistemic_part=whole.epistemic_part,
        text_auroc=text_auroc(posterior_of, A, effort.claim_images),
        variance_growth=variance_growth,
        error_growth=error_growth,
        draws=draws,
        training_seconds=training_seconds,
        sampling_seconds=seconds,
    )


def text_auroc(posterior_of: PosteriorFunction, A: RayTransform, images: int) -> float:
    """Mean over images of the AUROC of the epistemic variance as a detector of the text's pixels; 1/2 is chance."""
    x, mask = text_pictures(images, A.domain_shape[1])
    _, epistemic = _in_batches(posterior_of, noisy_scans(A, x, "figure noise").sinograms)
    return float(auroc(epistemic, mask.to(epistemic.device)).mean())


def growth(posterior_of: PosteriorFunction, scans: Scans) -> tuple[float | None, float]:
    """The factors by which epistemic variance and squared error grow with lost views; the first is None without any variance."""
    truth = true_images(scans)
    inside = object_pixels(truth)
    means = []
    for y in (scans.sinograms, with_lost_views(scans.sinograms)):
        mean, epistemic = _in_batches(posterior_of, y)
        means.append((float(epistemic[inside].double().mean()), float((mean - truth)[inside].double().square().mean())))
    (variance, error), (more_variance, more_error) = means
    return (more_variance / variance if variance > 0 else None), more_error / error


def with_lost_views(y: Tensor) -> Tensor:
    """Sinograms (B, 1, V, D) in which views 2, 7, 12, ... (a fifth of them) are the mean of the view before and the view after."""
    views = y.shape[2]
    if views < 4:
        raise InputError(f"a lost view is interpolated from those beside it, which needs at least 4 views, got {views}")
    lost = torch.arange(LOST_VIEW_EVERY // 2, views - 1, LOST_VIEW_EVERY, device=y.device)
    y = y.clone()
    y[:, :, lost] = (y[:, :, lost - 1] + y[:, :, lost + 1]) / 2
    return y


def _in_batches(posterior_of: PosteriorFunction, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and epistemic variance (B, 1, H, W)."""
    parts = [posterior_of(part) for part in y.split(images_at_once(y.device))]
    return torch.cat([part.mean for part in parts]), torch.cat([part.epistemic for part in parts])


def _pace(posterior_of: PosteriorFunction, y: Tensor) -> tuple[int, float]:
    """How many draws there are, and the seconds that one image takes in a batch, once everything has been used before."""
    y, made = y[: images_at_once(y.device)], list[Posterior]()
    seconds = seconds_of(lambda: made.append(posterior_of(y)), y.device)
    return made[0].number, seconds / len(y)
