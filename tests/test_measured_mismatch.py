"""What a scanner does that y = A x does not, put into synthetic scans and found again."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from discs import ACRYLIC, measured_disc

from bdgd.checks import InputError
from bdgd.data.estimates import photon_noise
from bdgd.evaluation.challenge import TRAINING, find_scans, read_measured
from bdgd.evaluation.mismatch import CORRECTION, HARDENING, air_offset, mismatch, mismatch_table, read_mismatch
from bdgd.storage import write_json


def test_what_was_put_in_is_found(generator: torch.Generator, tmp_path: Path) -> None:
    scan = measured_disc(air=0.014, hardening=0.25, noise=0.0033, axis=0.1, generator=generator)
    found = mismatch(scan)
    assert found.air == pytest.approx(0.014, abs=2e-4) and found.air_drift < 0.002
    assert found.noise == pytest.approx(0.0033, rel=0.1)
    assert found.axis == pytest.approx(0.1, abs=0.05)
    assert found.hardening == pytest.approx(0.25, rel=0.1) and found.attenuation == pytest.approx(ACRYLIC, rel=0.03)
    assert found.misfit < 0.01 < found.misfit_straight
    origin = {"hardware": "a machine", "commit": "0123456789abcdef"}
    write_json(tmp_path / "mismatch.json", {"scans": [asdict(found)], "provenance": origin})
    assert read_mismatch(tmp_path / "mismatch.json") == ([found], origin)
    *table, _, made = mismatch_table([found], origin).splitlines()
    assert len(table) == 3 and "| ta | +0.014" in table[2] and len({line.count("|") for line in table}) == 1
    assert made == "*Measured on a machine (commit 0123456789).*"


def test_stripes_are_what_detectors_read_differently_in_all_views(generator: torch.Generator) -> None:
    scan = measured_disc(noise=0.003, generator=generator)
    offsets = torch.linspace(-1, 1, scan.scans.sinograms.shape[3])  # the outermost detectors at either end read -1 and 1, nearly
    striped = replace(scan, scans=replace(scan.scans, sinograms=scan.scans.sinograms + 0.002 * offsets))
    assert mismatch(scan).stripes < 4e-4 and mismatch(striped).stripes == pytest.approx(0.002, rel=0.1)


def test_a_scan_that_is_the_model_has_no_mismatch() -> None:
    found = mismatch(measured_disc())
    assert found.stripes < 1e-6
    assert abs(found.air) < 1e-6 and abs(found.hardening) < 0.01 and abs(found.axis) < 0.05 and found.misfit < 0.005


def test_the_correction_undoes_air_and_hardening() -> None:
    bent, straight = measured_disc(air=0.02, hardening=HARDENING).scans.sinograms, measured_disc().scans.sinograms
    assert air_offset(bent) == pytest.approx(0.02, abs=1e-6)
    assert torch.allclose(CORRECTION(bent), straight, atol=1e-5)


@pytest.mark.parametrize("views", [10, 360])
def test_photon_noise_needs_few_views(views: int, generator: torch.Generator) -> None:
    y = measured_disc(noise=0.004, generator=generator).scans.sinograms[:, :, :: 360 // views]
    assert photon_noise(y) == pytest.approx(0.004, rel=0.15)
    with pytest.raises(InputError, match="at least 4"):
        photon_noise(y[..., :3])


def test_kept_numbers_that_are_damaged_are_named(tmp_path: Path) -> None:
    assert read_mismatch(tmp_path / "none.json") == ([], {})
    (tmp_path / "bad.json").write_text('[{"name": "ta"}]')
    with pytest.raises(InputError, match="delete it"):
        read_mismatch(tmp_path / "bad.json")


def test_the_measured_training_scans(shared_data: Path) -> None:
    """The ranges that training has to cover; the constant for correcting is their mean."""
    paths = find_scans(shared_data / "htc2022")
    found = [mismatch(read_measured(name, paths[name])) for name in (TRAINING[0], TRAINING[3])]
    for entry in found:
        assert 0.010 < entry.air < 0.018 and 0.0028 < entry.noise < 0.004 and abs(entry.axis) < 0.15
        assert 0.2 < entry.hardening < 0.35 and 0.045 < entry.attenuation < 0.055 and entry.misfit < 0.01 < 2 * entry.misfit_straight
    assert sum(entry.hardening for entry in found) / len(found) == pytest.approx(HARDENING, abs=0.02)
