"""Scan corrections: closed forms, what is refused, and that a model carries one from its preset to the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from toys import seeded, small_model
from typer.testing import CliRunner

from bdgd.apps import cli
from bdgd.apps.presets import parse_preset, read_preset
from bdgd.apps.training import make_scans, train_preset
from bdgd.checks import InputError
from bdgd.data import (
    Correction,
    Mismatch,
    PoissonNoise,
    Scans,
    correction_from_dict,
    disc,
    named_generator,
    read_scans,
    simulate,
    write_scans,
)
from bdgd.data.correction import air_level, hardened, outermost
from bdgd.inference import reconstruct
from bdgd.inference.residual import residual
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, load, save
from bdgd.operators import ParallelBeam, RayTransform

CPU = torch.device("cpu")
GEOMETRY = ParallelBeam(image_size=16, angles=np.linspace(0, np.pi, 9)[:-1], detectors=40)
A = RayTransform(GEOMETRY)
BOTH = Correction(air=True, hardening=0.27)
TINY = """
[geometry]
beam = "parallel"
image_size = 16
angles_degrees = { first = 0.0, step = 20.0, count = 9 }
detectors = 40
[data]
train = 6
validation = 2
noise = { kind = "poisson", photons = 1e5 }
phantoms = "discs-with-holes"
mismatch = { beam = [0.25, 0.29], air_offset = [0.005, 0.02] }
correction = { air = true, hardening = 0.27 }
[model]
blocks = 1
gradient_scale = 30.0
value_scale = 0.2
[training]
epochs = 1
batch = 3
"""


# --- the closed form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hardening", [0.0, 1e-6, 0.27, 3.0])
def test_hardening_and_correcting_is_the_identity(hardening: float) -> None:
    q = torch.linspace(0, 5, 4 * 60, dtype=torch.float64).reshape(2, 1, 2, 60)
    p = hardened(q, hardening)
    torch.testing.assert_close(p + hardening * p.square(), q)
    if hardening:
        torch.testing.assert_close(Correction(hardening=hardening)(p), q)
        torch.testing.assert_close(Correction(hardening=hardening).undone(q), p)
    if hardening > 1e-3:
        torch.testing.assert_close(p, ((1 + 4 * hardening * q).sqrt() - 1) / (2 * hardening))


def test_none_of_it_changes_nothing() -> None:
    y = torch.linspace(-1, 3, 40).reshape(1, 1, 2, 20)
    assert torch.equal(Correction()(y), y) and torch.equal(Correction().undone(y), y) and Correction().in_words() == "nothing is changed"


def test_noise_below_the_air_stays_as_it_is() -> None:
    y = torch.tensor([-0.5, -0.01, 0.0, 2.0]).repeat(5)[None, None, None]
    assert torch.equal(Correction(hardening=0.5)(y)[y <= 0], y[y <= 0]) and torch.equal(hardened(y, 0.5)[y <= 0], y[y <= 0])


def test_every_image_has_its_own_air_over_all_views() -> None:
    clean = A(0.2 * torch.cat([disc(16, 6), disc(16, 3)]))
    offsets = torch.tensor([0.02, -0.05])[:, None, None, None]
    drift = torch.linspace(-0.01, 0.01, GEOMETRY.views)[:, None]  # of mean 0
    y = hardened(clean, 0.27) + offsets + drift
    torch.testing.assert_close(air_level(y), offsets.flatten().double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(BOTH(y - drift), clean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Correction(air=True)(y), y - offsets, rtol=0, atol=1e-6)
    assert torch.equal(BOTH(y)[:1], BOTH(y[:1])) and BOTH(y).dtype == y.dtype


def test_it_survives_being_written_down_and_says_what_it_does() -> None:
    assert BOTH.to_dict() == {"air": True, "hardening": 0.27}
    assert correction_from_dict(json.loads(json.dumps(BOTH.to_dict()))) == BOTH and len({BOTH, Correction(air=True)}) == 2
    assert correction_from_dict({"hardening": 1}) == Correction(hardening=1.0)
    assert "p + 0.27 p^2" in BOTH.in_words() and "air" not in Correction(hardening=0.27).in_words()
    assert "air of +0.0123" in BOTH.in_words(torch.full((2, 1, 3, 20), 0.01234))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hardening": -0.1}, "at least 0, got -0.1"),
        ({"hardening": float("nan")}, "must be finite"),
        ({"hardening": "strong"}, "must be a number"),
        ({"hardening": True}, "must be a number"),
        ({"air": 0.01}, "true or false, got 0.01"),
        ({"scatter": 0.1}, "unknown key 'scatter' in a correction; known are air, hardening"),
        (0.27, "must be a table"),
    ],
)
def test_what_is_refused(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        correction_from_dict(values)


@pytest.mark.parametrize(("detectors", "count"), [(560, 8), (280, 8), (140, 4), (70, 2), (35, 1), (17, 1)])
def test_air_is_read_by_the_same_rays_however_wide_the_detectors(detectors: int, count: int) -> None:
    y = torch.zeros(1, 1, 3, detectors)
    y[..., :count] = y[..., -count:] = 1.0
    assert float(air_level(y)) == 1.0 and outermost(y).shape[-1] == 2 * count


def test_air_needs_detectors_that_see_it() -> None:
    with pytest.raises(InputError, match="there are 16; at least 17 are needed"):
        BOTH(torch.zeros(1, 1, 4, 16))
    assert torch.equal(BOTH(torch.zeros(1, 1, 4, 17)), torch.zeros(1, 1, 4, 17))
    with pytest.raises(InputError, match=r"\(B, 1, V, D\), got \(4, 20\)"):
        BOTH(torch.zeros(4, 20))


def test_scans_are_corrected_once_and_never_written_so(tmp_path: Path) -> None:
    scans = Scans(A(disc(16, 5)), GEOMETRY, noise=PoissonNoise(1e4))
    corrected = scans.corrected(BOTH)
    assert scans.corrected(None) is scans and corrected.correction == BOTH and corrected.noise == scans.noise
    assert torch.equal(corrected.sinograms, BOTH(scans.sinograms)) and "p + 0.27 p^2" in corrected.notes[-1]
    assert corrected[:1].correction == BOTH
    with pytest.raises(InputError, match="corrected already"):
        corrected.corrected(BOTH)
    with pytest.raises(InputError, match="write them as they were measured"):
        write_scans(tmp_path / "scan.h5", corrected)


# --- training --------------------------------------------------------------------------------------------------------------


def test_training_scans_go_through_the_whole_chain() -> None:
    preset = parse_preset(TINY, "tiny")
    B = RayTransform(preset.geometry)
    scans = make_scans(preset, B, "train")
    raw = simulate(B, scans.images, preset.noise, generator=named_generator("train noise", 0), mismatch=preset.mismatch)
    assert torch.equal(scans.sinograms, BOTH(raw.sinograms)) and scans.correction == BOTH
    clean = B(scans.images)
    assert float((scans.sinograms - clean).abs().mean()) < 0.3 * float((raw.sinograms - clean).abs().mean())


def test_a_trained_model_carries_the_correction_of_its_preset(tmp_path: Path) -> None:
    for text in (TINY, TINY.replace("blocks = 1\ngradient_scale = 30.0", 'kind = "primal-dual"\niterations = 1')):
        run = tmp_path / str(len(text))
        assert train_preset(parse_preset(text, "tiny"), run, CPU).correction == BOTH
        assert load(run / "model.safetensors").correction == BOTH
    without = "\n".join(line for line in TINY.splitlines() if "correction" not in line)
    assert train_preset(parse_preset(without, "tiny"), tmp_path / "plain", CPU).correction is None


def test_a_simulated_scan_of_the_challenge_is_nearly_straight() -> None:
    """What the shipped presets leave after correcting: air at 0, and the largest line integrals those of acrylic."""
    preset = replace(read_preset("htc30views-mfvi"), train=3)
    B = RayTransform(preset.geometry, strategy="matrix-free")
    scans = make_scans(preset, B, "train")
    assert float(air_level(scans.sinograms).abs().max()) < 1e-5
    clean = B(scans.images)
    missed = ((scans.sinograms - clean).square().mean() / clean.square().mean()).sqrt()
    assert float(missed) < 0.05 and 0.047 < float(scans.images.max()) < 0.0535


# --- models in files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [DeepGradientDescent, LearnedPrimalDual])
def test_a_correction_comes_back_with_its_model(make: Any, tmp_path: Path) -> None:
    from safetensors import safe_open

    model = make(A)
    assert model.correction is None
    save(model, tmp_path / "plain.safetensors")
    model.correction = BOTH
    save(model, tmp_path / "model.safetensors")
    assert load(tmp_path / "plain.safetensors").correction is None and load(tmp_path / "model.safetensors").correction == BOTH
    assert model.snapshot().correction == BOTH and model.with_calibration(None).correction == BOTH
    formats = {}
    for name in ("plain", "model"):
        with safe_open(tmp_path / f"{name}.safetensors", framework="pt") as file:
            formats[name] = json.loads(file.metadata()["bdgd"])["format"]
    assert formats == {"plain": 1, "model": 3}, "a version that cannot correct must refuse the model"


# --- bdgd reconstruct ------------------------------------------------------------------------------------------------------


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["reconstruct", *map(str, arguments), "--device", "cpu", "--draws", "3"], prog_name="bdgd")


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    model = small_model(A=A)
    model.correction = BOTH
    save(model, tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def measured(count: int = 1) -> Scans:
    """Hardened discs with air at 0.03."""
    images = 0.2 * torch.cat([disc(16, 6 - k) for k in range(count)])
    return simulate(A, images, None, generator=seeded(), mismatch=Mismatch(beam=(0.27, 0.27), air_offset=(0.03, 0.03)))


def test_a_scan_is_corrected_before_the_network_sees_it(model_file: Path, tmp_path: Path) -> None:
    write_scans(tmp_path / "scan.h5", measured(2))
    result = bdgd(tmp_path / "scan.h5", "-m", model_file, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "the scan was corrected" in line]
    assert len(lines) == 1 and "air of +0.0300" in lines[0] and "p + 0.27 p^2" in lines[0]
    wanted = reconstruct(small_model(A=A), A(measured(2).images), 3, generator=seeded())
    with h5py.File(tmp_path / "out" / "posterior.h5") as file:
        torch.testing.assert_close(torch.from_numpy(file["mean"][:]), wanted.mean[:, 0], rtol=1e-3, atol=1e-4)
        told = json.loads(file.attrs["provenance"])
    assert told["correction"] == BOTH.to_dict() and "corrected" in told["notes"][-1]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "What was done to the scan" in page and "p + 0.27 p^2" in page


def test_raw_counts_are_corrected_too(model_file: Path, tmp_path: Path) -> None:
    flat = np.full(40, 1e9)
    counts = np.random.default_rng(0).poisson(flat * np.exp(-measured().sinograms[:, 0].double().numpy()))
    np.savez(tmp_path / "counts.npz", counts=counts, flat=flat, **GEOMETRY.to_dict())
    write_scans(tmp_path / "scan.h5", measured())
    means = []
    for name in ("counts.npz", "scan.h5"):
        result = bdgd(tmp_path / name, "-m", model_file, "-o", tmp_path / name.partition(".")[0])
        assert result.exit_code == 0 and "air of +0.0300" in result.stderr, result.output
        with h5py.File(tmp_path / name.partition(".")[0] / "posterior.h5") as file:
            means.append(file["mean"][:])
    np.testing.assert_allclose(means[0], means[1], rtol=1e-2, atol=1e-3)


def test_a_rehearsal_can_harden_its_beam(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GEOMETRY.to_toml())
    words = [
        "simulate",
        "--geometry",
        tmp_path / "mine.toml",
        "--noise",
        0,
        "--hardening",
        0.27,
        "-o",
        tmp_path / "scan.h5",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(cli.app, list(map(str, words)), prog_name="bdgd")
    assert result.exit_code == 0, result.output
    scans = read_scans(tmp_path / "scan.h5")
    torch.testing.assert_close(Correction(hardening=0.27)(scans.sinograms), A(scans.images), rtol=1e-4, atol=1e-4)


def test_the_residual_is_measured_where_the_noise_is() -> None:
    """The truth leaves the photon noise, which correcting stretches: in corrected line integrals it would be larger."""
    big = RayTransform(replace(GEOMETRY, angles=tuple(np.linspace(0, np.pi, 60).tolist())))
    image, noise = 0.25 * disc(16, 6), PoissonNoise(2e4)
    raw = simulate(big, image, noise, generator=seeded(), mismatch=Mismatch(beam=(0.27, 0.27)))
    corrected = raw.corrected(Correction(hardening=0.27))
    found = residual(big, image, corrected.sinograms, noise, corrected.correction)
    assert found.ratio == pytest.approx(1.0, abs=0.05)
    assert residual(big, image, corrected.sinograms, noise).rms > 1.3 * found.rms
