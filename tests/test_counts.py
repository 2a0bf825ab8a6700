"""Photon counts become line integrals: flat and dark fields, dead detectors, rays without a count."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
import torch
from refusals import refusal

from bdgd.checks import InputError
from bdgd.data import line_integrals, read_scans
from bdgd.operators import ParallelBeam

COUNTING = ParallelBeam(image_size=8, angles=np.linspace(0, 3, 12), detectors=31)


def counted(slices: int = 3, photons: float = 5e4) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """y (B, V, D) and the counts that a detector with an uneven beam and a dark current would have of it, without noise."""
    rng = np.random.default_rng(3)
    y = rng.uniform(0.2, 3.0, (slices, 12, 31))
    flat, dark = rng.uniform(0.8, 1.2, 31) * photons + 200, rng.uniform(100, 200, 31)
    return y, {"counts": dark + (flat - dark) * np.exp(-y), "flat": flat, "dark": dark}


def test_counts_become_line_integrals() -> None:
    y, raw = counted()
    found, repairs = line_integrals(raw["counts"][0], raw["flat"], raw["dark"])
    assert np.allclose(found, y[0], atol=1e-12) and repairs.notes() == ()


def test_counts_may_be_unsigned() -> None:
    """A flat below the dark field is a dead detector, and air a little below its flat is none."""
    counts, flat, dark = np.full((5, 31), 15000, np.uint16), np.full(31, 20000, np.uint16), np.full(31, 100, np.uint16)
    counts += np.arange(5, dtype=np.uint16)[:, None]
    counts[:, 0], flat[5] = 19990, 99
    found, repairs = line_integrals(counts, flat, dark)
    expected, as_expected = line_integrals(counts, flat.astype(float), dark.astype(float))
    assert repairs == as_expected and repairs.dead == {5} and np.array_equal(found, expected)
    assert found[0, 0] == pytest.approx(10 / 19900, rel=1e-3)


@pytest.mark.parametrize("frames", ["one", "frames", "per-slice"])
@pytest.mark.parametrize("suffix", [".h5", ".npz", ".tif"])
def test_counts_are_read_in_every_format(suffix: str, frames: str, tmp_path: Path) -> None:
    y, raw = counted()
    if frames != "one":  # three frames whose mean is the field
        for name in ("flat", "dark"):
            raw[name] = raw[name] + np.array([[-5.0], [0.0], [5.0]])
            raw[name] = np.stack([raw[name]] * 3) if frames == "per-slice" else raw[name]
    path = tmp_path / f"scan{suffix}"
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs.update(COUNTING.to_dict())
            for name, values in raw.items():
                file[name] = values
    elif suffix == ".npz":
        np.savez(path, **raw, **COUNTING.to_dict())
    else:
        (tmp_path / "scan.toml").write_text(COUNTING.to_toml() + 'flat = "flat.tif"\ndark = "dark.tif"\n')
        for name, values in raw.items():
            file_name = "scan.tif" if name == "counts" else f"{name}.tif"
            tifffile.imwrite(tmp_path / file_name, np.atleast_2d(values), photometric="minisblack", metadata=None)
    scans = read_scans(path, dtype=torch.float64)
    assert np.allclose(scans.sinograms[:, 0].numpy(), y, atol=1e-9) and scans.notes == ()


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_transmitted_shares_need_one_number_as_their_open_beam(suffix: str, tmp_path: Path) -> None:
    y = counted()[0]
    values, path = {"counts": np.exp(-y), "flat": 1.0, "dark": 0}, tmp_path / f"scan{suffix}"
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs.update(COUNTING.to_dict())
            for name, value in values.items():
                file[name] = value
    else:
        np.savez(path, **values, **COUNTING.to_dict())
    scans = read_scans(path, dtype=torch.float64)
    assert np.allclose(scans.sinograms[:, 0].numpy(), y, atol=1e-9) and scans.notes == ()


def test_projections_with_their_fields_are_turned_into_slices(tmp_path: Path) -> None:
    """As a scanner writes them: a page per view, each field a few pages of the whole detector."""
    rng = np.random.default_rng(4)
    y = rng.uniform(0.2, 2.0, (3, 12, 31))
    flat, dark = rng.uniform(4e4, 6e4, (3, 31)), rng.uniform(0, 100, (3, 31))
    counts = np.round(dark[:, None] + (flat - dark)[:, None] * np.exp(-y)).astype(np.uint16)
    (tmp_path / "scan.toml").write_text(COUNTING.to_toml() + 'pages = "views"\nflat = "flat.tif"\ndark = "dark.tif"\n')
    tifffile.imwrite(tmp_path / "scan.tif", counts.transpose(1, 0, 2), photometric="minisblack")
    for name, field in (("flat", flat), ("dark", dark)):
        tifffile.imwrite(tmp_path / f"{name}.tif", np.stack((field - 1, field + 1)), photometric="minisblack")
    scans = read_scans(tmp_path / "scan.tif")
    assert scans.sinograms.shape == (3, 1, 12, 31) and np.allclose(scans.sinograms[:, 0].numpy(), y, atol=2e-3)


def test_bad_detectors_and_rays_are_repaired_and_counted(tmp_path: Path) -> None:
    y, raw = counted(1)
    y[:] = np.linspace(0.5, 2.5, 31)  # so that a straight line between neighbours is the truth
    counts = np.round(raw["dark"] + (raw["flat"] - raw["dark"]) * np.exp(-y)).astype(np.int64)
    counts += np.random.default_rng(5).integers(0, 2, counts.shape)  # no detector says the same in every view
    flat, dark = raw["flat"].copy(), raw["dark"].copy()
    flat[4] = dark[4]  # sees no beam
    counts[:, :, 9] = 123  # stuck
    flat[20], dark[20] = np.nan, np.nan  # not measured
    counts[0, 3, 15] = 0  # a ray below the dark field
    counts[0, 5, 16] = -7
    np.savez(tmp_path / "scan.npz", counts=counts, flat=flat, dark=dark, **COUNTING.to_dict())
    scans = read_scans(tmp_path / "scan.npz")
    assert scans.notes == (
        "interpolated between neighbours: 3 dead detectors (4, 9, 20)",
        "taken as half the smallest count: 2 rays without a count above the dark field",
    )
    found, right = scans.sinograms[0, 0].numpy(), np.ones((12, 31), bool)
    right[3, 15] = right[5, 16] = False
    assert np.allclose(found[right], y[0][right], atol=2e-3)
    for view, detector in ((3, 15), (5, 16)):
        assert found[view, detector] == pytest.approx(math.log((flat - dark)[detector] / 0.5))


def test_single_rays_without_a_number_are_interpolated() -> None:
    y, raw = counted(1)
    counts = raw["counts"][0]
    counts[2, 7] = np.nan
    found, repairs = line_integrals(counts, raw["flat"], raw["dark"])
    assert found[2, 7] == pytest.approx((y[0, 2, 6] + y[0, 2, 8]) / 2) and repairs.missing == 1
    counts[2] = np.nan
    with pytest.raises(InputError, match="view 2 has no finite value"):
        line_integrals(counts, raw["flat"], raw["dark"])
    counts[:4] = np.nan
    with refusal("124 of 372 counts are no finite number or of a dead detector, too many to interpolate"):
        line_integrals(counts, raw["flat"], raw["dark"])


def test_gaps_of_a_sinogram_are_interpolated(tmp_path: Path) -> None:
    """NaN marks dead detectors and lost rays in line integrals as in counts; infinite values, and too many NaN, are errors."""
    y = np.tile(np.linspace(0.5, 2.5, 31), (12, 1))  # so that a straight line between neighbours is the truth
    gaps = y.copy()
    gaps[:, 4], gaps[2, 7], gaps[5, 8:10] = np.nan, np.nan, np.nan
    np.savez(tmp_path / "scan.npz", sinogram=gaps, **COUNTING.to_dict())
    scans = read_scans(tmp_path / "scan.npz", dtype=torch.float64)
    assert np.allclose(scans.sinograms[0, 0].numpy(), y, atol=1e-12)
    assert scans.notes == (
        "interpolated between neighbours: 1 dead detector (4)",
        "interpolated between neighbours: 3 rays without a finite value",
    )
    for values, message in ((np.where(y > 2.4, np.inf, y), "must be finite"), (np.where(y > 1.5, np.nan, y), "must be finite")):
        np.savez(tmp_path / "scan.npz", sinogram=values, **COUNTING.to_dict())
        with pytest.raises(InputError, match=message):
            read_scans(tmp_path / "scan.npz")


def test_values_that_are_no_line_integrals_are_doubted(tmp_path: Path) -> None:
    """Counts, shares, a wrong sign and scaled whole numbers are told; line integrals are not, whole, truncated or of nothing."""
    rng = np.random.default_rng(4)
    chord = np.sqrt(np.clip(1 - np.linspace(-1.4, 1.4, 31) ** 2, 0, None))
    y = np.tile(2 * chord, (12, 1)) + 0.01 * rng.standard_normal((12, 31))

    def notes(values: np.ndarray) -> str:
        np.savez(tmp_path / "scan.npz", sinogram=values, **COUNTING.to_dict())
        return "; ".join(read_scans(tmp_path / "scan.npz").notes)

    truncated, hollow = 2 + y[:, ::-1] ** 2, np.tile(1 + np.linspace(-1, 1, 31) ** 2, (12, 1))
    for innocent in (y, truncated, 0.01 * rng.standard_normal((12, 31)), np.ones((12, 31))):
        assert notes(innocent) == ""
    for counted_ in (np.exp(-y), 2e4 * np.exp(-y), np.round(2e4 * np.exp(-y)), hollow):
        assert "should see air, read the most" in notes(counted_)
    assert "negative" in notes(-y) and "whole numbers" in notes((1000 * np.clip(y, 0, None)).astype(np.uint16))


def test_fields_that_do_not_belong_are_named() -> None:
    _, raw = counted(1)
    with pytest.raises(InputError, match="flat is not above dark"):
        line_integrals(raw["counts"][0], raw["dark"], raw["flat"])
    flat = raw["flat"].copy()
    flat[:10] = raw["dark"][:10]
    with pytest.raises(InputError, match="10 of 31 detectors are dead"):
        line_integrals(raw["counts"][0], flat, raw["dark"])
    with pytest.raises(InputError, match="no count lies above"):
        line_integrals(np.zeros((1, 31)), raw["flat"], raw["dark"])
