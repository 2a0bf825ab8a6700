"""The errors of a scanner that a model for it is trained against, from one of its scans."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.correction import Correction, outermost
from bdgd.data.estimates import three_digits
from bdgd.data.mismatch import Mismatch

_AIR = 0.05  # of the largest line integrals: detectors that see no more see air
_AROUND = 0.15  # training covers hardenings from so much below to so much above the one that is corrected


def scanner_errors(y: Tensor, correction: Correction | None = None) -> tuple[Mismatch, float | None]:
    """The errors to train against for sinograms y (1, 1, V, D), in their unit, and the median of what is measured in air if it is seen.

    With p the 99 % quantile of y: air off by 0.005 p and by up to twice what is measured, hardening up to 0.4 / p (a disc whose
    middle is dark by a third, as unfiltered tubes show it), the axis off by a quarter of a detector, stripes of 0.0005 p.
    Where a correction undoes hardening, the beam hardens by 0.85 to 1.15 times what it undoes instead.
    """
    top = float(y.double().flatten().quantile(0.99)) if y.numel() < 2**24 else float(y.double().amax())
    if not top > 0:
        raise InputError("the scan has no line integrals above 0; check that it was converted with -log")
    outer = max(1, y.shape[-1] // 50)
    ends = torch.cat((y[..., :outer], y[..., -outer:]), -1).double()
    air = float(ends.median())
    seen = air if abs(air) < _AIR * top else None
    twice = 2 * (seen or 0.0)
    offsets = (three_digits(min(0.0, twice) - 0.005 * top), three_digits(max(0.0, twice) + 0.005 * top))
    found = Mismatch(
        air_offset=offsets, hardening=(0.0, three_digits(0.4 / top)), axis_shift=(-0.25, 0.25), gain=three_digits(0.0005 * top)
    )
    if correction is not None and correction.hardening:
        found = replace(found, hardening=(0.0, 0.0), beam=beam_around(correction))
    return found, seen


def require_air(y: Tensor) -> None:
    """Raise unless the outermost detectors of sinograms y (1, 1, V, D) see air, so that what they read can be subtracted."""
    if float(outermost(y).mean(2).abs().max()) > _AIR * float(y.max()):
        raise InputError("the scan's outermost detectors do not see air, so that what they read cannot be subtracted; leave --air out")


def beam_around(correction: Correction) -> tuple[float, float]:
    """Hardenings to train with: that of no two objects is the same, and the correction has one for all."""
    return three_digits((1 - _AROUND) * correction.hardening), three_digits((1 + _AROUND) * correction.hardening)
