"""Scans that a model was not made for, each with one thing wrong and the rest as it should be: ordinary errors of the scanner and the
correction that the model carries included.

noise     relative Gaussian noise of another size
views     a scan of n views over the arc of the model's V: each of the model's views is given the one at the nearest angle, as if it
          were right. `bdgd.data.match`, and so `bdgd reconstruct`, refuses such a scan if it states its angles; whoever fills a tensor
          by hand with the views that are there makes this mistake
missing   n views, other ones in every image, whose frames were lost and are 0
axis      the axis of rotation is n detectors from where the geometry has it
anatomy   everything right but the object: slices of patients instead of what the model was trained on
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError, require_choice, require_number
from bdgd.data import GaussianNoise, Mismatch, Noise, Scans, named_generator, simulate
from bdgd.models import Reconstructor, ray_transform
from bdgd.operators import Geometry, RayTransform

#: The kinds, in the order in which they are shown, with what their value is.
KINDS = {
    "noise": "noise / % of the mean",
    "views": "views of the scan",
    "missing": "views lost",
    "axis": "axis off by / detectors",
    "anatomy": "patients",
}
ORDINARY = "ordinary"

_NOISE = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
_OFF = (-3, -2, -1, 0, 1, 2, 3)
_MISSING = (0, 1, 2, 3)
_AXIS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Condition:
    """One thing that is wrong with a scan, by its kind and its value in the unit of `KINDS`; "ordinary" is nothing wrong."""

    kind: str = ORDINARY
    value: float = 0.0

    def __post_init__(self) -> None:
        require_choice(self.kind, (ORDINARY, *KINDS), "kind")
        if require_number(self.value, "value") < 0:
            raise InputError(f"the value of a condition must be at least 0, got {self.value:g} for {self.kind}")
        if self.kind in ("views", "missing") and self.value != int(self.value):
            raise InputError(f"{self.kind} are counted, got {self.value:g}")
        if self.kind == "views" and self.value < 2:
            raise InputError(f"a scan needs at least 2 views, got {self.value:g}")


def standard_conditions(model: Reconstructor, noise: Noise) -> list[Condition]:
    """The curves of the project: noise 0.5 to 5 %, views off by up to 3, up to 3 views lost, the axis off by up to 2 detectors.

    What is ordinary for the model is left out of all four; `ordinary_value` says where it belongs.
    """
    views = geometry_of(model).views
    curves = {
        "noise": _NOISE,
        "views": [float(views + n) for n in _OFF if views + n >= 2],
        "missing": [float(n) for n in _MISSING if n < views],
        "axis": _AXIS,
    }
    return [
        Condition(kind, value)
        for kind, values in curves.items()
        for value in values
        if value != ordinary_value(kind, views, noise.to_dict())
    ]


def ordinary_value(kind: str, views: int, noise: dict[str, Any]) -> float | None:
    """Where on the curve of a kind the ordinary scans lie; None where they do not (photon noise on the curve of the Gaussian one)."""
    if kind == "noise":
        return round(100 * noise["relative"], 9) if noise["kind"] == "gaussian" else None
    return {"views": float(views), "missing": 0.0, "axis": 0.0}.get(kind)


def scans_under(
    condition: Condition, model: Reconstructor, images: Tensor, noise: Noise, seed: int = 0, mismatch: Mismatch | None = None
) -> Scans:
    """Scans of the images (B, 1, H, W) with that one thing wrong, corrected as the model needs them.

    mismatch: the scanner's ordinary errors. Those and the noise have the same seed under every condition.
    """
    generator, kind, value = named_generator("conditions noise", seed), condition.kind, condition.value
    noise = GaussianNoise(value / 100) if kind == "noise" else noise
    mismatch = _shifted(mismatch, value) if kind == "axis" else mismatch
    geometry, A = (None, model.A) if kind != "views" else _other_views(model, int(value))
    scans = simulate(A, images, noise, generator=generator, mismatch=mismatch)
    if geometry is not None:
        scans = _with_nearest_views(scans, geometry)
    scans = scans.corrected(model.correction)
    if kind == "missing":
        lost = _lost(scans.sinograms, int(value), named_generator("conditions lost", seed))
        return replace(scans, sinograms=scans.sinograms.masked_fill(lost, 0.0))
    return scans


def _shifted(mismatch: Mismatch | None, detectors: float) -> Mismatch:
    """The mismatch with its axis so much further off."""
    usual = mismatch or Mismatch()
    low, high = usual.axis_shift
    return replace(usual, axis_shift=(low + detectors, high + detectors))


def geometry_of(model: Reconstructor) -> Geometry:
    if not isinstance(model.A, RayTransform):
        raise InputError(
            f"scans can be made worse only for a ray transform, whose views are known; this model has {type(model.A).__name__}"
        )
    return model.A.geometry


def _other_views(model: Reconstructor, views: int) -> tuple[Geometry, RayTransform]:
    """The model's geometry, and the transform of a scan of so many views over the same arc."""
    geometry, A = geometry_of(model), ray_transform(model)
    return geometry, RayTransform(replace(geometry, angles=spread_views(geometry, views)), A.device, A.dtype)


def _with_nearest_views(scans: Scans, geometry: Geometry) -> Scans:
    """What the geometry makes of scans of other views: each of its V views gets the nearest."""
    assert scans.geometry is not None
    apart = np.abs(np.asarray(scans.geometry.angles)[None] - np.asarray(geometry.angles)[:, None])  # (V, n)
    return replace(scans, sinograms=scans.sinograms[:, :, apart.argmin(1).tolist()], geometry=geometry)


def spread_views(geometry: Geometry, views: int) -> tuple[float, ...]:
    """The angles of so many views over the arc of the geometry's V: the arc is cut into equal parts, and a view lies in the middle of each.

    Where the geometry's own views are unevenly spread, these are denser where they are.
    """
    angles = np.asarray(geometry.angles, dtype=np.float64)
    step = (angles[-1] - angles[0]) / max(len(angles) - 1, 1)
    beyond = np.concatenate(([angles[0] - step], angles, [angles[-1] + step]))
    places = (np.arange(views) + 0.5) * len(angles) / views - 0.5  # in views of the geometry
    return tuple(np.interp(places, np.arange(-1, len(angles) + 1), beyond).tolist())


def _lost(sinograms: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(B, 1, V, 1) true at `count` views of every image, drawn image after image."""
    views = sinograms.shape[2]
    if count >= views:
        raise InputError(f"{count} views cannot be lost of {views}; at least one must be left")
    lost = torch.zeros(len(sinograms), 1, views, 1, dtype=torch.bool)
    for image in lost:
        image[0, torch.randperm(views, generator=generator)[:count]] = True
    return lost.to(sinograms.device)
