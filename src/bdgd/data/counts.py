"""From what a detector counted to line integrals: y = -log((counts - dark) / (flat - dark))."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bdgd.checks import InputError

_DEAD = 0.02  # a detector that sees less of the open beam than this share of the median sees nothing
_MOST_DEAD = 0.25  # share of dead detectors beyond which the fields, not the detector, are wrong


@dataclass(frozen=True)
class Repairs:
    """How many values of a slice were not measured, and what was put in their place."""

    dead: frozenset[int] = frozenset()  # detectors, interpolated between their neighbours in every view
    missing: int = 0  # single rays without a finite value, interpolated in the same way
    clamped: int = 0  # rays with no count above the dark field, taken as the smallest count there can be

    def __add__(self, other: Repairs) -> Repairs:
        return Repairs(self.dead | other.dead, self.missing + other.missing, self.clamped + other.clamped)

    def notes(self) -> tuple[str, ...]:
        """A sentence for each kind of repair that was needed."""
        numbers = ", ".join(map(str, sorted(self.dead)[:10])) + (", ..." if len(self.dead) > 10 else "")
        said = (
            (len(self.dead), f"interpolated between neighbours: {_several(len(self.dead), 'dead detector')} ({numbers})"),
            (self.missing, f"interpolated between neighbours: {_several(self.missing, 'ray')} without a finite value"),
            (self.clamped, f"taken as half the smallest count: {_several(self.clamped, 'ray')} without a count above the dark field"),
        )
        return tuple(text for count, text in said if count)


def _several(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def line_integrals(counts: np.ndarray, flat: np.ndarray, dark: np.ndarray | float = 0.0) -> tuple[np.ndarray, Repairs]:
    """y (V, D) in float64 from counts (V, D), the open beam flat (D,) and dark (D,) without beam, with what had to be repaired.

    Whole-number counts at or below the dark field are taken as half a count, other ones as half the smallest positive value.
    """
    flat, dark = np.asarray(flat, dtype=np.float64), np.asarray(dark, dtype=np.float64)  # unsigned numbers have no negative differences
    beam = flat - dark
    dead = _dead_detectors(counts, beam, flat)
    signal = counts.astype(np.float64) - dark  # (V, D)
    missing = ~np.isfinite(signal) & ~dead
    if (missing | dead).mean() > _MOST_DEAD:
        lost = int((missing | dead).sum())
        raise InputError(f"{lost} of {missing.size} counts are no finite number or of a dead detector, too many to interpolate")
    positive = signal[:, ~dead][signal[:, ~dead] > 0]
    if positive.size == 0:
        raise InputError("no count lies above the dark field; check that counts, flat and dark belong together")
    floor = 0.5 if counts.dtype.kind in "iu" else 0.5 * float(positive.min())
    clamped = (signal < floor) & ~dead
    with np.errstate(invalid="ignore", divide="ignore"):
        y = -np.log(np.where(signal < floor, floor, signal) / beam)
    y = _interpolated(y, missing | dead)
    return y, Repairs(frozenset(np.flatnonzero(dead).tolist()), int(missing.sum()), int(clamped.sum()))


def without_gaps(y: np.ndarray) -> tuple[np.ndarray, Repairs]:
    """Line integrals y (V, D) whose NaN, the usual mark of a dead detector or a lost ray, are interpolated between their neighbours.

    y itself where it has none, or where more than a quarter is NaN: then there is not enough left to interpolate from.
    """
    gaps = np.isnan(y)
    if not gaps.any() or gaps.mean() > _MOST_DEAD:
        return y, Repairs()
    dead = gaps.all(0)
    return _interpolated(y.copy(), gaps), Repairs(frozenset(np.flatnonzero(dead).tolist()), int((gaps & ~dead).sum()))


def _dead_detectors(counts: np.ndarray, beam: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """(D,) which detectors see no beam, or say the same whatever stands before them."""
    finite = np.isfinite(beam)
    if not finite.any() or float(np.median(beam[finite])) <= 0:
        raise InputError("flat is not above dark: the open beam must count more than no beam; check that they are not exchanged")
    dead = ~finite | ~(beam > _DEAD * float(np.median(beam[finite])))
    if len(counts) > 1:
        full = np.iinfo(counts.dtype).max if counts.dtype.kind in "iu" else np.inf
        constant = (counts == counts[:1]).all(0)
        dead |= constant & ((np.abs(counts[0] - flat) > 0.01 * np.abs(flat)) | (counts[0] == full))
    if dead.mean() > _MOST_DEAD:
        raise InputError(f"{int(dead.sum())} of {dead.size} detectors are dead; check that counts, flat and dark belong together")
    return dead


def _interpolated(y: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """y with the wrong values of each view replaced by the straight line between its nearest right ones."""
    wrong = np.broadcast_to(wrong, y.shape)
    detectors = np.arange(y.shape[1])
    for view in np.flatnonzero(wrong.any(1)):
        right = ~wrong[view]
        if not right.any():
            raise InputError(f"view {int(view)} has no finite value at all; leave it out")
        y[view, ~right] = np.interp(detectors[~right], detectors[right], y[view, right])
    return y
