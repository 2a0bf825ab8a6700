"""What is measured of one case of the honesty page: quality, and each spread beside the error it should be as large as."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from bdgd.data import Scans
from bdgd.evaluation.benchmark import Effort, images_at_once, table_scans, true_images
from bdgd.evaluation.epistemic import PATCH, PosteriorFunction
from bdgd.evaluation.strata import object_pixels
from bdgd.inference import Moments, Posterior
from bdgd.metrics import PixelMean, psnr
from bdgd.operators import RayTransform


@dataclass(frozen=True)
class HonestyScores:
    """One case: PSNR in dB, all else in the unit of the image, root mean squares over the pixels of the test ellipses' objects.

    error: of the mean. epistemic_std, total_std: of the posterior. patch_error, patch_std: the same error and epistemic std for
    the mean of an 8 x 8 patch that lies in the object, None where no patch does.
    """

    psnr: float
    worst_psnr: float
    shepp_logan_psnr: float
    error: float
    epistemic_std: float
    total_std: float
    patch_error: float | None
    patch_std: float | None
    draws: int


def measure_case(posterior_of: PosteriorFunction, A: RayTransform, effort: Effort) -> HonestyScores:
    """All columns of a case, on the ellipses and the Shepp-Logan image of the tables."""
    scans = table_scans(A, effort.ellipses + 1)
    ellipses, head = scans[:-1], scans[-1:]
    sums, quality, draws = _Sums(), list[float](), 1
    for posterior, truth in _posteriors(posterior_of, ellipses):
        sums.add(posterior, truth)
        quality += psnr(posterior.mean, truth).tolist()
        draws = posterior.number
    ((of_head, true_head),) = list(_posteriors(posterior_of, head))
    return HonestyScores(
        psnr=sum(quality) / len(quality),
        worst_psnr=min(quality),
        shepp_logan_psnr=float(psnr(of_head.mean, true_head)),
        draws=draws,
        **sums.roots(),
    )


def _posteriors(posterior_of: PosteriorFunction, scans: Scans) -> Iterator[tuple[Posterior, Tensor]]:
    """The posteriors of some images at a time, with the true images."""
    step = images_at_once(scans.sinograms.device)
    for y, truth in zip(scans.sinograms.split(step), true_images(scans).split(step), strict=True):
        yield posterior_of(y), truth


class _Sums:
    """Mean squares over pixels and patches of the object, batch after batch."""

    def __init__(self) -> None:
        self.error, self.epistemic, self.total, self.patch_error, self.patch_variance = (PixelMean() for _ in range(5))

    def add(self, posterior: Posterior, truth: Tensor) -> None:
        inside, error = object_pixels(truth), posterior.mean - truth
        self.error.add(error.square(), inside)
        self.epistemic.add(posterior.epistemic, inside)
        self.total.add(posterior.epistemic + posterior.aleatoric, inside)
        within = F.avg_pool2d(inside.float(), PATCH) == 1
        of_draws = Moments()
        for draw in posterior.draws():
            of_draws.add(F.avg_pool2d(draw, PATCH))
        self.patch_error.add(F.avg_pool2d(error, PATCH).square(), within)
        self.patch_variance.add(of_draws.variance(), within)

    def roots(self) -> dict[str, Any]:
        names = ("error", "epistemic_std", "total_std", "patch_error", "patch_std")
        means = (self.error, self.epistemic, self.total, self.patch_error, self.patch_variance)
        return {name: mean.result().pooled ** 0.5 if mean.pixels else None for name, mean in zip(names, means, strict=True)}
