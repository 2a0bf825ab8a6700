"""What is done to a measured scan before a model sees it: its air set to 0 and its beam hardening undone. A frozen value.

A tube sends photons of many energies, and the soft ones are lost first, so that a ray of the ideal line integral q is measured as p with
p + b p^2 = q. A model is trained on simulated scans that were hardened, disturbed and then corrected in just this way.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_number

_AIR_DETECTORS = 8  # at either end of a line of 280 or more; of fewer, wider ones the same part of the line
_FEWEST_DETECTORS = 17


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Sinograms y (B, 1, V, D) become q + b q^2 with q = y - air, per image; where q is below 0 it stays q.

    air        whether the mean of the outermost 8 detectors at either end, over all views of an image, is subtracted (of D / 35 where
               there are fewer than 280 detectors: joining them leaves the rays that count as air)
    hardening  b, in 1 / line integral; 0 leaves the beam as it is
    """

    air: bool = False
    hardening: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.air, bool):
            raise InputError(f"air of a correction must be true or false, got {self.air!r}")
        if isinstance(self.hardening, bool) or require_number(self.hardening, "hardening of a correction") < 0:
            raise InputError(f"hardening of a correction must be a number of at least 0, got {self.hardening!r}; 0 is none")
        object.__setattr__(self, "hardening", float(self.hardening))

    def __call__(self, sinograms: Tensor) -> Tensor:
        """The corrected sinograms (B, 1, V, D), in their type."""
        q = sinograms - air_level(sinograms).to(sinograms)[:, None, None, None] if self.air else sinograms
        return q + self.hardening * q.clamp(min=0).square()

    def undone(self, corrected: Tensor) -> Tensor:
        """The line integrals above the air as they were measured: the law of the beam, which is one to one. The air stays at 0."""
        return hardened(corrected, self.hardening)

    def in_words(self, sinograms: Tensor | None = None) -> str:
        """What it does; with sinograms (B, 1, V, D) what it does to the first of them."""
        done = []
        if self.air:
            level = f" of {float(air_level(sinograms[:1])):+.4f}" if sinograms is not None else ""
            done.append(f"the air{level}, which the outermost detectors read, is subtracted")
        if self.hardening:
            done.append(f"beam hardening is undone as p + {self.hardening:g} p^2")
        return " and ".join(done) or "nothing is changed"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `correction_from_dict` reads it back."""
        return asdict(self)


def correction_from_dict(values: Any) -> Correction:
    """The correction that `to_dict` described; an unknown key is an error, a missing one is none of that correction."""
    known = [field.name for field in fields(Correction)]
    if not isinstance(values, dict):
        raise InputError(f"a correction must be a table, such as {{ air = true, hardening = 0.27 }}, got {values!r}")
    if unknown := sorted(set(values) - set(known)):
        raise InputError(f"unknown key {unknown[0]!r} in a correction; known are {', '.join(known)}")
    return Correction(**values)


def hardened(q: Tensor, hardening: float | Tensor) -> Tensor:
    """p of p + b p^2 = q, the measured line integrals of ideal ones: (sqrt(1 + 4 b q) - 1) / (2 b), which is q for b = 0 or q below 0."""
    return 2 * q / (1 + (1 + 4 * hardening * q.clamp(min=0)).sqrt())  # the same without a division by b


def outermost(sinograms: Tensor) -> Tensor:
    """(B, 1, V, 2 n) what the outermost n detectors at either end read, whose rays pass the object, in float64."""
    if sinograms.ndim != 4:
        raise InputError(f"air is read in sinograms of shape (B, 1, V, D), got {tuple(sinograms.shape)}; add the batch axis with [None]")
    if (detectors := sinograms.shape[-1]) < _FEWEST_DETECTORS:
        raise InputError(f"air is read by the outermost detectors, and there are {detectors}; at least {_FEWEST_DETECTORS} are needed")
    count = min(_AIR_DETECTORS, max(detectors // 35, 1))
    return torch.cat((sinograms[..., :count], sinograms[..., -count:]), -1).double()


def air_level(sinograms: Tensor) -> Tensor:
    """(B,) what the air reads, which should be 0, over all views of an image."""
    return outermost(sinograms).mean((1, 2, 3))
