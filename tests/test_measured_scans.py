"""FBP of measured scans, which no simulation can flatter: the right way round, the right size, and sharp only on the right axis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bdgd.classical.fbp import fbp
from bdgd.operators import FanBeam, ParallelBeam, RayTransform

PIXEL = 0.29664  # mm, of the references
SCANS = ["solid_disc", "ta", "tb", "tc", "td", *(f"0{level}{letter}" for level in range(1, 8) for letter in "ab")]


class Measured(NamedTuple):
    picture: np.ndarray  # FBP with rows from top to bottom
    reference: np.ndarray  # the organisers' orientation


def htc_geometry(geo: dict[str, float]) -> FanBeam:
    return FanBeam(
        image_size=256,
        angles=np.deg2rad(np.arange(360)),
        detectors=int(geo["n_det"]),
        detector_spacing=geo["det_pix"],
        pixel_size=PIXEL,
        source_to_axis=geo["sod"],
        source_to_detector=geo["sdd"],
    )


@pytest.fixture(scope="module")
def discs(shared_data: Path) -> dict[str, Measured]:
    """All 19 scans of the Helsinki challenge, reconstructed in one batch."""
    files = [np.load(shared_data / "htc2022" / f"{name}.npz") for name in SCANS]
    geometries = {htc_geometry(json.loads(str(file["geo"]))) for file in files}
    assert len(geometries) == 1  # one scanner
    A = RayTransform(geometries.pop(), strategy="matrix-free")  # FBP of a fan needs no matrix
    y = torch.from_numpy(np.stack([file["sino"] for file in files]))[:, None]  # (19, 1, 360, 280)
    images = fbp(A, y)[:, 0].numpy()
    return {
        name: Measured(np.rot90(image), file["ref256"].astype(np.float64)) for name, image, file in zip(SCANS, images, files, strict=True)
    }


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@pytest.mark.parametrize("name", SCANS)
def test_a_measured_disc_comes_back_the_right_way_round(name: str, discs: dict[str, Measured]) -> None:
    picture, reference = discs[name]
    right = correlation(picture, reference)
    assert right >= 0.98
    if name != "solid_disc":  # which is symmetric
        others = [correlation(np.rot90(flipped, k), reference) for flipped in (picture, picture[::-1]) for k in range(4)][1:]
        assert right >= max(others) + 0.02


@pytest.mark.parametrize("name", SCANS)
def test_a_measured_disc_has_the_attenuation_of_its_reference(name: str, discs: dict[str, Measured]) -> None:
    picture, reference = discs[name]
    acrylic = reference > 0.8 * np.quantile(reference, 0.95)
    assert picture[acrylic].mean() == pytest.approx(reference[acrylic].mean(), rel=0.02)


# --- the tooth -----------------------------------------------------------------------------------------------------

AXIS = 296  # the detector that sees the axis, from the data's own description


@pytest.fixture(scope="module")
def tooth(shared_data: Path) -> dict[int, Tensor]:
    """Both slices (2, H, W) with the axis taken at a few detectors; a step of 2 in the pixel size keeps it quick."""
    file = np.load(shared_data / "tooth_parallel.npz")
    y = torch.from_numpy(file["sino"])[:, None]  # (2, 1, 181, 640)
    assert float(file["centre_px"]) == AXIS
    images = {}
    for axis in (AXIS - 4, AXIS, AXIS + 4):
        geometry = ParallelBeam(
            image_size=256,
            angles=np.deg2rad(file["theta_deg"]),
            detectors=y.shape[-1],
            detector_offset=(y.shape[-1] - 1) / 2 - axis,
            pixel_size=2.0,
        )
        images[axis] = fbp(RayTransform(geometry, strategy="matrix-free"), y, filter="hann")[:, 0]
    return images


def total_variation(images: Tensor) -> Tensor:
    """(B,) mean length of the gradient: an axis that is off doubles every edge."""
    return torch.hypot(images.diff(dim=1)[:, :, 1:], images.diff(dim=2)[:, 1:]).mean((1, 2))


def negative_energy(images: Tensor) -> Tensor:
    """(B,) what lies below zero, where no attenuation can be: an axis that is off leaves half-circles beside every edge."""
    return images.clamp(max=0).square().mean((1, 2))


@pytest.mark.parametrize(("blur", "at_most"), [(total_variation, 0.985), (negative_energy, 0.7)])
def test_the_tooth_is_sharp_on_its_axis_only(blur, at_most: float, tooth: dict[int, Tensor]) -> None:  # type: ignore[no-untyped-def]
    right = blur(tooth[AXIS])
    for axis in (AXIS - 4, AXIS + 4):
        assert (right < at_most * blur(tooth[axis])).all(), (right / blur(tooth[axis])).tolist()


def test_the_tooth_stands_out_of_the_air(tooth: dict[int, Tensor]) -> None:
    images = tooth[AXIS]
    dense, air = images.quantile(0.97), images.median()
    assert float(dense) > 10 * abs(float(air)) and float(dense) > 0
