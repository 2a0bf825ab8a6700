"""How a real scanner differs from y = A x: a frozen value that turns clean line integrals into ones with small errors of a scanner.

A model that is trained on exact line integrals alone takes every error of the scanner for structure of the object. Trained with the
errors drawn anew for every image, and the true image left as it is, it learns to look past them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.data.correction import hardened

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Errors of a scanner, each drawn per image uniformly from its range (low, high).

    One number r is the range (-r, r), or (0, r) for hardening and beam. In the order in which they happen:

    beam        b, in 1 / line integral: y becomes p with p + b p^2 = y, as a beam of many energies has it; `Correction` undoes it.
                The attenuation of thin objects stays, the longest paths lose most
    axis_shift  in detectors: the axis is seen so far from where the geometry has it; linear between neighbours
    hardening   b, in 1 / line integral: y - b y (y - y0), with y0 = sum y^3 / sum y^2 of the image, which leaves the best-fitting
                multiple of y unchanged: long paths count for less, short ones for more, and a disc cups
    air_offset  c, added to every line integral, in its unit: y + c (a beam that was brighter or darker than its flat field)
    gain        standard deviation of an offset per detector, the same in all views (a stripe), in the unit of the line integrals
    """

    air_offset: Range = (0.0, 0.0)
    hardening: Range = (0.0, 0.0)
    axis_shift: Range = (0.0, 0.0)
    gain: float = 0.0
    beam: Range = (0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("air_offset", "hardening", "axis_shift", "beam"):
            object.__setattr__(self, name, _range(getattr(self, name), name, symmetric=name not in ("hardening", "beam")))
        if self.beam[0] < 0:
            raise InputError(f"beam must be at least 0, got {list(self.beam)}; 0 is a beam that does not harden")
        if require_number(self.gain, "gain") < 0:
            raise InputError(f"gain must be at least 0, got {self.gain:g}; it is a standard deviation")
        object.__setattr__(self, "gain", float(self.gain))

    def __call__(self, clean: Tensor, *, generator: torch.Generator) -> Tensor:
        """Line integrals (B, 1, V, D) with errors; every image takes the same 3 + D numbers from the generator, in its order.

        Where the beam hardens it takes one more after them: what is drawn without a beam is as it was before there was one.
        """
        if clean.ndim != 4:
            raise InputError(f"a mismatch needs sinograms of shape (B, 1, V, D), got {tuple(clean.shape)}; add the batch axis with [None]")
        drawn = torch.stack([self._numbers(clean.shape[-1], generator) for _ in clean]).to(clean)  # (B, 3 + D) or (B, 4 + D)
        offset, hardening, shift = (
            _between(drawn[:, n], low_high) for n, low_high in enumerate((self.air_offset, self.hardening, self.axis_shift))
        )
        y = hardened(clean, _between(drawn[:, -1], self.beam)) if any(self.beam) else clean
        y = _shifted(y, shift) if any(self.axis_shift) else y
        y = y - hardening * y * (y - _typical(y))
        return y + offset + self.gain * drawn[:, None, None, 3 : 3 + clean.shape[-1]]

    def _numbers(self, detectors: int, generator: torch.Generator) -> Tensor:
        """All that is random about one image."""
        numbers = [torch.rand(3, generator=generator), torch.randn(detectors, generator=generator)]
        return torch.cat([*numbers, torch.rand(1, generator=generator)] if any(self.beam) else numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists; `mismatch_from_dict` reads it back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def mismatch_from_dict(values: dict[str, Any]) -> Mismatch:
    """The mismatch that `to_dict` described; an unknown key is an error, a missing one is none of that error."""
    known = [field.name for field in fields(Mismatch)]
    if unknown := sorted(set(values) - set(known)):
        raise InputError(f"unknown key {unknown[0]!r} in mismatch; known are {', '.join(known)}")
    return Mismatch(**values)


def _range(value: Any, name: str, *, symmetric: bool) -> Range:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise InputError(f"{name} must be one number or a range [low, high], got {value!r}")
        low, high = require_number(value[0], name), require_number(value[1], name)
    else:
        high = require_number(value, name)
        low = -high if symmetric else 0.0
    if low > high:
        raise InputError(f"{name} must be a range from low to high, got {value!r}; swap the two numbers")
    return low, high


def _between(share: Tensor, low_high: Range) -> Tensor:
    """(B, 1, 1, 1) so far (B,) of the way from low to high."""
    low, high = low_high
    return (low + (high - low) * share)[:, None, None, None]


def _typical(y: Tensor) -> Tensor:
    """(B, 1, 1, 1) sum y^3 / sum y^2; 0 for an image of nothing."""
    squares = (y**2).sum((1, 2, 3), keepdim=True)
    return (y**3).sum((1, 2, 3), keepdim=True) / squares.clamp_min(1e-30)


def _shifted(y: Tensor, shift: Tensor) -> Tensor:
    """y (B, 1, V, D) as it would be if detector d were at d - shift (B, 1, 1, 1): linear between neighbours, constant beyond the ends."""
    detectors = y.shape[-1]
    place = torch.arange(detectors, device=y.device, dtype=y.dtype) - shift  # (B, 1, 1, D)
    place = place.clamp(0, detectors - 1)
    left = place.floor().clamp(max=max(detectors - 2, 0))
    index = left.long().expand_as(y)
    right = (index + 1).clamp(max=detectors - 1)
    return torch.lerp(y.gather(-1, index), y.gather(-1, right), (place - left).expand_as(y))
