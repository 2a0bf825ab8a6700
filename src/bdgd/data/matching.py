"""From a scan as it was measured to the geometry that a model was trained for: the views it needs, on its detectors.

Nothing is done silently: every step is a sentence with its numbers, and what cannot be matched is listed whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.resampling import Detectors, averaged_images, resampled
from bdgd.data.scans import Scans
from bdgd.data.units import shorter_unit
from bdgd.data.views import Views, allowed_deviation, deviations, nearest_views, possible_rotations
from bdgd.operators.geometry import FanBeam, Geometry

REMEDY = "train a model for this scan with: bdgd train own-scan --geometry SCAN -o RUN"

_SAME = 1e-3  # relative: lengths that agree so well are the same length, written with fewer digits
_SEEN = 0.98  # share of the scan's image that the model's must cover
_LARGER = 2.0  # a model's image may show so much more than the scan's
_UNITS = (1.0, 10.0, 0.1, 1000.0, 0.001, 100.0, 0.01, 25.4, 1 / 25.4)  # between units of length that people use

G = TypeVar("G", bound=Geometry)


@dataclass(frozen=True)
class _Report:
    """What was done, and what stands in the way."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def match(scans: Scans, geometry: Geometry, *, tolerance: float = 0.1) -> tuple[Scans, list[str]]:
    """The scans as `geometry` would have measured them, and a sentence for each thing that was done to them.

    Lengths in another unit are scaled; views are picked at the nearest angle, no further off than `tolerance` of the model's view spacing
    nor than half a pixel at the image's edge; detectors are picked, averaged or interpolated. Views that only fit after
    a rotation of the object are used as they are: `rotation` of the result and a note say by how much its images are turned.
    True images are kept, or averaged over wider pixels, where they are still true; the noise where every value is still one that was
    measured. InputError lists all that does not fit.
    """
    if scans.geometry is None:
        raise InputError("scans without a geometry cannot be matched to a model; pass Scans(sinograms, geometry)")
    if scans.geometry == geometry:
        return scans, []
    report = _Report()
    if type(scans.geometry) is not type(geometry):
        report.problems.append(f"the scan is {_in_words(scans.geometry)}, and the model is for {_in_words(geometry)}")
        raise _refusal(report)
    factor = _length_factor(scans.geometry, geometry)
    ours = _in_model_lengths(scans, factor, geometry, report)
    unit = shorter_unit(scans.unit, factor)
    _check_image(ours, geometry, unit, report)
    views = _pick_views(ours, geometry, tolerance, report)
    sinograms = _fit_detectors(scans.sinograms, ours, geometry, views, unit, report)
    if report.problems or views is None or sinograms is None:
        if isinstance(ours, FanBeam) and factor not in _UNITS:  # alone it is no more than another scale
            scan, model = ours.source_to_axis / factor, ours.source_to_axis
            report.problems.append(f"the source is {scan:.6g} from the axis in the scan and {model:.6g} in the model")
        raise _refusal(report)
    return _result(scans, sinograms, ours, geometry, factor, views, report), report.notes


def _refusal(report: _Report) -> InputError:
    return InputError(f"the scan does not fit the model: {'; '.join(report.problems)}; {REMEDY}")


def _in_words(geometry: Geometry) -> str:
    """A whole geometry in one breath."""
    fan = f" with its source {geometry.source_to_axis:.6g} from the axis" if isinstance(geometry, FanBeam) else ""
    return (
        f"a {'fan' if fan else 'parallel'} beam{fan}, {geometry.views} views over {math.degrees(geometry.arc[1]):.4g} degrees,"
        f" {geometry.detectors} detectors of {geometry.detector_spacing:.6g} and {_grid(geometry)}"
    )


def _grid(geometry: Geometry, unit: str | None = None) -> str:
    return f"{geometry.image_size[0]} x {geometry.image_size[1]} pixels of {geometry.pixel_size:.6g}" + (f" {unit}" if unit else "")


# --- lengths -------------------------------------------------------------------------------------------------------------


def _extent(geometry: Geometry) -> float:
    """The shorter side of the image, as a length."""
    return min(geometry.image_size) * geometry.pixel_size


def _length_factor(ours: Geometry, theirs: Geometry) -> float:
    """The scan's lengths times this are the model's: 1, a ratio of units, or whatever makes the two scanners alike.

    A fan beam has its scale from the source; a parallel one only from the image, so a usual unit is preferred.
    """
    if isinstance(ours, FanBeam) and isinstance(theirs, FanBeam):
        ratio = theirs.source_to_axis / ours.source_to_axis
        return next((unit for unit in _UNITS if math.isclose(ratio, unit, rel_tol=_SAME)), ratio)
    ratio = _extent(theirs) / _extent(ours)
    return next((unit for unit in _UNITS if _SEEN <= ratio / unit <= _LARGER), ratio)


def _in_model_lengths(scans: Scans, factor: float, theirs: Geometry, report: _Report) -> Geometry:
    """The scan's geometry in the model's unit of length, with a fan's detector moved along its rays to the model's distance."""
    assert scans.geometry is not None
    ours = _scaled(scans.geometry, factor)
    if factor != 1.0:
        unit = f" ({scans.unit} to {shorter_unit(scans.unit, factor)})" if scans.unit is not None else ""
        report.notes.append(f"the scan's lengths were multiplied by {factor:.6g}{unit} to be the model's; images are per the new length")
    if isinstance(ours, FanBeam) and isinstance(theirs, FanBeam):
        stretch = theirs.source_to_detector / ours.source_to_detector
        if not math.isclose(stretch, 1.0, rel_tol=_SAME):
            report.notes.append(
                f"the detector was moved along its rays from {ours.source_to_detector:.6g} to {theirs.source_to_detector:.6g},"
                f" so its spacing is {ours.detector_spacing * stretch:.6g} instead of {ours.detector_spacing:.6g}"
            )
            ours = replace(
                ours,
                source_to_detector=theirs.source_to_detector,
                detector_spacing=ours.detector_spacing * stretch,
                detector_offset=ours.detector_offset * stretch,
            )
    return ours


def _scaled(geometry: G, factor: float) -> G:
    if factor == 1.0:
        return geometry
    names = ("detector_spacing", "detector_offset", "pixel_size", "source_to_axis", "source_to_detector")
    return replace(geometry, **{name: factor * getattr(geometry, name) for name in names if hasattr(geometry, name)})


def _same_image(ours: Geometry, theirs: Geometry) -> bool:
    return ours.image_size == theirs.image_size and math.isclose(ours.pixel_size, theirs.pixel_size, rel_tol=_SAME)


def _check_image(ours: Geometry, theirs: Geometry, unit: str | None, report: _Report) -> None:
    """The image is the model's; it must show what the scan's would."""
    if _same_image(ours, theirs):
        return
    grids = [_grid(ours, unit), _grid(theirs, unit)]
    shares = [(n * theirs.pixel_size) / (m * ours.pixel_size) for m, n in zip(ours.image_size, theirs.image_size, strict=True)]
    if min(shares) < _SEEN or max(shares) > _LARGER:
        report.problems.append(
            f"the image is {grids[0]} ({_extent(ours):.4g} wide) in the scan and {grids[1]} ({_extent(theirs):.4g} wide) in the model"
        )
    else:
        report.notes.append(f"the image has the model's {grids[1]}, not the scan's {grids[0]}")


# --- views ---------------------------------------------------------------------------------------------------------------


def _pick_views(ours: Geometry, theirs: Geometry, tolerance: float, report: _Report) -> Views | None:
    """The scan's views at the model's angles, or else at the model's angles plus one rotation."""
    allowed = allowed_deviation(theirs, tolerance)
    found = nearest_views(ours, theirs, np.zeros(1))
    if found.deviation > allowed:
        found = nearest_views(ours, theirs, possible_rotations(ours, theirs, allowed))
    if found.deviation > allowed:
        report.problems.append(_view_problem(ours, theirs, allowed))
        return None
    _say_views(ours, theirs, found, report)
    return found


def _say_views(ours: Geometry, theirs: Geometry, views: Views, report: _Report) -> None:
    if not (ours.views == theirs.views and (views.numbers == np.arange(theirs.views)).all() and not views.flipped.any()):
        flipped = f", {int(views.flipped.sum())} of them from the other side" if views.flipped.any() else ""
        first, last = (round(math.degrees(ours.angles[views.numbers[k]]), 6) % 360 for k in (0, -1))
        report.notes.append(f"{theirs.views} of the scan's {ours.views} views were taken, from {first:.6g} to {last:.6g} degrees{flipped}")
    if views.deviation > 1e-6:
        report.notes.append(f"the views' angles differ from the model's by up to {math.degrees(views.deviation):.3g} degrees")
    if views.rotation:
        report.notes.append(
            f"the views that were taken start {math.degrees(views.rotation):.6g} degrees after the model's, so images come out turned:"
            f" turn them by {math.degrees(views.rotation):.6g} degrees counter-clockwise (y upward) to lie as the object did"
        )


def _view_problem(ours: Geometry, theirs: Geometry, allowed: float) -> str:
    off = deviations(ours, theirs)
    words = [f"{g.views} views over an arc of {math.degrees(g.arc[1]):.4g} degrees" for g in (ours, theirs)]
    return (
        f"the scan has {words[0]} and the model needs {words[1]}: {int((off > allowed).sum())} of these are not in the scan,"
        f" the furthest by {math.degrees(float(off.max())):.3g} degrees"
    )


# --- detectors -----------------------------------------------------------------------------------------------------------


def _fit_detectors(
    sinograms: Tensor, ours: Geometry, theirs: Geometry, views: Views | None, unit: str | None, report: _Report
) -> Tensor | None:
    """(B, 1, V, D) the picked views on the model's detectors; a flipped view is read at -s, so that its offset stays right."""
    line, wanted = Detectors.of(ours), Detectors.of(theirs)
    if problem := line.cannot_serve(wanted, sinograms):
        report.problems.append(problem)
        return None
    if views is None:
        return None
    straight = sinograms[:, :, torch.as_tensor(views.numbers)]
    result = resampled(straight, line, wanted)
    if views.flipped.any():
        flipped = torch.as_tensor(views.flipped)[:, None]
        result = torch.where(flipped.to(result.device), resampled(straight.flip(-1), line.flipped(), wanted), result)
    if note := line.how_it_serves(wanted, unit):
        report.notes.append(note)
    return result


# --- result --------------------------------------------------------------------------------------------------------------


def _true_images(images: Tensor | None, ours: Geometry, theirs: Geometry, views: Views, report: _Report) -> Tensor | None:
    """The truth on the model's pixels, where it is known on narrower ones and lies as the model's image will."""
    if images is None or (_same_image(ours, theirs) and not views.rotation):
        return images
    averaged = None if views.rotation else averaged_images(images, ours, theirs)
    reason = "the model's image comes out turned" if views.rotation else "they do not hold the model's pixels"
    done = f"left out: {reason}" if averaged is None else "averaged over the model's pixels"
    report.notes.append(f"the true images were {done}")
    return averaged


def _same_noise(scans: Scans, ours: Geometry, theirs: Geometry, views: Views) -> bool:
    """Whether every value is one of the scan's: means and interpolated values have less noise, and fewer rays another mean."""
    line, wanted = Detectors.of(ours), Detectors.of(theirs)
    lines = [*([line] if not views.flipped.all() else []), *([line.flipped()] if views.flipped.any() else [])]
    return scans.sinograms.shape[2:] == (theirs.views, theirs.detectors) and all(each.picks(wanted) for each in lines)


def _result(scans: Scans, sinograms: Tensor, ours: Geometry, theirs: Geometry, factor: float, views: Views, report: _Report) -> Scans:
    images = _true_images(scans.images, ours, theirs, views, report)
    spacing = None if scans.slice_spacing is None else factor * scans.slice_spacing
    return replace(
        scans,
        sinograms=sinograms,
        geometry=theirs,
        images=None if images is None else images / factor,
        noise=scans.noise if _same_noise(scans, ours, theirs, views) else None,
        unit=shorter_unit(scans.unit, factor),
        slice_spacing=spacing,
        rotation=scans.rotation + views.rotation,
        notes=(*scans.notes, *report.notes),
    )
