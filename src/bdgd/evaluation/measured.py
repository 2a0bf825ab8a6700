"""Images of measured scans, of which nobody knows the truth: three ways to check one without it.

- Matthews' correlation of the thresholded image with the organisers' segmentation, over the whole image and inside the disc only;
- PSNR and SSIM against a reference, which is a TV reconstruction from every second view that the method did not get, with the value of
  acrylic in it as the data range. It shares the scanner's air offset and beam hardening with the input, but no noise;
- how often left-out views, as they were measured, lie in the predictive interval.

All scans of a condition are reconstructed as one batch (`measured_methods`), with their arcs turned to start at the same angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bdgd.data import Correction, Scans, named_generator
from bdgd.data.estimates import photon_noise
from bdgd.evaluation.challenge import MeasuredScan, ViewCondition
from bdgd.evaluation.mismatch import air_offset
from bdgd.evaluation.segmentation import filled_disc, matthews, rotated, segmented
from bdgd.inference import Posterior
from bdgd.inference.regions import shared_std
from bdgd.metrics import psnr, ssim
from bdgd.operators import Geometry, RayTransform

LEVEL = 0.95
_PREDICTED = 5  # of the left-out views, every fifth is predicted
_DRAWS = 100  # fewest predictions from which quantiles are taken
_OBJECT = 0.1  # line integrals above it have passed through the disc


@dataclass(frozen=True, eq=False)
class Reconstructed:
    """Images (B, 1, N, N), one per scan. Turned by its entry of `rotations` (radians), an image lies as the object did.

    posterior: the images with their error bars, where the method has any; their rotations differ only by where each arc starts.
    correction: what was done to the scans before, so that A applied to an image is what was measured, corrected.
    """

    images: Tensor
    rotations: tuple[float, ...]
    posterior: Posterior | None = None
    geometry: Geometry | None = None  # of the posterior's frame
    correction: Correction | None = None


@dataclass(frozen=True)
class MeasuredScores:
    """What one image reached; None where a score does not apply: no hole to find, no reference, no error bars.

    coverage: part of the left-out rays through the disc that lie in the predictive interval of level 0.95; width: its mean width;
    noise_width: the width that the measurement noise alone would have. seconds: of the batch, divided by its images.
    """

    mcc: float | None
    mcc_inside: float | None
    psnr: float | None = None
    ssim: float | None = None
    coverage: float | None = None
    width: float | None = None
    noise_width: float | None = None
    seconds: float = 0.0


def score_measured(
    found: Reconstructed, scans: Sequence[MeasuredScan], condition: ViewCondition, truths: Tensor | None, seconds: float
) -> list[MeasuredScores]:
    """All scores of every image; truths (B, 1, N, N): the references, where they are wanted, as if their arcs started at 0 degrees."""
    scores = []
    for b, (scan, rotation) in enumerate(zip(scans, found.rotations, strict=True)):
        image = found.images[b : b + 1]
        estimate = segmented(image, rotation)
        own = MeasuredScores(matthews(estimate, scan.segmentation), matthews(estimate, scan.segmentation, scan.inside), seconds=seconds)
        if truths is not None:
            truth, turn = truths[b : b + 1], condition.rotation(scan.name)
            acrylic = acrylic_value(rotated(truth, turn), scan.segmentation)
            fine = rotated(image.to(truth), 0.0, truth.shape[-1])  # a model may have larger pixels than the reference
            pair = fine, rotated(truth, turn - rotation), acrylic  # the reference lies as the image does
            own = replace(own, psnr=float(psnr(*pair)), ssim=float(ssim(*pair)))
        scores.append(own)
    if found.posterior is None:
        return scores
    held = [_held(*views) for views in predicted_views(found, scans, condition)]
    return [replace(own, coverage=c, width=w, noise_width=n) for own, (c, w, n) in zip(scores, held, strict=True)]


def _held(lower: Tensor, upper: Tensor, y: Tensor, noise: Tensor) -> tuple[float, float, float]:
    """Which part of the rays through the disc lies in its interval, the mean width of that, and the width from noise alone."""
    through = y > _OBJECT
    means = (part[through].double().mean() for part in ((lower <= y) & (y <= upper), upper - lower, noise))
    held, width, of_noise = (float(mean) for mean in means)
    return held, width, of_noise


def disc_scores(scan: MeasuredScan) -> MeasuredScores:
    """Of the disc without a single hole, which every method should beat."""
    disc = filled_disc(scan.segmentation)
    return MeasuredScores(matthews(disc, scan.segmentation), matthews(disc, scan.segmentation, scan.inside))


def acrylic_value(image: Tensor, segmentation: Tensor) -> float:
    """The median of the image (1, 1, N, N) where all of a pixel is acrylic: the range of its values."""
    whole = torch.nn.functional.adaptive_avg_pool2d(segmentation[None, None].float(), image.shape[-1]) > 0.999
    return float(image.cpu()[whole].median())


@torch.no_grad()
def predicted_views(
    found: Reconstructed, scans: Sequence[MeasuredScan], condition: ViewCondition
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Per scan: lower and upper end of the predictive interval of some left-out views, what was measured there, the width from noise alone.

    Each (1, 1, V, D), in line integrals as they were measured: where the photons were counted, before any correction. A prediction is
    A (draw + aleatoric noise), hardened as the correction of the image's scan has it, + air + photon noise; air and photons are
    measured on the used views. The noise is independent from pixel to pixel, and where the model is calibrated it has a smooth part
    too, as errors of regions do (`bdgd.inference.regions`): along a ray the former cancels. A is that of the turned geometry, so that
    no draw has to be turned. The scans share their random numbers, as they share the weights of a draw, so that none depends on the
    others.
    """
    left = condition.counted_from_start(scans, lambda name: condition.left_out(name)[::_PREDICTED])
    used = condition.counted_from_start(scans, condition.used)
    y, seen = _as_measured(left), _as_measured(used).split(1)
    air, sigma = (torch.tensor([measure(one) for one in seen])[:, None, None, None] for measure in (air_offset, photon_noise))
    part = (1 - LEVEL) / 2
    noise = 2 * torch.special.ndtri(torch.tensor(1 - part)) * sigma * torch.exp(y / 2)
    predictions = _predictions(found, left, found.rotations[0] - condition.rotation(scans[0].name), air, sigma)
    views = []
    for b in range(len(y)):
        ends = np.quantile(predictions[:, b : b + 1].cpu().numpy(), (part, 1 - part), axis=0)
        lower, upper = torch.from_numpy(ends).to(y)
        views.append((lower, upper, y[b : b + 1], noise[b : b + 1]))
    return views


def _predictions(found: Reconstructed, left: Scans, rotation: float, air: Tensor, sigma: Tensor) -> Tensor:
    """(P, B, 1, V, D) what the left-out views may read, one or more times per draw; rotation: of the images from the start of the arcs."""
    posterior, model = found.posterior, found.geometry
    assert posterior is not None and model is not None and left.geometry is not None
    turned = replace(left.geometry, angles=tuple(angle - rotation for angle in left.geometry.angles))
    A = RayTransform(replace(turned, image_size=model.image_size, pixel_size=model.pixel_size), posterior.mean.device)
    generator, spread, predictions = named_generator("predicted views", posterior.seed), posterior.aleatoric.sqrt(), []
    air, sigma, smooth = air.to(spread), sigma.to(spread), _smooth_part(posterior)
    for draw in posterior.draws():
        for _ in range(max(1, -(-_DRAWS // posterior.number))):  # few draws are predicted often enough for quantiles
            image = draw + spread * _normal(draw, generator)
            clean = A(image if smooth is None else image + smooth * float(torch.randn((), generator=generator)))
            clean = clean if found.correction is None else found.correction.undone(clean)
            predictions.append(clean + air + sigma * torch.exp(clean / 2) * _normal(clean, generator))
    return torch.stack(predictions)


def _smooth_part(posterior: Posterior) -> Tensor | None:
    """(B, 1, N, N) the standard deviation of what neighbouring pixels share; None where no calibration has measured it."""
    calibration = posterior.calibration_in_force(None)
    if calibration is None or calibration.regions is None:
        return None
    return shared_std(posterior.aleatoric.sqrt(), calibration.regions.window)


def _as_measured(scans: Scans) -> Tensor:
    """(B, 1, V, D) the line integrals from before a correction, but for the air that it set to 0."""
    return scans.sinograms if scans.correction is None else scans.correction.undone(scans.sinograms)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """(1, 1, n, m) for a batch, made on the CPU, so that every device predicts the same."""
    return torch.randn((1, *like.shape[1:]), generator=generator).to(like)
