"""The calibration of regions: how errors of neighbouring pixels go together, and quantiles on random discs.

    rho(d) = mean of e_i e_j / mean of s_i s_j    over pixels i, j at distance d,

e the errors, s the aleatoric standard deviations, so that sum_ij w_i w_j s_i s_j rho(|i - j|) is the mean square of sum_i w_i e_i.
Then, per size of disc and level, risk control on the other half of the images chooses how many such standard deviations an interval needs.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from bdgd.inference.posterior import Posterior
from bdgd.inference.regions import reach_of, sums_of
from bdgd.inference.risk_control import threshold_per_level
from bdgd.keyed import keyed_generator
from bdgd.models.calibration import RegionCalibration, Row

#: Radii in pixels between which discs are drawn, and how many of each size and image.
RADII = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0)
DISCS = 6
#: Distances, in pixels, up to which the correlation is measured; beyond it counts as none.
REACH = 40
#: What counts as object; in the background most pixels are exact.
OBJECT = 1e-6


class Correlation:
    """rho of the module's docstring, streamed over images; every image counts in units of its own mean variance."""

    def __init__(self) -> None:
        self._errors, self._spreads = torch.zeros(2, REACH + 1, dtype=torch.float64)

    def add(self, error: Tensor, std: Tensor) -> None:
        """Errors and standard deviations (B, 1, H, W)."""
        unit = std.double().square().mean((1, 2, 3), keepdim=True).sqrt()
        self._errors += _radial(_products(error.double() / unit))
        self._spreads += _radial(_products(std.double() / unit))

    def profile(self) -> Row:
        """rho at distance 0, 1, ... as far as it stays above 0."""
        rho = (self._errors / self._spreads.clamp(min=1e-300)).tolist()
        end = next((d for d, value in enumerate(rho) if value <= 0), len(rho))
        return tuple(rho[:end])


def _products(v: Tensor) -> Tensor:
    """Sum over images and pixels i of v_i v_{i + offset}, for all offsets of a periodic grid (2H, 2W)."""
    size = (2 * v.shape[-2], 2 * v.shape[-1])
    return torch.fft.irfft2(torch.fft.rfft2(v, s=size).abs() ** 2, s=size).sum((0, 1))


def _radial(table: Tensor) -> Tensor:
    """Sums over the offsets of a periodic grid by whole distance, (REACH + 1,), on the CPU."""
    x, y = (torch.fft.fftfreq(n, 1 / n, device=table.device) for n in table.shape)
    distance = (x[:, None] ** 2 + y[None] ** 2).sqrt().round().long().clamp(max=REACH + 1)
    return torch.bincount(distance.flatten().cpu(), table.flatten().cpu(), REACH + 2)[: REACH + 1]


class DiscScores:
    """Scores of random discs, per size: what multiple of its standard deviation the error of a mean, contrast or area was."""

    def __init__(self, correlation: Row, seed: int):
        self.seed, self.images = seed, 0
        self._law = RegionCalibration(images=0, discs=DISCS, levels=(), correlation=correlation, areas=AREAS, mean=(), contrast=(), area=())
        self._scores: dict[str, list[Tensor]] = {"mean": [], "contrast": [], "area": []}  # each (B, sizes, discs)

    def add(self, posterior: Posterior, truth: Tensor) -> None:
        """Discs centred on the object of every image (B, 1, H, W), the same number of every size."""
        generator = keyed_generator(self.seed, "discs", self.images)
        masks = torch.stack([random_discs(image[0], generator) for image in truth])  # (B, sizes * discs, H, W)
        threshold = torch.rand(masks.shape[:2], generator=generator).to(truth)  # of the image's largest value, from 0.1 to 0.9
        threshold = (0.1 + 0.8 * threshold) * posterior.mean.amax((2, 3))
        self.images += len(truth)
        weights = masks / masks.sum((2, 3), keepdim=True)
        others = weights.unflatten(1, (-1, DISCS)).roll(1, 2).flatten(1, 2)  # the next disc of the same size
        both = torch.cat((weights, weights - others), 1)  # together, since every call replays the draws
        mean, std = sums_of(posterior, both, self._law)
        scores = ((both * truth).sum((2, 3)) - mean).abs() / std.clamp(min=1e-12)
        for name, part in zip(("mean", "contrast"), scores.chunk(2, 1), strict=True):
            self._keep(name, part)
        self._keep("area", _area_scores(posterior, truth, masks.bool(), threshold))

    def _keep(self, name: str, scores: Tensor) -> None:
        self._scores[name].append(scores.double().unflatten(1, (-1, DISCS)).cpu())

    def calibration(self, levels: Row) -> RegionCalibration | None:
        """Thresholds per level and size; None where there are too few images for any level."""
        tables: dict[str, tuple[Row, ...]] = {}
        held: Row = ()
        for name, parts in self._scores.items():
            sizes = [threshold_per_level(scores, levels) for scores in torch.cat(parts).unbind(1)]
            held = sizes[0][0]
            tables[name] = tuple(zip(*(thresholds for _, thresholds in sizes), strict=True))
        if not held:
            return None
        law = self._law
        return RegionCalibration(images=self.images, discs=DISCS, levels=held, correlation=law.correlation, areas=law.areas, **tables)


#: Areas in pixels of discs with the `RADII`.
AREAS: Row = tuple(3.141592653589793 * radius**2 for radius in RADII)


def random_discs(truth: Tensor, generator: torch.Generator) -> Tensor:
    """(sizes * DISCS, H, W) discs of each size between two `RADII`, 1 inside: centred on the object, inside the image where they fit."""
    height, width = truth.shape
    inside = (truth > OBJECT).cpu()
    x, y = torch.arange(height)[:, None], torch.arange(width)[None]
    margin = torch.minimum(torch.minimum(x, height - 1 - x), torch.minimum(y, width - 1 - y))
    discs = []
    for low, high in itertools.pairwise(RADII):
        room = inside & (margin >= high)
        allowed = room if bool(room.any()) else inside if bool(inside.any()) else torch.ones_like(inside)
        centre = torch.multinomial(allowed.flatten().double(), DISCS, replacement=True, generator=generator)
        radius = low + (high - low) * torch.rand(DISCS, generator=generator)
        cx, cy = (part[:, None, None] for part in (centre // width, centre % width))
        discs.append((x - cx) ** 2 + (y - cy) ** 2 <= radius[:, None, None] ** 2)
    return torch.cat(discs).to(truth)


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
