"""What the streaming metrics share: pixels chosen by a mask, means that remember each image, and bins on a logarithmic scale.

A streaming metric is made once, is shown batch after batch with `add(mean, spread, truth, mask=None)`, and tells its figure
with `result()`; `spread` is the std or an interval. Two that saw different batches are joined with `merge`. It keeps sums,
one number per image, and histograms, never pixels; all in float64 on the CPU, so that a result does not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bdgd.checks import InputError, require_finite, require_positive
from bdgd.metrics.uncertainty import pixel_mask

#: What a pixel's prediction costs: score(mean, std, truth), elementwise.
PixelFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Average:
    """A mean over the pixels of all images together, and over each image's own; an image without a pixel is left out of both."""

    pooled: float
    per_image: tuple[float, ...]
    pixels: int


class PixelMean:
    """The mean of any value per pixel."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._counts: list[int] = []

    def add(self, values: Tensor, mask: Tensor | None = None) -> None:
        """values (B, 1, H, W), counted where the mask is true."""
        inside = inside_of(mask, values)
        self._sums += values.double().where(inside, 0).flatten(1).sum(1).tolist()
        self._counts += inside.flatten(1).sum(1).tolist()

    def merge(self, other: PixelMean) -> None:
        self._sums += other._sums
        self._counts += other._counts

    @property
    def pixels(self) -> int:
        """How many have been counted so far."""
        return sum(self._counts)

    def result(self) -> Average:
        pixels = require_pixels(self.pixels)
        per_image = tuple(total / count for total, count in zip(self._sums, self._counts, strict=True) if count)
        return Average(sum(self._sums) / pixels, per_image, pixels)


class PixelScore:
    """The mean of score(mean, std, truth) per pixel: `gaussian_nll`, `gaussian_crps`, `squared_z`, or any other elementwise function.

    least_std: a smaller std counts as this one, since one pixel that is exact at std 0 would outweigh all others.
    """

    def __init__(self, score: PixelFunction, *, least_std: float = 0.0):
        self.score, self.least_std, self._mean = score, least_std, PixelMean()

    def add(self, mean: Tensor, std: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        require_alike(mean, std, truth)
        self._mean.add(self.score(mean.double(), std.double().clamp(min=self.least_std), truth.double()), mask)

    def merge(self, other: PixelScore) -> None:
        self._mean.merge(other._mean)

    def result(self) -> Average:
        return self._mean.result()


def squared_z(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
    """((truth - mean) / std)^2, whose mean is 1 for error bars of the right size."""
    return ((truth - mean) / std) ** 2


@dataclass(frozen=True)
class LogBins:
    """Bins of equal width in log10 from `low` to `high`; the first also takes what is smaller, zeros too, the last what is larger."""

    low: float = 1e-8
    high: float = 1e2
    per_decade: int = 400

    def __post_init__(self) -> None:
        if not 0 < require_positive(self.low, "low") < require_positive(self.high, "high"):
            raise InputError(f"bins must go from a low to a higher value above 0, got {self.low!r} to {self.high!r}")

    @property
    def count(self) -> int:
        return round(math.log10(self.high / self.low) * self.per_decade)

    def index(self, values: Tensor) -> Tensor:
        """The number of each value's bin, int64."""
        place = (values.double().clamp(min=self.low) / self.low).log10() * self.per_decade
        return place.long().clamp(0, self.count - 1)

    def edge(self, place: float) -> float:
        """The lower edge of bin number `place`; between whole numbers, what lies between the edges."""
        return float(self.low * 10 ** (place / self.per_decade))

    def sums(self, index: Tensor, weights: Tensor | None = None) -> Tensor:
        """(count,) how many values, or the sum of their weights, in each bin, float64."""
        return torch.bincount(index, weights, minlength=self.count).double()

    def require_same(self, other: LogBins) -> None:
        """Raise unless histograms of these bins and the others can be added."""
        if self != other:
            raise InputError(f"only metrics of the same bins can be merged, got {self} and {other}")


def chosen(mask: Tensor | None, *values: Tensor) -> list[Tensor]:
    """The pixels where the mask is true, each tensor (B, 1, H, W) as one row (N,) in float64 on the CPU."""
    require_alike(*values)
    inside = inside_of(mask, values[0])
    rows = [value.detach()[inside].double().cpu() for value in values]
    for row in rows:
        require_finite(row, "what a histogram counts")
    return rows


def inside_of(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask as (B, 1, H, W); all true without one. It may be empty: an image without edges has no edge pixel."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else pixel_mask(mask, like, allow_empty=True)


def require_alike(*values: Tensor) -> None:
    """Raise unless all are (B, 1, H, W) of one shape on one device: broadcasting would score pixels against other pixels."""
    shapes = [tuple(value.shape) for value in values]
    if len(set(shapes)) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 1:
        raise InputError(f"mean, std or interval, and truth must have one shape (B, 1, H, W), got {' and '.join(map(str, shapes))}")
    devices = sorted({str(value.device) for value in values})
    if len(devices) > 1:
        raise InputError(f"mean, std or interval, and truth must be on one device, got {' and '.join(devices)}; move them with .to")


def require_pixels(pixels: float) -> int:
    """The number of pixels; raise if there is none to take a mean of."""
    if not pixels:
        raise InputError("no pixel has been added, so there is no result; add at least one image whose mask is not empty")
    return int(pixels)
