"""A measured tooth with a third of its views: two synchrotron slices in parallel beam, whose axis of rotation is off the middle.

The file is TomoPy's tooth as an `.npz`: `sino` (2, V, D) line integrals, `theta_deg` (V,), `centre_px`, the detector that sees the axis.
Every third view goes in; the others make the reference and are to be predicted. What is chosen for one slice is chosen on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.classical import fbp, tv
from bdgd.data import Scans, match, named_generator
from bdgd.data.axis import offset_of_axis
from bdgd.data.formats.contents import named_errors
from bdgd.evaluation.known_truth import chosen_elsewhere
from bdgd.inference import reconstruct
from bdgd.metrics import psnr, ssim
from bdgd.models import Reconstructor, ray_transform
from bdgd.operators import Geometry, ParallelBeam, RayTransform
from bdgd.storage import read_kept

WEIGHTS = (1e-5, 3e-6, 1e-6, 3e-7)
REFERENCE_WEIGHT = 1e-6
_SIZE, _PIXEL = 256, 2.0  # pixels of two detectors: the tooth fills a third of the detector line, the noise a detector
_LARGEST = 2**28  # bytes


@dataclass(frozen=True)
class ToothScores:
    """One method on one slice. missed: root mean square by which A x misses the left-out views, relative to that of these views."""

    method: str
    slice: int
    setting: str
    psnr: float
    ssim: float
    missed: float


@dataclass(frozen=True, eq=False)
class Tooth:
    """The slices with the third of the views that is used, and with those that are left out."""

    used: Scans
    left_out: Scans


def read_tooth(path: Path) -> Tooth:
    """Both slices, in lengths of one detector."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the tooth as .npz with sino, theta_deg and centre_px")
    with named_errors(path, "npz"), np.load(path, allow_pickle=False) as file:
        if missing := sorted({"sino", "theta_deg", "centre_px"} - set(file.files)):
            raise InputError(f"it needs the key {missing[0]!r}")
        sino, degrees, axis = file["sino"], file["theta_deg"], require_number(file["centre_px"], "centre_px")
    if sino.ndim != 3 or degrees.shape != sino.shape[1:2] or sino.nbytes > _LARGEST:
        raise InputError(f"{path}: sino must be (slices, views, detectors) with an angle per view, got {sino.shape} and {degrees.shape}")
    y = torch.from_numpy(sino.astype(np.float32))[:, None]
    geometry: Geometry = ParallelBeam(
        image_size=(_SIZE, _SIZE), angles=tuple(np.deg2rad(degrees.astype(np.float64)).tolist()), detectors=y.shape[-1], pixel_size=_PIXEL
    )
    geometry = replace(geometry, detector_offset=offset_of_axis(axis, geometry))
    numbers = np.arange(geometry.views)
    used, left = numbers[numbers % 3 == 0].tolist(), numbers[numbers % 3 != 0].tolist()
    return Tooth(Scans(y[:, :, used].contiguous(), geometry[used]), Scans(y[:, :, left].contiguous(), geometry[left]))


def evaluate_tooth(
    tooth: Tooth, device: torch.device, model: Reconstructor | None = None, draws: int = 100, seed: int = 0
) -> tuple[list[ToothScores], dict[str, Tensor]]:
    """The scores of every method on every slice, and the images (B, 1, H, W) by method, with the reference."""
    A, left = _operator(tooth.used, device), _operator(tooth.left_out, device)
    y, y_left = tooth.used.sinograms.to(device), tooth.left_out.sinograms.to(device)
    truth = tv(left, y_left, REFERENCE_WEIGHT, start=fbp(left, y_left, filter="hann").clamp(min=0))
    ranges = [float(image.quantile(0.995)) for image in truth]
    images, settings = {"reference": truth}, {}
    images["FBP"], settings["FBP"] = fbp(A, y, filter="hann"), ["hann"] * len(y)
    images["TV"], settings["TV"] = _chosen_tv(A, y, truth, ranges)
    if model is not None:
        images["BDGD"], settings["BDGD"] = _by_model(tooth, model, draws, seed).to(device), [f"{draws} draws"] * len(y)
    scores = []
    for name, chosen in settings.items():
        missed = (left(images[name]) - y_left).square().mean((1, 2, 3)).sqrt() / y_left.square().mean((1, 2, 3)).sqrt()
        for b, most in enumerate(ranges):
            pair = images[name][b : b + 1], truth[b : b + 1], most
            scores.append(ToothScores(name, b, chosen[b], float(psnr(*pair)), float(ssim(*pair)), float(missed[b])))
    return scores, images


def read_tooth_scores(path: Path) -> list[ToothScores]:
    """What was scored before and kept as JSON; empty where it was not."""
    return read_kept(path, "scores of the tooth", lambda kept: [ToothScores(**entry) for entry in kept["scores"]], [])


def tooth_table(scores: Sequence[ToothScores]) -> str:
    """The scores as a Markdown table, a row per method and slice."""
    lines = ["| | slice | setting | PSNR (dB) | SSIM | left-out views missed by |", "|---|---:|---|---:|---:|---:|"]
    lines += [f"| {s.method} | {s.slice} | {s.setting} | {s.psnr:.2f} | {s.ssim:.3f} | {s.missed:.2%} |" for s in scores]
    return "\n".join(lines)


def _operator(scans: Scans, device: torch.device) -> RayTransform:
    assert scans.geometry is not None
    return RayTransform(scans.geometry, device)


def _chosen_tv(A: RayTransform, y: Tensor, truth: Tensor, ranges: Sequence[float]) -> tuple[Tensor, list[str]]:
    """TV of every slice with the weight that is best on the mean PSNR of the other slices."""
    image, tried = fbp(A, y, filter="hann").clamp(min=0), []
    for weight in WEIGHTS:
        image = tv(A, y, weight, start=image)
        tried.append(image)
    scores = [[float(psnr(images[b : b + 1], truth[b : b + 1], most)) for b, most in enumerate(ranges)] for images in tried]
    quality = torch.tensor(scores, dtype=torch.float64)  # (weights, slices)
    best = chosen_elsewhere(quality) if len(y) > 1 else [int(quality.argmax())]  # a slice without others has to choose for itself
    return torch.cat([tried[w][b : b + 1] for b, w in enumerate(best)]), [f"{WEIGHTS[w]:g}" for w in best]


def _by_model(tooth: Tooth, model: Reconstructor, draws: int, seed: int) -> Tensor:
    geometry = ray_transform(model).geometry
    seen = match(tooth.used, geometry)[0].corrected(model.correction)
    if geometry.image_size != (_SIZE, _SIZE):
        raise InputError(f"the tooth is scored on {_SIZE} x {_SIZE} pixels of {_PIXEL:g}, the model has {geometry.image_size}")
    if model.correction is not None and model.correction.hardening:
        raise InputError("the model undoes a beam hardening, which synchrotron light does not have; give one that was trained without")
    return reconstruct(model, seen.sinograms.to(model.device), draws, generator=named_generator("draws", seed)).mean
