"""`bdgd simulate`: the scans it writes are those of its options, and its seed alone decides."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest
import torch
from commands import assert_one_sentence, bdgd

from bdgd.apps import simulate
from bdgd.data import PoissonNoise, read_scans, shepp_logan
from bdgd.data.kinds import field_radius
from bdgd.operators import FanBeam, ParallelBeam, RayTransform


def test_simulate_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "scan.h5"
    result = bdgd("simulate", "-o", path, "--phantom", "shepp-logan", "--count", 2, "--size", 32, "--views", 7)
    assert result.exit_code == 0, result.output
    assert str(path) in result.output and "7 views x 47 detectors" in result.output
    scans = read_scans(path)
    assert scans.geometry == ParallelBeam.sparse(image_size=32, views=7) and len(scans) == 2
    assert torch.equal(scans.images, shepp_logan(32).repeat(2, 1, 1, 1))
    assert not torch.equal(scans.sinograms[0], scans.sinograms[1]), "every scan has noise of its own"
    with h5py.File(path) as file:
        assert json.loads(file["sinogram"].attrs["provenance"])["seed"] == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("phantom", list(simulate.Phantom))
def test_simulate_depends_on_its_seed_alone(phantom: str, tmp_path: Path) -> None:
    sinograms = []
    for name, seed in (("a.h5", 3), ("b.h5", 3), ("c.h5", 4)):
        assert bdgd("simulate", "-o", tmp_path / name, "--phantom", phantom, "--size", 24, "--degrees", 9, "--seed", seed).exit_code == 0
        sinograms.append(read_scans(tmp_path / name).sinograms)
    assert torch.equal(sinograms[0], sinograms[1]) and not torch.equal(sinograms[0], sinograms[2])


@pytest.mark.parametrize("phantom", list(simulate.Phantom))
def test_simulate_takes_any_geometry_and_counts_photons(phantom: str, tmp_path: Path) -> None:
    fan = FanBeam(image_size=(20, 26), angles=(0.0, 1.0, 2.0), detectors=41, source_to_axis=60, source_to_detector=90)
    (tmp_path / "fan.toml").write_text(fan.to_toml())
    result = bdgd("simulate", "-o", tmp_path / "s.h5", "--phantom", phantom, "--geometry", tmp_path / "fan.toml", "--photons", 1e4)
    assert result.exit_code == 0, result.output
    scans = read_scans(tmp_path / "s.h5")
    assert scans.geometry == fan and scans.images.shape == (1, 1, 20, 26)
    assert scans.noise == PoissonNoise(1e4, attenuation=2.5 / 26)


def test_simulate_without_noise_is_the_operator(tmp_path: Path) -> None:
    assert bdgd("simulate", "-o", tmp_path / "s.h5", "--size", 16, "--views", 3, "--noise", 0, "--device", "cpu").exit_code == 0
    scans = read_scans(tmp_path / "s.h5")
    assert scans.noise is None
    assert torch.allclose(scans.sinograms, RayTransform(scans.geometry)(scans.images), atol=1e-5)


@pytest.mark.parametrize("phantom", ["ellipses", "discs-with-holes"])
def test_random_phantoms_lie_where_every_view_of_the_scanner_sees_them(phantom: str, tmp_path: Path) -> None:
    narrow = FanBeam(image_size=32, angles=(0.0, 1.0), detectors=20, detector_spacing=2.0, source_to_axis=100.0, source_to_detector=150.0)
    (tmp_path / "narrow.toml").write_text(narrow.to_toml())
    options = ("--phantom", phantom, "--geometry", tmp_path / "narrow.toml", "--count", 10)
    assert bdgd("simulate", "-o", tmp_path / "s.h5", *options).exit_code == 0
    x, y = narrow.pixel_centres()
    outside = torch.hypot(x[:, None], y[None, :]) > field_radius(narrow) + 0.5
    images = read_scans(tmp_path / "s.h5").images
    assert bool(outside.any()) and float(images[..., outside].max()) == 0 and float(images.max()) > 0.9


def test_a_text_without_its_phantom_is_refused(tmp_path: Path) -> None:
    result = bdgd("simulate", "-o", tmp_path / "s.h5", "--size", 16, "--views", 3, "--text", "mine")
    assert_one_sentence(result)
    assert "--text belongs to --phantom text" in result.stderr and not (tmp_path / "s.h5").exists()
