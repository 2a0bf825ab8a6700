"""The posterior of a reconstruction: Monte-Carlo draws through the cascade (Algorithm 2 of the paper), kept as moments.

Draw s uses weights keyed by (seed, s, block), the same for every image: an image's result does not depend on the batch it
is in. Draws are never stored; `draws()` makes them again from the seed, one at a time, so memory stays flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.metrics.uncertainty import pixel_mask


@dataclass(frozen=True, eq=False)
class Region:
    """The mean value of a region of each image, with its interval: each (B,)."""

    mean: Tensor
    std: Tensor
    lower: Tensor
    upper: Tensor
    level: float


@dataclass(frozen=True, eq=False)
class Posterior:
    """Mean (B, 1, H, W) and two variances per pixel, in the squared unit of the image.

    epistemic: from the weights, the variance of the draws with S - 1 in the denominator. aleatoric: from the data, what one
    draw leaves open. `number` draws were made from `seed`; `replay` makes them again.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    number: int
    seed: int
    replay: Callable[[], Iterator[Tensor]]

    @property
    def std(self) -> Tensor:
        """The root of epistemic plus aleatoric variance, uncalibrated."""
        return (self.epistemic + self.aleatoric).sqrt()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """(lower, upper) of the central interval of that level, each (B, 1, H, W); values below 0 cannot be and are cut off."""
        half = _half_width(level) * self.std
        return (self.mean - half).clamp(min=0), (self.mean + half).clamp(min=0)

    def draws(self) -> Iterator[Tensor]:
        """The draws (B, 1, H, W) that made the moments, one at a time."""
        return self.replay()

    def region(self, mask: Tensor, level: float = 0.95) -> Region:
        """The mean of the pixels where `mask` (H, W), (1, 1, H, W) or (B, 1, H, W) is true, with its interval.

        The epistemic part comes from the replayed draws, which keep the correlation between pixels; the aleatoric
        part is independent from pixel to pixel and averages out.
        """
        inside = pixel_mask(mask, self.mean)
        weight = (inside / inside.sum((1, 2, 3), keepdim=True)).to(self.mean.dtype)
        means = torch.stack([(weight * draw).sum((1, 2, 3)) for draw in self.draws()])  # (S, B)
        epistemic = means.var(0) if len(means) > 1 else torch.zeros_like(means[0])
        std = (epistemic + (weight**2 * self.aleatoric).sum((1, 2, 3))).sqrt()
        mean, half = means.mean(0), _half_width(level) * std
        return Region(mean, std, (mean - half).clamp(min=0), (mean + half).clamp(min=0), level)


def _half_width(level: float) -> float:
    """How many standard deviations the central Gaussian interval of that level reaches to either side."""
    if not 0 < require_number(level, "level") < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    return NormalDist().inv_cdf(0.5 + level / 2)
