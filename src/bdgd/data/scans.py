"""Scans: sinograms with their geometry and, where they are known, the true images and the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_count, require_finite, require_generator, require_positive
from bdgd.data.correction import Correction
from bdgd.data.mismatch import Mismatch
from bdgd.data.noise import Noise
from bdgd.data.units import millimetres
from bdgd.keyed import keyed_generator, seed_from
from bdgd.operators.geometry import Geometry


@dataclass(frozen=True, eq=False)
class Scans:
    """B scans of one geometry.

    sinograms (B, 1, V, D); images (B, 1, H, W), the truth where it is known; noise, what `simulate` added.
    geometry is None for an operator that is no ray transform: then both are batches of any shape.
    unit: the unit of the geometry's lengths where it is known ("mm"), so that images are per that unit. slice_spacing: from one
    slice of a stack to the next, in the same unit. rotation: by how many radians, counter-clockwise with y upward, an image of
    these scans must be turned to lie as the object did. notes: what a reader, `match` or a correction did to the values, a sentence each.
    correction: what was done to the sinograms after they were measured, see `corrected`; the noise is that from before it.
    """

    sinograms: Tensor
    geometry: Geometry | None
    images: Tensor | None = None
    noise: Noise | None = None
    unit: str | None = None
    slice_spacing: float | None = None
    rotation: float = 0.0
    notes: tuple[str, ...] = ()
    correction: Correction | None = None

    def __post_init__(self) -> None:
        _require_lengths(self.unit, self.slice_spacing)
        if self.geometry is not None and not isinstance(self.geometry, Geometry):
            raise InputError(f"geometry must be a ParallelBeam, a FanBeam or None, got {type(self.geometry).__name__}")
        if self.noise is not None and not callable(getattr(self.noise, "to_dict", None)):
            raise InputError(
                f"a noise says what it is by to_dict(), which {type(self.noise).__name__} has not; add it, as GaussianNoise has it"
            )
        _require_fit(self.sinograms, (self.geometry.views, self.geometry.detectors) if self.geometry else None, "sinograms")
        if self.images is None:
            return
        _require_fit(self.images, self.geometry.image_size if self.geometry else None, "images")
        if len(self.images) != len(self.sinograms):
            raise InputError(f"images and sinograms must be pairs, got {len(self.images)} images and {len(self.sinograms)} sinograms")

    def __len__(self) -> int:
        """B, the number of scans."""
        return len(self.sinograms)

    def __getitem__(self, which: int | slice | Sequence[int] | Tensor) -> Scans:
        """Some of the scans, always as a batch: `scans[3:7]`, `scans[[0, 5]]`, `scans[2]` (a batch of one)."""
        if isinstance(which, int | np.integer):
            which = [range(len(self))[int(which)]]
        return replace(self, sinograms=self.sinograms[which], images=None if self.images is None else self.images[which])

    def to(self, device: torch.device | str) -> Scans:
        return replace(self, sinograms=self.sinograms.to(device), images=None if self.images is None else self.images.to(device))

    def corrected(self, correction: Correction | None) -> Scans:
        """The scans with their air and beam hardening corrected, each by its own air; None leaves them as they are. Once is enough."""
        if correction is None:
            return self
        if self.correction is not None:
            raise InputError(f"the scans are corrected already ({self.correction.in_words()}); correct the scans as they were measured")
        note = f"the scan was corrected: {correction.in_words(self.sinograms)}"
        return replace(self, sinograms=correction(self.sinograms), notes=(*self.notes, note), correction=correction)

    def split(self, *parts: float, generator: torch.Generator | None = None) -> tuple[Scans, ...]:
        """Disjoint parts, by counts (`split(80, 20)`) or by fractions that sum to at most 1 (`split(0.8, 0.2)`).

        In order without a generator, else shuffled by it. What the parts do not ask for is left out.
        """
        counts = _part_sizes(parts, len(self))
        order = torch.arange(len(self))
        if generator is not None:
            order = torch.randperm(len(self), generator=generator, device=generator.device).cpu()
        ends = list(accumulate(counts))
        return tuple(self[order[end - count : end].tolist()] for count, end in zip(counts, ends, strict=True))


@torch.no_grad()
def simulate(
    A: Callable[[Tensor], Tensor],
    x: Tensor,
    noise: Noise | None,
    *,
    generator: torch.Generator,
    batch: int = 256,
    mismatch: Mismatch | None = None,
) -> Scans:
    """Scans of the images x (B, 1, H, W): noise(mismatch(A(x))), `batch` images at a time on the operator's device.

    The result lies where x lies and does not depend on `batch`. `noise=None` leaves the sinograms without noise. Any operator
    will do; one without a `geometry` gives scans without. mismatch: how the scanner differs from the operator, see `Mismatch`.
    """
    batch = require_count(batch, "batch")
    require_generator(generator)
    if noise is not None and not callable(noise):
        raise InputError(f"noise must be one such as bdgd.GaussianNoise(0.01), or None, got {noise!r}")
    if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
        raise InputError(f"x must be a batch of images (B, 1, H, W), got {tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}")
    require_finite(x, "x")
    sinograms = []
    # A stream of its own: what the noise draws depends neither on the kind of mismatch nor on the batch.
    differences = None if mismatch is None else keyed_generator(seed_from(generator), "mismatch")
    for images in x.split(batch):
        clean = A(images.to(getattr(A, "device", x.device)))
        if mismatch is not None and differences is not None:
            clean = mismatch(clean, generator=differences)
        sinograms.append((clean if noise is None else noise(clean, generator=generator)).to(x.device))
    return Scans(torch.cat(sinograms), getattr(A, "geometry", None), images=x, noise=noise)


def _require_lengths(unit: str | None, slice_spacing: float | None) -> None:
    """Raise for a unit of no known length, or a spacing that is none."""
    if unit is not None:
        millimetres(unit)
    if slice_spacing is not None:
        require_positive(slice_spacing, "slice_spacing")


def _require_fit(value: Tensor, sides: tuple[int, int] | None, name: str) -> None:
    """Raise unless `value` is a finite batch of (1, *sides), or of anything when sides is None."""
    if sides is not None:
        try:
            require_batch(value, (1, *sides), name)
        except InputError as error:  # say whose shape was expected
            expected = "views x detectors" if name == "sinograms" else "image_size"
            raise InputError(f"{error} (the geometry's {expected} is {sides[0]} x {sides[1]})") from None
    elif not isinstance(value, Tensor) or value.ndim < 2 or len(value) == 0 or not value.is_floating_point():
        got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{name} must be a non-empty floating-point batch (B, ...), got {got}; add the batch axis with [None]")
    require_finite(value, name)


def _part_sizes(parts: Sequence[float], total: int) -> list[int]:
    """How many scans each part gets; fractions are rounded at their cumulative sums, so 1/3 three times uses every scan."""
    if not parts:
        raise InputError("split needs at least one part; pass counts as in split(80, 20) or fractions as in split(0.8, 0.2)")
    if all(isinstance(part, float) for part in parts):
        if min(parts) <= 0 or not sum(parts) <= 1 + 1e-9:
            raise InputError(f"fractions must be above 0 and sum to at most 1, got {parts}; write counts as whole numbers")
        ends = [round(end * total) for end in accumulate(parts)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    else:
        counts = [require_count(part, "a part (counts and fractions do not mix)") for part in parts]  # type: ignore[arg-type]
    if min(counts) == 0 or sum(counts) > total:
        raise InputError(f"cannot split {total} scans into parts of {counts}; every part needs at least one, together at most {total}")
    return counts
