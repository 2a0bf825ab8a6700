"""Scoring a method on the paper's protocol: 100 ellipse images and Shepp-Logan, each apart; 128 x 128 pixels and 1 % noise in its settings.

Whatever a method chooses, it chooses on `validation_scans`; `table_scans` are for the numbers alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.data import GaussianNoise, Scans, ellipse_images, head_images, named_generator, simulate, table_images
from bdgd.evaluation.strata import PosteriorLike
from bdgd.evaluation.timing import synchronise
from bdgd.metrics import psnr, ssim
from bdgd.operators import Geometry, ParallelBeam, RayTransform

#: The paper's settings by name: two tables, and the short arc of its Figures 5 and 6; and that of the preset `small`.
SETTINGS: dict[str, Geometry] = {
    "sparse30": ParallelBeam.sparse(views=30),
    "limited120": ParallelBeam.limited(degrees=120),
    "limited60": ParallelBeam.limited(degrees=60),
    "small": ParallelBeam.sparse(image_size=64, views=20),
}
NOISE = GaussianNoise(0.01)
SMALL_NOISE = GaussianNoise(0.1)


def images_at_once(device: torch.device) -> int:
    """How many images are reconstructed together, and so between two reports of progress."""
    return 50 if device.type == "cuda" else 5


@dataclass(frozen=True)
class Effort:
    """How much work goes into the results: test ellipses, Monte-Carlo draws, and ellipse images that a claim is averaged over."""

    ellipses: int = 100
    draws: int = 100
    claim_images: int = 10
    quick: bool = False

    def note(self) -> str:
        """What must stand beside every result that is not the full one; empty for the full one."""
        return f"QUICK: {self.ellipses} test ellipses and {self.draws} draws instead of 100 and 100" if self.quick else ""


FULL = Effort()
#: What two cores finish in minutes from shipped weights.
QUICK = Effort(ellipses=6, draws=5, claim_images=2, quick=True)


#: Tells of progress: images done since it was called last, and the figure that they have reached together so far.
Told = Callable[[int, float], None]


@dataclass(frozen=True)
class Method:
    """A reconstruction ready to be scored: sinograms (B, 1, V, D) -> images (B, 1, H, W), and what was chosen for it on which data.

    reconstruct_head: where something else was chosen for Shepp-Logan than for ellipses.
    posterior: sinograms -> images with error bars, where the method has any.
    """

    reconstruct: Callable[[Tensor], Tensor]
    recipe: dict[str, Any] = field(default_factory=dict)
    reconstruct_head: Callable[[Tensor], Tensor] | None = None
    posterior: Callable[[Tensor], PosteriorLike] | None = None


@dataclass(frozen=True)
class Scores:
    """One value per image in the order of `table_scans`: ellipses, then Shepp-Logan; and the seconds for all of them."""

    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    seconds: float

    def summary(self) -> dict[str, float]:
        """The mean over the ellipse images, and Shepp-Logan, which is the last."""
        ellipses = len(self.psnr) - 1
        return {
            "ellipses_psnr": sum(self.psnr[:-1]) / ellipses,
            "ellipses_ssim": sum(self.ssim[:-1]) / ellipses,
            "shepp_logan_psnr": self.psnr[-1],
            "shepp_logan_ssim": self.ssim[-1],
        }


def noise_of(A: RayTransform) -> GaussianNoise:
    """The noise of the setting with this geometry; the paper's for any other."""
    return SMALL_NOISE if A.geometry == SETTINGS["small"] else NOISE


def noisy_scans(A: RayTransform, images: Tensor, stream: str, seed: int = 0) -> Scans:
    """Scans of the images (B, 1, H, W) with the setting's noise, drawn from the stream of that name, on the operator's device."""
    return simulate(A, images, noise_of(A), generator=named_generator(stream, seed)).to(A.device)


def true_images(scans: Scans) -> Tensor:
    """The scans' images (B, 1, H, W), which a score needs; raise where they have none."""
    if scans.images is None:
        raise InputError("a score needs the true images, but these scans have none; simulate them, or read a file that holds them")
    return scans.images


def table_scans(A: RayTransform, images: int = 101, seed: int = 0) -> Scans:
    """Scans of the fixed test set, or of its first `images` - 1 ellipse images and Shepp-Logan; the seed is the noise's.

    The noise of an image does not depend on how many there are.
    """
    scans = noisy_scans(A, table_images(A.domain_shape[1]), "test noise", seed)
    if not 2 <= require_count(images, "images") <= len(scans):
        raise InputError(f"images must be from 2 to {len(scans)}, ellipses and Shepp-Logan together, got {images}")
    return scans[[*range(images - 1), len(scans) - 1]]


def validation_scans(A: RayTransform, images: int, seed: int = 0) -> Scans:
    """Scans of the first ellipse images of the validation set, which no table scores."""
    return noisy_scans(A, ellipse_images("validation", images, A.domain_shape[1], seed), "validation noise", seed)


def head_validation_scans(A: RayTransform, images: int, seed: int = 0) -> Scans:
    """Scans of relatives of Shepp-Logan, to choose on what suits it without looking at it."""
    return noisy_scans(A, head_images("validation", images, A.domain_shape[1], seed), "validation head noise", seed)


def score(method: Method, scans: Scans, report: Told | None = None) -> Scores:
    """PSNR and SSIM of every scan of `table_scans`, whose last is Shepp-Logan; only the reconstruction is timed.

    `report(images, mean PSNR so far)` is called now and then.
    """
    images, seconds = true_images(scans), 0.0
    psnrs: list[float] = []
    ssims: list[float] = []
    head, batch = len(scans) - 1, images_at_once(scans.sinograms.device)
    parts = [(slice(first, min(first + batch, head)), method.reconstruct) for first in range(0, head, batch)]
    for part, reconstruct in [*parts, (slice(head, head + 1), method.reconstruct_head or method.reconstruct)]:
        truth = images[part]
        start = time.perf_counter()
        estimate = reconstruct(scans.sinograms[part])
        synchronise(estimate.device)
        seconds += time.perf_counter() - start
        psnrs += psnr(estimate, truth).tolist()
        ssims += ssim(estimate, truth).tolist()
        if report is not None:
            report(len(truth), sum(psnrs) / len(psnrs))
    return Scores(tuple(psnrs), tuple(ssims), seconds)
