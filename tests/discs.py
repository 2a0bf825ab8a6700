"""Synthetic discs with holes in the geometry of the Helsinki challenge, as its scanner would measure them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdgd.data import Ellipses, PoissonNoise, Scans, ellipse_sinogram, rasterise
from bdgd.evaluation.challenge import MeasuredScan, scanner
from bdgd.evaluation.mismatch import HARDENING
from bdgd.operators import FanBeam

ACRYLIC = 0.05  # 1/mm
HOLES = [(6.0, 3.0, 12.0, 8.0, 0.5), (4.0, 8.0, -15.0, 4.0, 0.2), (5.0, 5.0, 2.0, -17.0, 0.0)]  # half-axes, centre (mm), rotation

#: The scanner of the challenge with wide detectors and pixels, one view in four degrees; and a material that it might see.
COARSE_FAN = FanBeam(
    image_size=64,
    angles=np.deg2rad(np.arange(0, 360, 4)),
    detectors=140,
    detector_spacing=0.8,
    pixel_size=1.18656,
    source_to_axis=410.66,
    source_to_detector=553.74,
)
MATERIAL = 0.035  # per mm


def scanned_disc() -> Scans:
    """An analytic disc of 30 mm radius on the coarse scanner, with a hole, photon noise and air off by 0.02."""
    disc = Ellipses.from_rows([(MATERIAL, 30.0, 30.0, 1.0, -2.0, 0.0), (-MATERIAL, 6.0, 9.0, 10.0, 5.0, 0.4)])
    clean = ellipse_sinogram(disc, COARSE_FAN, unit=1 / COARSE_FAN.pixel_size)
    return Scans(PoissonNoise(1e5)(clean + 0.02, generator=torch.Generator().manual_seed(0)), COARSE_FAN, unit="mm")


def disc_with_holes(value: float = ACRYLIC) -> Ellipses:
    """In millimetres; no symmetry maps it onto itself."""
    return Ellipses.from_rows([(value, 34.0, 34.0, 0.5, -0.4, 0.0), *((-value, *hole) for hole in HOLES)])


def disc_image(size: int, value: float = 1.0) -> Tensor:
    """(1, 1, size, size) on the extent of the scanner's image."""
    pixel = scanner().pixel_size * 256 / size
    return rasterise(disc_with_holes(value), size, unit=1 / pixel)


def measured_disc(
    name: str = "ta",
    *,
    air: float = 0.0,
    hardening: float = 0.0,
    noise: float = 0.0,
    axis: float = 0.0,
    generator: torch.Generator | None = None,
) -> MeasuredScan:
    """The disc as it is measured: p of q = p + b p^2, plus air, plus photon noise; axis: the detector that sees it, from the middle"""
    geometry = scanner()
    shifted = replace(geometry, detector_offset=-axis * geometry.detector_spacing)
    q = ellipse_sinogram(disc_with_holes(), shifted, unit=1 / geometry.pixel_size, dtype=torch.float64)
    p = q if hardening == 0 else ((1 + 4 * hardening * q).sqrt() - 1) / (2 * hardening)
    y = p + air
    if noise:
        y = y + noise * torch.exp(p / 2) * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return MeasuredScan(name, Scans(y.float(), geometry, unit="mm"), disc_image(512)[0, 0] > 0.5)


def coarse(scan: MeasuredScan, size: int = 64) -> MeasuredScan:
    """The same scan for images of fewer pixels, which are quicker."""
    geometry = replace(scanner(), image_size=(size, size), pixel_size=scanner().pixel_size * 256 / size)
    return replace(scan, scans=replace(scan.scans, geometry=geometry))


def write_compact(folder: Path, scan: MeasuredScan) -> Path:
    """As a compact file of the challenge, with the organisers' rows from top to bottom."""
    geometry = scanner()
    geo = {"type": "fan-flat", "sod": geometry.source_to_axis, "sdd": geometry.source_to_detector, "det_pix": geometry.detector_spacing}
    geo |= {"n_det": geometry.detectors, "unit": "mm", "angles_deg": "0..359 step 1"}
    path = folder / f"{scan.name}.npz"
    packed = np.packbits(np.rot90(scan.segmentation.numpy()))
    np.savez(path, sino=scan.scans.sinograms[0, 0].numpy(), seg512=packed, geo=json.dumps(geo))
    return path


__all__ = ["ACRYLIC", "HARDENING", "coarse", "disc_image", "disc_with_holes", "measured_disc", "write_compact"]
