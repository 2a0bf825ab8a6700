"""The calibration of regions on random discs, per size: how many standard deviations their intervals need.

Half of the discs are centred on the object, where people look, and half lie anywhere. Where they all lie anywhere, discs on
the object are missed more often than stated, since those of the background are easy; where all are on the object, discs anywhere
are covered more often.
The standard deviation of a region is that of `regions`; risk control, with the image as the unit, chooses the factors.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdgd.inference.posterior import Posterior
from bdgd.inference.regions import reach_of, sums_of
from bdgd.inference.risk_control import threshold_per_level
from bdgd.keyed import keyed_generator
from bdgd.metrics import OBJECT
from bdgd.models.calibration import RegionCalibration, Row

#: Radii in pixels between which discs are drawn, and how many of each size and image; the first ones are centred on the object.
RADII = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0)
DISCS, ON_OBJECT = 6, 3
#: Pixels around each one that share the smooth part of an error. Of 5 and 11 the larger gave the narrower intervals at equal coverage.
WINDOW = 11


class DiscScores:
    """Scores of random discs, per size: what multiple of its standard deviation the error of a mean, contrast or area was.

    unit: the image value that counts as 1.
    """

    def __init__(self, seed: int, unit: float = 1.0):
        self.seed, self.unit, self.images = seed, unit, 0
        self._law = RegionCalibration(images=0, discs=DISCS, levels=(), window=WINDOW, areas=AREAS, mean=(), contrast=(), area=())
        self._scores: dict[str, list[Tensor]] = {"mean": [], "contrast": [], "area": []}  # each (B, sizes, discs)

    def add(self, posterior: Posterior, truth: Tensor) -> None:
        """Discs in every image (B, 1, H, W), the same number of every size; by its number, so they do not depend on the batch."""
        generators = [keyed_generator(self.seed, "discs", self.images + n) for n in range(len(truth))]
        found = [random_discs(image[0] / self.unit, g) for image, g in zip(truth, generators, strict=True)]
        masks = torch.stack(found)  # (B, sizes * discs, H, W)
        share = torch.stack([torch.rand(masks.shape[1], generator=g, dtype=torch.float32) for g in generators]).to(truth)
        threshold = (0.1 + 0.8 * share) * posterior.mean.amax((2, 3))  # from 0.1 to 0.9 of the image's largest value
        self.images += len(truth)
        weights = masks / masks.sum((2, 3), keepdim=True)
        others = weights.unflatten(1, (-1, DISCS)).roll(1, 2).flatten(1, 2)  # the next disc of the same size
        both = torch.cat((weights, weights - others), 1)  # together, since every call replays the draws
        mean, std = sums_of(posterior, both, self._law)
        scores = ((both * truth).sum((2, 3)) - mean).abs() / std.clamp(min=1e-12 * self.unit)
        for name, part in zip(("mean", "contrast"), scores.chunk(2, 1), strict=True):
            self._keep(name, part)
        self._keep("area", _area_scores(posterior, truth, masks.bool(), threshold))

    def _keep(self, name: str, scores: Tensor) -> None:
        self._scores[name].append(scores.double().unflatten(1, (-1, DISCS)).cpu())

    def calibration(self, levels: Row) -> RegionCalibration | None:
        """Thresholds per level and size; None where there are too few images for any level."""
        tables: dict[str, Any] = {}
        held: Row = ()
        for name, parts in self._scores.items():
            sizes = [threshold_per_level(scores, levels) for scores in torch.cat(parts).unbind(1)]
            held = sizes[0][0]
            tables[name] = tuple(zip(*(thresholds for _, thresholds in sizes), strict=True))
        if not held:
            return None
        return replace(self._law, images=self.images, levels=held, **tables)


#: Areas in pixels of discs with the `RADII`.
AREAS: Row = tuple(3.141592653589793 * radius**2 for radius in RADII)


def random_discs(truth: Tensor, generator: torch.Generator) -> Tensor:
    """(sizes * DISCS, H, W) discs of each size between two `RADII`, 1 inside, that do not leave the image unless they are too large.

    The first `ON_OBJECT` of each size are centred on the object, the others anywhere.
    """
    discs = []
    for low, high in itertools.pairwise(RADII):
        radius = low + (high - low) * torch.rand(DISCS, generator=generator, dtype=torch.float32)
        for n in range(DISCS):
            discs.append(random_disc(truth, float(radius[n]), generator, on_object=n < ON_OBJECT))
    return torch.stack(discs).to(truth)


def random_disc(truth: Tensor, radius: float, generator: torch.Generator, *, on_object: bool) -> Tensor:
    """(H, W) bool: a disc of that radius in pixels, inside the image where it fits, centred on the object of `truth` if so wished."""
    height, width = truth.shape
    x, y = torch.arange(height)[:, None], torch.arange(width)[None]
    margin = torch.minimum(torch.minimum(x, height - 1 - x), torch.minimum(y, width - 1 - y))
    fits = margin >= min(radius, int(margin.max()))
    inside = fits & (truth > OBJECT).cpu() if on_object else fits
    allowed = inside if bool(inside.any()) else fits
    centre = int(torch.multinomial(allowed.flatten().double(), 1, generator=generator))
    return (x - centre // width) ** 2 + (y - centre % width) ** 2 <= radius**2


def _area_scores(posterior: Posterior, truth: Tensor, masks: Tensor, thresholds: Tensor) -> Tensor:
    """(B, R): the smallest z at which the interval of the area above each region's threshold (B, R) holds the true area.

    Where the true area is k pixels smaller than the mean's, k of the pixels above must be reached by their intervals: z is the
    k-th smallest of their reaches; and the same for pixels below where it is larger.
    """
    scores = torch.zeros(thresholds.shape, dtype=torch.float64, device=truth.device)
    for r in range(thresholds.shape[1]):
        level = thresholds[:, r, None, None, None]
        above, reach = reach_of(posterior, level)
        inside = masks[:, r, None]
        excess = ((inside & above).sum((1, 2, 3)) - (inside & (truth > level)).sum((1, 2, 3))).cpu()
        for b, missing in enumerate(excess.tolist()):
            side = (inside & above if missing > 0 else inside & ~above)[b]
            if missing:
                scores[b, r] = reach[b][side].kthvalue(abs(missing)).values * (1 + 1e-9)
    return scores
