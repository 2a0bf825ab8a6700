"""What choosing on the test set buys: the score of the best of several candidates, chosen on the images it is scored on or on others.

With m[c, s] the mean PSNR of candidate c on the test set s, one of several disjoint ones of equal size, and c_s the best candidate there,

    gain(s) = m[c_s, s] - mean over t != s of m[c_t, s],

both on the same images, so that it does not matter how hard these are. It is never negative, and 0 where every set chooses alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import stdev
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.data import Scans, ellipse_images, named_generator, shepp_logan
from bdgd.evaluation.benchmark import Effort, images_at_once, noisy_scans, true_images
from bdgd.evaluation.epistemic import POINT, Training
from bdgd.evaluation.honesty import OURS
from bdgd.inference import reconstruct_blocks
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent
from bdgd.operators import RayTransform

AUTHORS_IMAGES = 10  # ellipse images in the authors' test set
LEAST_SETS = 3  # of two, leaving one out leaves nothing to compare, so nothing tells the error of the gain


@dataclass(frozen=True)
class Selection:
    """How the choice on test images is tried: on `pool` images, cut into disjoint test sets of each of the sizes."""

    pool: int
    sizes: tuple[int, ...]
    draws: int

    @classmethod
    def of(cls, effort: Effort) -> Selection:
        """Ten test sets as large as that of the tables, and enough for the authors'; a few draws are enough for a mean."""
        pool, sizes = max(10 * effort.ellipses, LEAST_SETS * AUTHORS_IMAGES), {AUTHORS_IMAGES, effort.ellipses}
        return cls(pool, tuple(sorted(sizes)), min(10, effort.draws))


@dataclass(frozen=True)
class Optimism:
    """What choosing among `candidates` on test sets of `images` images buys, in dB.

    gain: mean over the sets; error: its standard error, sets as the unit, by the jackknife. agreement: of all pairs of sets, the share
    that choose alike. spread: standard deviation over the sets of the mean PSNR of the candidate that is best on all images.
    """

    candidates: int
    images: int
    sets: int
    gain: float
    error: float
    agreement: float
    spread: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def optimism(quality: Tensor, images: int) -> Optimism:
    """From the PSNR (C, N) of C candidates on N images, which are cut into disjoint test sets of `images` each.

    The gains of n sets are not independent, since each set's choice is in all of them: their spread over sqrt(n) is too small where the
    candidates differ. With g_j the mean gain of the sets but j, the standard error is that of the jackknife,
    sqrt((n - 1) / n * sum_j (g_j - mean g)^2).
    """
    candidates, available = quality.shape
    sets = available // require_count(images, "images")
    if sets < LEAST_SETS:
        raise InputError(f"at least {LEAST_SETS} test sets are compared, but {available} images make {sets} of {images}; take smaller sets")
    means = quality.double()[:, : sets * images].reshape(candidates, sets, images).mean(2)  # (C, sets)
    best = means.argmax(0)  # (sets,)
    scores = means[best]  # scores[t, s]: what the choice of set t scores on set s
    lead = scores.diagonal() - scores  # lead[t, s]: of the choice of s over that of t, on s
    gain = lead.sum() / (sets * (sets - 1))  # a set's own choice adds nothing
    others = (lead.sum() - lead.sum(0) - lead.sum(1)) / ((sets - 1) * (sets - 2))  # g_j: neither j's images nor its choice
    error = (sets - 1) * float(others.std()) / sets**0.5
    alike = float((best[:, None] == best).sum() - sets) / (sets * (sets - 1))
    overall = means[means.mean(1).argmax()]
    return Optimism(candidates, images, sets, float(gain), error, alike, float(overall.std()))


def pool_scans(A: RayTransform, images: int, seed: int = 0) -> Scans:
    """Scans of the first ellipse images of the test set, as many as wanted, and of Shepp-Logan."""
    size = A.domain_shape[1]
    x = torch.cat((ellipse_images("test", images, size), shepp_logan(size)))
    return noisy_scans(A, x, "test noise", seed)


def quality_by_block(model: DeepGradientDescent, scans: Scans, draws: int, seed: int = 0) -> Tensor:
    """PSNR (K, B) in dB of the mean of the draws after every block, on the CPU."""
    blocks: Sequence[int] = range(1, len(model.blocks) + 1)
    parts, step = [], images_at_once(scans.sinograms.device)
    for y, truth in zip(scans.sinograms.split(step), true_images(scans).split(step), strict=True):
        found = reconstruct_blocks(model, y, blocks, draws, generator=named_generator("draws", seed))
        parts.append(torch.stack([psnr(found[block].mean, truth) for block in blocks]).cpu())
    return torch.cat(parts, 1)


def families(quality: Mapping[Training, Tensor]) -> dict[str, Tensor]:
    """What is chosen among, by name, from the PSNR (K, N) of every training after every block: (C, N) each."""
    found = {}
    if OURS in quality:
        found["the number of blocks"] = quality[OURS]
    for name, members in {
        "the seed": [each for each in quality if each.last_layer == POINT.last_layer],
        "the recipe": [each for each in quality if each.seed == 0],
    }.items():
        if len(members) > 1:
            found[name] = torch.stack([quality[each][-1] for each in members])
    return {**found, "recipe, seed and blocks": torch.cat(list(quality.values()))}


def selection_scores(quality: Mapping[Training, Tensor], selection: Selection) -> dict[str, Any]:
    """What choosing on test images buys in each family, and how far PSNR differs where nothing does but the seed.

    quality: PSNR (K, pool + 1) of every training, the last image Shepp-Logan.
    """
    ellipses = families({training: values[:, :-1] for training, values in quality.items()})
    chosen = {name: [optimism(values, size).to_dict() for size in selection.sizes] for name, values in ellipses.items()}
    seeds = [values[-1] for training, values in quality.items() if training.last_layer == POINT.last_layer]
    return {"families": chosen, "seeds": _seed_spread(seeds)}


def _seed_spread(seeds: list[Tensor]) -> dict[str, Any] | None:
    if len(seeds) < 2:
        return None
    ellipses, head = [float(values[:-1].mean()) for values in seeds], [float(values[-1]) for values in seeds]
    return {"trainings": len(seeds), "psnr": ellipses, "psnr_std": stdev(ellipses), "shepp_logan_std": stdev(head)}
