"""A sinogram on other detectors: picked where they coincide, averaged where they are wider, interpolated where they lie between.

And a true image on wider pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bdgd.operators.geometry import Geometry

_SAME = 1e-4  # of a detector: positions that agree so well are the same position
_COARSEST = 1.5  # detectors wider than this many of the wanted ones do not hold what these would see
_AIR = 0.05  # of the largest value: a line of detectors that ends below it ends in air


@dataclass(frozen=True)
class Detectors:
    """A line of `count` cells of one width, the first with its centre at `first`."""

    count: int
    width: float
    first: float

    @classmethod
    def of(cls, geometry: Geometry) -> Detectors:
        return cls(geometry.detectors, geometry.detector_spacing, float(geometry.detector_positions()[0]))

    @property
    def edges(self) -> np.ndarray:
        """(D + 1,) where the cells begin and end."""
        edges: np.ndarray = self.first + (np.arange(self.count + 1) - 0.5) * self.width
        return edges

    @property
    def centres(self) -> np.ndarray:
        centres: np.ndarray = self.first + np.arange(self.count) * self.width
        return centres

    def flipped(self) -> Detectors:
        """The same cells, counted from the other end and seen from the other side: s is -s."""
        return replace(self, first=-float(self.centres[-1]))

    def cannot_serve(self, wanted: Detectors, sinograms: Tensor) -> str | None:
        """Why values on these cells do not give those on the wanted ones, or None where they do."""
        sizes = f"{self.count} detectors of {self.width:.6g} in the scan and {wanted.count} of {wanted.width:.6g} in the model"
        if self.width > _COARSEST * wanted.width:
            return f"the detectors are too wide: {sizes}"
        beyond = self.beyond(wanted)
        if beyond == wanted.count:
            return f"the detectors do not overlap: {sizes}"
        if beyond:
            ends = sinograms[..., [0, -1]].abs().amax() / sinograms.abs().amax().clamp_min(1e-30)
            if float(ends) > _AIR:
                return (
                    f"the scan's detectors end inside the object: {sizes}, of which {beyond} lie beyond the scan's,"
                    f" whose last values reach {float(ends):.0%} of the largest"
                )
        return None

    def how_it_serves(self, wanted: Detectors, unit: str | None = None) -> str | None:
        """What `resampled` does, in words, with the unit of the widths where it is known; None where it does nothing."""
        ratio, shift, aligned = self._place(wanted)
        named = f" {unit}" if unit else ""
        sizes = f"{self.count} of {self.width:.6g}{named} to {wanted.count} of {wanted.width:.6g}{named}"
        beyond = self.beyond(wanted)
        tail = f"; {beyond} of them lie beyond the scan's, in air, and repeat its last value" if beyond else ""
        if aligned and round(ratio) == 1:
            return None if round(shift) == 0 and self.count == wanted.count else f"the detectors were cut from {sizes}{tail}"
        if aligned:
            return f"{round(ratio)} neighbouring detectors were averaged into one, from {sizes}{tail}"
        offset = float(wanted.centres.mean() - self.centres.mean())
        return f"the detectors were resampled linearly, from {sizes}, moved by {offset:.4g}{named}{tail}"

    def picks(self, wanted: Detectors) -> bool:
        """Whether each wanted cell is one of these, so that `resampled` mixes no values and repeats none."""
        ratio, _, aligned = self._place(wanted)
        return aligned and round(ratio) == 1 and self.beyond(wanted) == 0

    def _place(self, wanted: Detectors) -> tuple[float, float, bool]:
        """How wide a wanted cell is, and how far on the first of them begins, in cells of this line; whether both are whole numbers."""
        ratio = wanted.width / self.width
        shift = (wanted.edges[0] - self.edges[0]) / self.width
        return ratio, shift, bool(abs(shift - round(shift)) < _SAME and abs(ratio - round(ratio)) * wanted.count < _SAME)

    def beyond(self, wanted: Detectors) -> int:
        """How many wanted cells have their centre outside this line."""
        slack = _SAME * self.width
        return int(((wanted.centres < self.edges[0] - slack) | (wanted.centres > self.edges[-1] + slack)).sum())


def resampled(sinograms: Tensor, line: Detectors, wanted: Detectors) -> Tensor:
    """(..., D) values on the wanted cells, in the sinograms' dtype.

    As wide or wider: the mean of the cells that are covered, by their shares, which for whole multiples is plain binning. Narrower: linear
    interpolation between centres. Beyond the line's end its last value.
    """
    weights = _shares(line, wanted) if wanted.width >= line.width * (1 - _SAME) else _between(line, wanted)
    values = sinograms.to(torch.float64) @ torch.from_numpy(weights.T.copy()).to(sinograms.device)
    return values.to(sinograms.dtype)


def averaged_images(images: Tensor, ours: Geometry, theirs: Geometry) -> Tensor | None:
    """(B, 1, H, W) the means of true images over the pixels of another grid; None where these are narrower or reach further out."""
    weights = []
    for count, wanted in zip(ours.image_size, theirs.image_size, strict=True):
        line, pixels = _pixels(count, ours.pixel_size), _pixels(wanted, theirs.pixel_size)
        if pixels.width < line.width or pixels.edges[-1] > line.edges[-1] * (1 + _SAME):
            return None
        weights.append(torch.from_numpy(_shares(line, pixels)).to(images.device))
    means: Tensor = weights[0] @ images.to(torch.float64) @ weights[1].T
    return means.to(images.dtype)


def _pixels(count: int, size: float) -> Detectors:
    """One side of an image with the axis of rotation in its middle."""
    return Detectors(count, size, -(count - 1) / 2 * size)


def _shares(line: Detectors, wanted: Detectors) -> np.ndarray:
    """(wanted, line) which part of each wanted cell lies on which cell of the line; the two outermost reach as far as asked."""
    edges = np.round((line.edges - line.edges[0]) / line.width, 6)
    outer = np.round((wanted.edges - line.edges[0]) / line.width, 6)
    edges[0], edges[-1] = min(edges[0], outer[0]), max(edges[-1], outer[-1])
    shares = np.minimum(outer[1:, None], edges[None, 1:]) - np.maximum(outer[:-1, None], edges[None, :-1])
    shares = np.clip(shares, 0.0, None)
    normalised: np.ndarray = shares / shares.sum(1, keepdims=True)
    return normalised


def _between(line: Detectors, wanted: Detectors) -> np.ndarray:
    """(wanted, line) weights of linear interpolation."""
    place = np.clip((wanted.centres - line.first) / line.width, 0, line.count - 1)
    left = np.clip(np.floor(place).astype(int), 0, max(line.count - 2, 0))
    weights = np.zeros((wanted.count, line.count))
    rows = np.arange(wanted.count)
    weights[rows, left] += 1 - (place - left)
    weights[rows, np.minimum(left + 1, line.count - 1)] += place - left
    return weights
