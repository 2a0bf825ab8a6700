"""Where the axis of rotation is, from the scan itself.

A ray that is measured from both ends must read the same: view theta at s and view theta + pi - 2 gamma at -s, with
gamma = atan(s / source_to_detector) for a fan beam and 0 for a parallel one. Only the right `detector_offset` makes all such pairs agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite, require_number
from bdgd.operators.geometry import FanBeam, Geometry, ParallelBeam

_FEWEST = 0.25  # share of a view's rays that must have an opposite, or the estimate rests on too little
_LEAST_ARC = math.pi / 3 - 1e-6  # radians: on less the way of the centre of mass is too straight to tell its middle
_LEAST_SEEN = 0.1  # of the mean square of all rays: what is compared must hold so much of the object
_DISAGREE = 0.25  # of the mean square of the rays that are compared: so much their difference may be with any axis that is best
_CLEAR = 0.5  # of the mismatch of most other axes: where _MANY views are compared, what a clearly better one leaves is noise
_MANY = 16
_SMOOTHING = 1.5  # detectors: interpolation between noisy values would prefer the places between detectors


def offset_of_axis(axis: float, geometry: Geometry) -> float:
    """The `detector_offset` of an axis that is seen at detector number `axis`."""
    number = require_number(axis, "axis")
    if not 0 <= number <= geometry.detectors - 1:
        raise InputError(f"axis must be the number of a detector from 0 to {geometry.detectors - 1}, or 'estimate', got {axis!r}")
    return ((geometry.detectors - 1) / 2 - number) * geometry.detector_spacing


def axis_of_offset(geometry: Geometry) -> float:
    """The number of the detector that sees the axis: the inverse of `offset_of_axis`."""
    return (geometry.detectors - 1) / 2 - geometry.detector_offset / geometry.detector_spacing


def estimate_axis(sinograms: Tensor, geometry: Geometry) -> float:
    """The `detector_offset` for which sinograms (B, 1, V, D) agree best with themselves, whatever the geometry says of it.

    From opposite rays where the views hold some: all around for a fan beam, half around and one view more for a parallel one.
    Else, for a parallel beam half around, from the seam where the flipped views continue the last ones. Else, for a parallel beam over
    at least a sixth of a turn, from the centre of mass, which moves on a sinusoid about the axis: coarser, and only right where
    the object is seen whole.
    """
    require_batch(sinograms, (1, geometry.views, geometry.detectors), "the sinogram")
    require_finite(sinograms, "the sinogram")
    y = sinograms[:, 0].detach().cpu().to(torch.float64).numpy()
    if float(np.ptp(y)) == 0.0:
        raise InputError("the axis cannot be estimated: the sinogram has one value throughout; give detector_offset in the geometry")
    if opposed := _opposed_views(geometry):
        return _best_offset(_opposites_mismatch, _smooth(y), geometry, _CLEAR if opposed >= _MANY else 0.0)
    if (seam := _seam(geometry)) is not None:
        return _best_offset(_seam_mismatch, _smooth(y[:, seam]), geometry[seam.tolist()], 0.0)
    if isinstance(geometry, FanBeam) or geometry.arc[1] <= _LEAST_ARC:
        degrees = math.degrees(geometry.arc[1])
        raise InputError(f"the axis cannot be estimated from an arc of {degrees:.0f} degrees; give detector_offset in the geometry")
    return _from_centre_of_mass(y, geometry)


def has_centre_of_mass_offset(geometry: Geometry) -> bool:
    """Whether `centre_of_mass_offset` is determined: parallel rays, three views, and an arc on which a sinusoid is no constant."""
    return isinstance(geometry, ParallelBeam) and geometry.views >= 3 and geometry.arc[1] > _LEAST_ARC


def centre_of_mass_offset(sinograms: Tensor, geometry: Geometry) -> Tensor:
    """(B,) float64: the `detector_offset` of each parallel sinogram (B, 1, V, D), whatever the geometry says of it, air being 0.

    Least squares of moment = mass (-offset + a cos(theta) + b sin(theta)) over the views, with detectors counted from the middle.
    Every view has the same noise in its moment, so none is divided by its own mass, and one that is empty has no say.
    """
    y = sinograms[:, 0].double()
    positions = torch.arange(geometry.detectors, dtype=y.dtype, device=y.device) - (geometry.detectors - 1) / 2
    theta = torch.tensor(geometry.angles, dtype=y.dtype, device=y.device)
    sinusoid = torch.stack((torch.ones_like(theta), theta.cos(), theta.sin()), -1)  # (V, 3)
    mass, moment = y.sum(-1, keepdim=True), y @ positions[:, None]  # (B, V, 1)
    centre = torch.linalg.pinv(mass * sinusoid) @ moment  # (B, 3, 1); of a scan of nothing 0
    return -centre[:, 0, 0] * geometry.detector_spacing


def _opposed_views(geometry: Geometry) -> int:
    """How many views have rays that are measured from both ends, wherever on the detector the axis is; 0 where they are too few rays."""
    wanted, _ = _opposite_angles(geometry, 0.0)
    usable = _interpolation(geometry, wanted)[2]
    return int(usable.any(1).sum()) if usable.any(0).mean() > _FEWEST else 0


def _opposite_angles(geometry: Geometry, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """(V, D) angle at which each ray is seen from its other end, and (D,) the position on the detector, for an assumed offset."""
    positions = (np.arange(geometry.detectors) - (geometry.detectors - 1) / 2) * geometry.detector_spacing + offset
    bend = 2 * np.arctan(positions / geometry.source_to_detector) if isinstance(geometry, FanBeam) else np.zeros_like(positions)
    return np.asarray(geometry.angles)[:, None] + math.pi - bend, positions


def _interpolation(geometry: Geometry, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The measured views around each wanted angle, (2, ...) their numbers and weights, and where they are near enough to use."""
    turn = 2 * math.pi
    angles = np.remainder(np.asarray(geometry.angles), turn)
    known, order = np.unique(np.round(angles, 9), return_index=True)
    place = np.searchsorted(known, np.round(np.remainder(wanted, turn), 9))
    lower, upper = (place - 1) % len(known), place % len(known)
    gap = np.where(known[upper] == known[lower], turn, np.remainder(known[upper] - known[lower], turn))
    share = np.remainder(wanted - known[lower], turn) / gap
    near = gap < 2.5 * float(np.median(geometry.view_weights.numpy())) + 1e-9
    exact = (np.abs(np.remainder(wanted - known[upper] + math.pi, turn) - math.pi)) < 1e-6
    share = np.where(exact, 1.0, np.clip(share, 0.0, 1.0))
    return np.stack((order[lower], order[upper])), np.stack((1 - share, share)), near | exact


def _best_offset(mismatch: Callable[[np.ndarray, Geometry, float], float], y: np.ndarray, geometry: Geometry, clear: float) -> float:
    """The offset with the smallest mismatch: a coarse search over half the detector, then ever finer ones around its best.

    It must be below `_DISAGREE`, or below `clear` times that of the middle one of the coarse search.
    """
    spacing, reach = geometry.detector_spacing, geometry.detectors // 4
    step = float(max(1, reach // 32))
    candidates, usual = np.arange(-reach, reach + step, step) * spacing, math.nan
    while True:
        errors = np.array([mismatch(y, geometry, float(offset)) for offset in candidates])
        if not np.isfinite(errors).any():
            raise InputError("the axis cannot be estimated: too few rays are measured from both ends; give detector_offset in the geometry")
        best = float(candidates[int(np.nanargmin(errors))])
        usual = usual if math.isfinite(usual) else float(np.nanmedian(errors))  # of the first, coarse search
        if step <= 0.02:
            break
        step /= 4
        candidates = np.linspace(best - 4 * step * spacing, best + 4 * step * spacing, 9)
    if abs(best) > reach * spacing or np.nanmin(errors) > max(_DISAGREE, clear * usual):
        raise InputError(
            "the axis cannot be estimated: with none in the middle half of the detector do rays that were measured from both ends agree,"
            " so it is elsewhere or the noise too large; give detector_offset in the geometry"
        )
    return best


def _relative(squares: np.ndarray, y: np.ndarray, compared: np.ndarray) -> float:
    """The mean of squared differences over the rays that are compared, relative to the mean square of these rays y.

    NaN where they hold hardly anything of the object: any two air values would agree.
    """
    size = float(np.square(y[:, compared]).mean())
    return float(squares[:, compared].mean()) / size if size > _LEAST_SEEN * float(np.square(y).mean()) else math.nan


def _opposites_mismatch(y: np.ndarray, geometry: Geometry, offset: float) -> float:
    """Mean squared difference of the rays that are seen from both ends, relative to their mean square."""
    wanted, positions = _opposite_angles(geometry, offset)
    views, weights, usable = _interpolation(geometry, wanted)
    place = (-positions - offset) / geometry.detector_spacing + (geometry.detectors - 1) / 2  # (D,) where -s lies
    inside = (place >= 0) & (place <= geometry.detectors - 1)
    usable = usable & inside
    if usable.any(0).mean() < 0.4:
        return math.nan
    left = np.clip(np.floor(place).astype(int), 0, geometry.detectors - 2)
    share = place - left
    opposite = sum(
        weights[k] * (y[:, views[k], left[None]] * (1 - share) + y[:, views[k], left[None] + 1] * share) for k in (0, 1)
    )  # (B, V, D)
    return _relative(np.square(y - opposite), y, usable)


def _seam(geometry: Geometry) -> np.ndarray | None:
    """The numbers of the first two and the last two views of a parallel scan that goes half around, or None where it does not."""
    angles = np.asarray(geometry.angles)
    order = np.argsort(angles, kind="stable")
    if isinstance(geometry, FanBeam) or len(order) < 8 or np.diff(angles[order]).min() <= 0:
        return None
    gap = angles[order[0]] + math.pi - angles[order[-1]]
    return order[[0, 1, -2, -1]] if 0 < gap < 2.5 * float(np.median(np.diff(angles[order]))) else None


def _seam_mismatch(y: np.ndarray, geometry: Geometry, offset: float) -> float:
    """Mean squared distance of the views beside the seam from the straight line between their neighbours, one of them flipped, relative.

    Views 2, 3 | 0, 1 follow one another, the latter two seen from the other side, half a turn on: view 3 lies between 2 and flipped 0,
    and flipped 0 between 3 and flipped 1.
    """
    first, second, before, last = geometry.angles
    place = np.arange(geometry.detectors) + 2 * offset / geometry.detector_spacing  # of s on a flipped detector
    inside = (place >= 0) & (place <= geometry.detectors - 1)
    if inside.mean() < 0.4:
        return math.nan
    left = np.clip(np.floor(place).astype(int), 0, geometry.detectors - 2)
    flipped = y[:, :2, ::-1]
    flipped = flipped[..., left] * (1 - (place - left)) + flipped[..., left + 1] * (place - left)  # (B, 2, D)
    share = (last - before) / (first + math.pi - before)
    error = y[:, 3] - (1 - share) * y[:, 2] - share * flipped[:, 0]
    share = (first + math.pi - last) / (second + math.pi - last)
    error_after = flipped[:, 0] - (1 - share) * y[:, 3] - share * flipped[:, 1]
    return _relative(np.square(error) + np.square(error_after), y[:, 3], inside)


def _from_centre_of_mass(y: np.ndarray, geometry: Geometry) -> float:
    y = y - np.minimum(y[..., :1], y[..., -1:])  # air that reads above zero would pull the centre to the middle
    if (y.sum(-1) <= 0).any():
        raise InputError("the axis cannot be estimated: a view holds no object; give detector_offset in the geometry")
    return float(centre_of_mass_offset(torch.from_numpy(y)[:, None], geometry).mean())


def _smooth(y: np.ndarray) -> np.ndarray:
    from scipy.ndimage import gaussian_filter1d

    smooth: np.ndarray = gaussian_filter1d(y, _SMOOTHING, axis=-1, mode="nearest")
    return smooth
