"""How a measured scan differs from y = A x: the air, the noise, the axis of rotation and the beam, each as a number.

A model that is trained on simulated scans meets these for the first time in a measured one, so its training randomises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdgd.data import Correction, estimate_axis
from bdgd.data.correction import air_level, hardened, outermost
from bdgd.data.estimates import photon_noise
from bdgd.evaluation.challenge import MeasuredScan
from bdgd.evaluation.pages import markdown_table, noted, origins
from bdgd.operators import RayTransform
from bdgd.storage import read_kept

#: b for the challenge's tube (45 kV, 0.5 mm aluminium) and acrylic: the mean that `mismatch` finds on the training scans.
HARDENING = 0.27
#: What makes line integrals of one attenuation of the challenge's scans.
CORRECTION = Correction(air=True, hardening=HARDENING)

_VIEWS_BETWEEN = 15  # the path through acrylic is computed for every 15th view
_SHORTEST = 0.2  # of the longest path: shorter ones graze the rim, where half a pixel of radius matters


def air_offset(y: Tensor) -> float:
    """What rays that pass the object read, which should be 0: the mean of the outermost detectors of y (1, 1, V, D)."""
    return float(air_level(y))


@dataclass(frozen=True)
class MeasuredMismatch:
    """How one scan departs from y = A x. Line integrals p have no unit; lengths are in millimetres.

    air: what the air reads. air_drift: its standard deviation from view to view. stripes: from detector to detector, averaged over
    the views. noise: standard deviation of a ray through air,
    times e^(p/2) elsewhere. axis: where the axis is seen, in detectors from the middle. attenuation: of a thin piece of acrylic, 1/mm.
    hardening: b of p + b p^2 = attenuation * path, with p what is above the air. misfit_straight, misfit: root mean square by which the
    measured rays miss this law with b = 0 and with b, relative to the largest p.
    """

    name: str
    air: float
    air_drift: float
    stripes: float
    noise: float
    axis: float
    attenuation: float
    hardening: float
    misfit_straight: float
    misfit: float

    @property
    def photons(self) -> float:
        """Per detector in air."""
        return 1 / self.noise**2


def mismatch(scan: MeasuredScan, device: torch.device | str = "cpu") -> MeasuredMismatch:
    """Measure all of it on one scan, with the path through acrylic from the organisers' segmentation."""
    y, geometry = scan.scans.sinograms, scan.scans.geometry
    assert geometry is not None
    offset = air_offset(y)
    path = _path(scan, device)
    p = y[:, :, ::_VIEWS_BETWEEN].double() - offset
    long = path > _SHORTEST * path.max()
    attenuation, hardening = _hardening(path[long], p[long])
    return MeasuredMismatch(
        name=scan.name,
        air=offset,
        air_drift=float(outermost(y).mean(-1).std()),
        stripes=float(outermost(y).mean(2).std()),
        noise=photon_noise(y),
        axis=-estimate_axis(y, geometry) / geometry.detector_spacing,
        attenuation=attenuation,
        hardening=hardening,
        misfit_straight=_misfit(path[long], p[long], float((path[long] * p[long]).sum() / path[long].square().sum()), 0.0),
        misfit=_misfit(path[long], p[long], attenuation, hardening),
    )


def _path(scan: MeasuredScan, device: torch.device | str) -> Tensor:
    """(1, 1, V, D) the length of every ray of some views in acrylic."""
    geometry = scan.scans.geometry
    assert geometry is not None
    side = scan.segmentation.shape[0]
    pixel = geometry.pixel_size * geometry.image_size[0] / side
    fine = replace(geometry[::_VIEWS_BETWEEN], image_size=(side, side), pixel_size=pixel)
    segmentation = scan.segmentation[None, None].to(device, torch.float32)
    return RayTransform(fine, device, strategy="matrix-free")(segmentation).cpu().double()


def _hardening(path: Tensor, p: Tensor) -> tuple[float, float]:
    """Attenuation and b by least squares of path = (p + b p^2) / attenuation, which is linear in 1 / attenuation and b / attenuation."""
    weights = torch.linalg.lstsq(torch.stack((p, p.square()), -1), path[:, None]).solution.flatten()
    return 1 / float(weights[0]), float(weights[1] / weights[0])


def _misfit(path: Tensor, p: Tensor, attenuation: float, hardening: float) -> float:
    """Root mean square of what the law predicts minus p, relative to the largest p."""
    return float((hardened(attenuation * path, hardening) - p).square().mean().sqrt() / p.max())


def read_mismatch(path: Path) -> tuple[list[MeasuredMismatch], dict[str, Any]]:
    """What was measured before and kept as JSON, and where it comes from; empty where there is nothing."""

    def both(kept: Any) -> tuple[list[MeasuredMismatch], dict[str, Any]]:
        return [MeasuredMismatch(**entry) for entry in kept["scans"]], dict(kept["provenance"])

    nothing: tuple[list[MeasuredMismatch], dict[str, Any]] = ([], {})
    return read_kept(path, "the mismatch of scans", both, nothing)


def mismatch_table(found: Sequence[MeasuredMismatch], origin: dict[str, Any]) -> str:
    """The numbers as a Markdown table, a row per scan, and below it where they come from."""
    columns = ["scan", "air reads", "its drift", "its stripes", "noise in air", "photons", "axis (detectors)"]
    columns += ["acrylic (1/mm)", "hardening b", "misfit, b = 0", "misfit"]
    return noted("", markdown_table(columns, [_cells(each) for each in found]), origins([{"provenance": origin}]))


def _cells(m: MeasuredMismatch) -> list[str]:
    scanner = [f"{m.air:+.4f}", f"{m.air_drift:.4f}", f"{m.stripes:.4f}", f"{m.noise:.4f}", f"{m.photons:,.0f}", f"{m.axis:+.3f}"]
    return [m.name, *scanner, f"{m.attenuation:.4f}", f"{m.hardening:.3f}", f"{m.misfit_straight:.2%}", f"{m.misfit:.2%}"]
