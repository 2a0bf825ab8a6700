"""Methods scored on measured scans, of which nobody knows the truth: three ways to check an image without it.

- Matthews' correlation of the thresholded image with the organisers' segmentation, over the whole image and inside the disc only;
- PSNR and SSIM against a reference, which is a TV reconstruction from the odd views that the method did not get, with the value of
  acrylic in it as the data range. It shares the scanner's air offset and beam hardening with the input, but no noise;
- how often left-out views, as they were measured, lie in the predictive interval.

A method's name followed by `+linear` takes the same scans with their air offset and beam hardening corrected, and is compared with a
reference from corrected views. A model that carries a correction is only evaluated so: its values are those of corrected scans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import fbp, tv
from bdgd.data import Correction, Scans, match, named_generator
from bdgd.evaluation.challenge import Condition, MeasuredScan
from bdgd.evaluation.mismatch import CORRECTION, air_offset, photon_noise
from bdgd.evaluation.segmentation import filled_disc, inside_of, matthews, rotated, segmented
from bdgd.inference import Posterior, reconstruct
from bdgd.metrics import psnr, ssim
from bdgd.models import Reconstructor
from bdgd.operators import Geometry, RayTransform
from bdgd.storage import replacing

LINEAR = "+linear"
#: TV weights that are tried; acrylic is about 0.035 / mm, so these are 3e-5 to 3e-3 for values up to 1.
TV_WEIGHTS = (1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
#: Of the reference: from the 180 odd views of tc it misses the even ones by 0.0110, with 3e-6 by 0.0111 and with 1e-6 by 0.0118.
REFERENCE_WEIGHT = 1e-5
#: Arcs converge slowly: from FBP, MCC inside of 07a over 30 degrees is 0.151, 0.184, 0.186 after 300, 600, 2400 iterations.
TOLERANCE, MOST_ITERATIONS = 3e-3, 2000
LEVEL = 0.95
_PREDICTED = 5  # every so manieth left-out view is predicted
_DRAWS = 100  # fewest predictions from which quantiles are taken
_OBJECT = 0.1  # line integrals above it have passed the disc


@dataclass(frozen=True, eq=False)
class Found:
    """An image (1, 1, N, N), to be turned by `rotation` radians to lie as the object did, with its error bars where it has any.

    correction: what was done to the scan before, so that A applied to the image is what was measured, corrected.
    """

    image: Tensor
    rotation: float = 0.0
    posterior: Posterior | None = None
    geometry: Geometry | None = None  # of the posterior's frame
    correction: Correction | None = None


@dataclass(frozen=True)
class MeasuredScores:
    """What one image reached; None where a score does not apply: no hole to find, no reference, no error bars.

    coverage: part of the left-out rays through the disc that lie in the predictive interval of level 0.95; width: its mean width;
    noise_width: the width that the measurement noise alone would have.
    """

    mcc: float | None
    mcc_inside: float | None
    psnr: float | None = None
    ssim: float | None = None
    coverage: float | None = None
    width: float | None = None
    noise_width: float | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


#: A method on measured scans: the scan and the condition in, one result per setting that it tries (the weights of TV) out.
MeasuredMethod = Callable[[MeasuredScan, Condition], Iterator[tuple[str, Found]]]


def measured_fbp(device: torch.device, scan: MeasuredScan, condition: Condition) -> Iterator[tuple[str, Found]]:
    """Filtered back-projection with a Hann window on the ramp: measured scans are noisy."""
    seen = scan.seen(condition.used(scan.name))
    assert seen.geometry is not None
    yield "hann", Found(fbp(RayTransform(seen.geometry, device, strategy="matrix-free"), seen.sinograms.to(device), filter="hann"))


def measured_tv(device: torch.device, scan: MeasuredScan, condition: Condition) -> Iterator[tuple[str, Found]]:
    """Total variation for every weight, from the largest down, each from the image before."""
    seen = scan.seen(condition.used(scan.name))
    assert seen.geometry is not None
    A, y = RayTransform(seen.geometry, device), seen.sinograms.to(device)
    image = fbp(A, y, filter="hann").clamp(min=0)
    for weight in TV_WEIGHTS:
        image = tv(A, y, weight, start=image, tolerance=TOLERANCE, most_iterations=MOST_ITERATIONS)
        yield f"{weight:g}", Found(image)


def measured_model(model: Reconstructor, draws: int, seed: int, scan: MeasuredScan, condition: Condition) -> Iterator[tuple[str, Found]]:
    """A trained model: the scan's views are matched to its geometry, so an arc that starts elsewhere gives a turned image.

    A model that carries a correction gets it, unless the scan has it already.
    """
    geometry: Geometry = model.A.geometry  # type: ignore[attr-defined]
    seen, _ = match(scan.seen(condition.used(scan.name)), geometry)
    if seen.correction is None:
        seen = seen.corrected(model.correction)
    elif model.correction is not None:
        require_same(model.correction, seen.correction)
    generator = named_generator("draws", seed)
    posterior = reconstruct(model, seen.sinograms.to(model.device), draws, generator=generator)
    yield f"{posterior.number} draws", Found(posterior.mean, seen.rotation, posterior, geometry, seen.correction)


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
    """The references of scans and conditions, made when they are asked for and kept in a folder, since each takes as long as TV."""

    def __init__(self, folder: Path, device: torch.device):
        self.folder, self.device = folder, device

    def __call__(self, scan: MeasuredScan, condition: Condition, *, linear: bool = False) -> Tensor:
        """(1, 1, N, N) of a scan, which is `corrected` already where linear says so."""
        which = "odd" if condition.views is not None else condition.name
        path = self.folder / f"{scan.name}-{which}{'-linear' if linear else ''}.npy"
        if path.is_file():
            return torch.from_numpy(np.load(path, allow_pickle=False)).to(self.device)
        image = reference(scan, condition, self.device)
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, image.cpu().numpy())
        return image


def reference(scan: MeasuredScan, condition: Condition, device: torch.device) -> Tensor:
    """(1, 1, N, N) TV from the odd views that the condition leaves out."""
    seen = scan.seen(condition.left_out(scan.name))
    assert seen.geometry is not None
    A, y = RayTransform(seen.geometry, device), seen.sinograms.to(device)
    start = fbp(A, y, filter="hann").clamp(min=0)
    return tv(A, y, REFERENCE_WEIGHT, start=start, tolerance=TOLERANCE, most_iterations=MOST_ITERATIONS)


def score_measured(found: Found, scan: MeasuredScan, condition: Condition, truth: Tensor | None, seconds: float) -> MeasuredScores:
    """All scores of one image; truth: the reference, where it is wanted."""
    estimate, inside = segmented(found.image, found.rotation), inside_of(filled_disc(scan.segmentation))
    scores = MeasuredScores(matthews(estimate, scan.segmentation), matthews(estimate, scan.segmentation, inside), seconds=seconds)
    if truth is not None:
        acrylic, image = acrylic_value(truth, scan.segmentation), rotated(found.image, found.rotation).to(truth)
        scores = replace(scores, psnr=float(psnr(image, truth, acrylic)), ssim=float(ssim(image, truth, acrylic)))
    if found.posterior is not None and found.geometry is not None:
        lower, upper, y, noise = predicted_views(found, scan, condition)
        through = y > _OBJECT
        held = ((lower <= y) & (y <= upper))[through].double().mean()
        widths = [float(width[through].double().mean()) for width in (upper - lower, noise)]
        scores = replace(scores, coverage=float(held), width=widths[0], noise_width=widths[1])
    return scores


def disc_scores(scan: MeasuredScan) -> MeasuredScores:
    """Of the disc without a single hole, which every method should beat."""
    disc = filled_disc(scan.segmentation)
    inside = inside_of(disc)
    return MeasuredScores(matthews(disc, scan.segmentation), matthews(disc, scan.segmentation, inside))


def acrylic_value(image: Tensor, segmentation: Tensor) -> float:
    """The median of the image (1, 1, N, N) where all of a pixel is acrylic: the range of its values."""
    whole = torch.nn.functional.adaptive_avg_pool2d(segmentation[None, None].float(), image.shape[-1]) > 0.999
    return float(image.cpu()[whole].median())


@torch.no_grad()
def predicted_views(found: Found, scan: MeasuredScan, condition: Condition) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lower and upper end of the predictive interval of some left-out views, what was measured there, and the width from noise alone.

    Each (1, 1, V, D), in line integrals as they were measured: where the photons were counted, before any correction. A prediction is
    A (draw + aleatoric noise), hardened as the correction of the image's scan has it, + air + photon noise; air and photons are
    measured on the used views. A is that of the turned geometry, so that no draw has to be turned.
    """
    posterior, model = found.posterior, found.geometry
    assert posterior is not None and model is not None
    left, used = scan.seen(condition.left_out(scan.name)[::_PREDICTED]), _as_measured(scan.seen(condition.used(scan.name)))
    assert left.geometry is not None
    device, air, sigma = posterior.mean.device, air_offset(used), photon_noise(used)
    turned = replace(left.geometry, angles=tuple(angle - found.rotation for angle in left.geometry.angles))
    A = RayTransform(replace(turned, image_size=model.image_size, pixel_size=model.pixel_size), device)
    generator, spread, predictions = named_generator("predicted views", posterior.seed), posterior.aleatoric.sqrt(), []
    for draw in posterior.draws():
        for _ in range(max(1, -(-_DRAWS // posterior.number))):  # few draws are predicted often enough for quantiles
            clean = A(draw + spread * _normal(draw, generator))
            clean = clean if found.correction is None else found.correction.undone(clean)
            predictions.append((clean + air + sigma * torch.exp(clean / 2) * _normal(clean, generator)).cpu())
    y, part = _as_measured(left), (1 - LEVEL) / 2
    lower, upper = torch.from_numpy(np.quantile(torch.stack(predictions).numpy(), (part, 1 - part), axis=0)).to(y)
    noise = 2 * torch.special.ndtri(torch.tensor(1 - part)) * sigma * torch.exp(y / 2)
    return lower, upper, y, noise


def _as_measured(scans: Scans) -> Tensor:
    """(1, 1, V, D) the line integrals from before a correction, but for the air that it set to 0."""
    return scans.sinograms if scans.correction is None else scans.correction.undone(scans.sinograms)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Made on the CPU, so that every device predicts the same."""
    return torch.randn(like.shape, generator=generator).to(like)


def evaluate_scan(
    name: str, method: MeasuredMethod, scan: MeasuredScan, condition: Condition, references: References | None
) -> dict[str, Any]:
    """The scores of a method on one scan, by the setting that it tried: {"1e-05": {"mcc": ...}, ...}."""
    linear = name.endswith(LINEAR)
    scan = corrected(scan) if linear else scan
    truth = None if references is None else references(scan, condition, linear=linear)
    results, start = {}, time.perf_counter()
    for setting, found in method(scan, condition):
        results[setting] = score_measured(found, scan, condition, truth, time.perf_counter() - start).to_dict()
        start = time.perf_counter()
    return results
