"""The presets of the Helsinki challenge: one recipe in five geometries, with the values, noise and air of its scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bdgd.apps.presets import Preset, preset_names, read_preset
from bdgd.data import PoissonNoise, estimate_noise, read_scans
from bdgd.data.scanner_errors import scanner_errors
from bdgd.evaluation.mismatch import CORRECTION, HARDENING
from bdgd.models.scales import gradient_scale, value_scale


@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith("htc")])
def test_the_helsinki_presets(name: str) -> None:
    preset = read_preset(name)
    setting, _, kind = name.rpartition("-")
    views = {"htc60views": 60, "htc30views": 30, "htc-arc90": 90, "htc-arc60": 60, "htc-arc30": 30}[setting]
    step = 360 / views if "views" in name else 1.0
    assert np.allclose(np.rad2deg(preset.geometry.angles), step * np.arange(views))
    assert preset.phantoms == "discs-with-holes" and preset.mismatch is not None
    fine = replace(preset.geometry, image_size=(256, 256), pixel_size=0.29664)  # that of 30 degrees has half the pixels, and kept the scale
    assert preset.model["gradient_scale"] == pytest.approx(gradient_scale(fine, torch.device("cpu")), rel=0.01)
    assert preset.correction == CORRECTION and preset.mismatch.beam[0] < HARDENING < preset.mismatch.beam[1]
    assert preset.model["last_layer"] == {"dgd": "point", "mfvi": "mean_field"}[kind]
    assert preset.text.replace('"point"', '"mean_field"') == read_preset(f"{setting}-mfvi").text  # nothing else differs


def test_the_helsinki_presets_are_of_the_measured_scans(shared_data: Path) -> None:
    preset = read_preset("htc60views-mfvi")
    for name in ("solid_disc", "ta", "tb", "tc", "td"):
        scan = read_scans(shared_data / "htc2022" / f"{name}.npz")
        assert scan.geometry is not None and replace(scan.geometry[::6], pixel_size=0.29664) == preset.geometry
        corrected = scan.corrected(preset.correction)
        assert value_scale(corrected, homogeneous=True) == pytest.approx(preset.value_scale, rel=preset.value_spread)
        noise = estimate_noise(scan.sinograms)
        assert isinstance(noise, PoissonNoise) and isinstance(preset.noise, PoissonNoise)
        assert noise.photons == pytest.approx(preset.noise.photons, rel=0.3)
        air = scanner_errors(scan.sinograms)[1]
        assert air is not None and preset.mismatch is not None and preset.mismatch.air_offset[0] < air < preset.mismatch.air_offset[1]


def test_shipped_presets_know_their_phantoms() -> None:
    presets: dict[str, Preset] = {name: read_preset(name) for name in preset_names()}
    assert {preset.phantoms for preset in presets.values()} == {"ellipses", "discs-with-holes"}
    assert all(
        preset.mismatch is None and preset.value_scale == 1.0 for name, preset in presets.items() if name.startswith(("sparse", "limited"))
    )
