"""`bdgd calibrate` as a user types it: a scale head, a calibration, what it says, and what `bdgd reconstruct` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from commands import assert_one_sentence, bdgd
from toys import small_model

from bdgd.apps.calibrate import _set_of_head, scans_like_training
from bdgd.apps.presets import parse_preset
from bdgd.apps.training import make_model
from bdgd.data import GaussianNoise, random_ellipses, simulate, write_scans
from bdgd.data.folder import distinct_pictures
from bdgd.inference.calibrating import LEAST_IMAGES
from bdgd.models import load, save
from bdgd.operators import RayTransform


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small model, calibrated with a scale head, and what the command said."""
    folder = tmp_path_factory.mktemp("calibrate")
    save(small_model(), folder / "model.safetensors")
    result = bdgd(
        *("calibrate", folder / "model.safetensors", "-o", folder / "out.safetensors"),
        *("--images", 40, "--draws", 2, "--head", 12, "--epochs", 1, "--device", "cpu"),
    )
    assert result.exit_code == 0, result.output
    return folder / "out.safetensors", result.stdout


def write_scan(path: Path, relative: float = 0.01) -> Path:
    g = torch.Generator().manual_seed(3)
    write_scans(path, simulate(small_model().A, random_ellipses(2, 16, generator=g), GaussianNoise(relative), generator=g))
    return path


def test_it_says_what_it_guarantees_and_what_not(calibrated: tuple[Path, str]) -> None:
    path, said = calibrated
    for words in ("guaranteed: for a new scan of this kind", "not guaranteed: each single image", "nats better", f"wrote {path}"):
        assert words in said
    model = load(path)
    assert model.calibration is not None and model.scale_head is not None
    assert model.calibration.draws == 2 and model.calibration.images == 20
    assert model.calibration.noise == GaussianNoise(0.01).to_dict()
    assert model.provenance["calibration"]["images"] == 40 and model.provenance["scale_head"]["images"] == 12


def test_few_scans_give_intervals_and_no_alarm(tmp_path: Path) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    few = tmp_path / "few.safetensors"
    result = bdgd("calibrate", tmp_path / "model.safetensors", "-o", few, "--images", 20, "--draws", 2, "--device", "cpu")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "there is no alarm: 20 scans are too few" in said and "38 are enough" in said
    result = bdgd("reconstruct", write_scan(tmp_path / "scan.h5"), "--model", few, "-o", tmp_path / "out", "--draws", 2, "--level", 0.8)
    assert result.exit_code == 0, result.output
    assert "alarm" not in result.stdout


def test_reconstruct_uses_it_and_shows_the_light(calibrated: tuple[Path, str], tmp_path: Path) -> None:
    scan = write_scan(tmp_path / "scan.h5")
    result = bdgd("reconstruct", scan, "--model", calibrated[0], "-o", tmp_path / "out", "--draws", 2, "--level", 0.8, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "alarm" in result.stdout and any(light in result.stdout for light in ("green", "amber", "red"))
    with h5py.File(tmp_path / "out" / "posterior.h5") as file:
        assert file.attrs["calibrated"]


@pytest.mark.parametrize(("draws", "relative", "reason"), [(3, 0.01, "holds for 2 draws"), (2, 0.05, "holds for the noise")])
def test_reconstruct_says_where_it_does_not_hold(
    calibrated: tuple[Path, str], tmp_path: Path, draws: int, relative: float, reason: str
) -> None:
    scan = write_scan(tmp_path / "scan.h5", relative)
    result = bdgd("reconstruct", scan, "--model", calibrated[0], "-o", tmp_path / "out", "--draws", draws, "--device", "cpu")
    assert result.exit_code == 0 and "the intervals are not calibrated" in result.stderr and reason in result.stderr
    with h5py.File(tmp_path / "out" / "posterior.h5") as file:
        assert not file.attrs["calibrated"]


def test_scans_of_ones_own(tmp_path: Path) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    g = torch.Generator().manual_seed(3)
    write_scans(tmp_path / "scans.h5", simulate(small_model().A, random_ellipses(22, 16, generator=g), GaussianNoise(0.03), generator=g))
    out = tmp_path / "out.safetensors"
    result = bdgd("calibrate", tmp_path / "model.safetensors", "--scans", tmp_path / "scans.h5", "-o", out, "--draws", 2, "--device", "cpu")
    assert result.exit_code == 0, result.output
    model = load(out)
    assert model.calibration is not None and model.calibration.noise == GaussianNoise(0.03).to_dict() and model.calibration.images == 11


def test_calibration_scans_are_made_as_the_training_scans_were() -> None:
    """Phantoms, noise, mismatch and correction of the preset, of other images; a model without a preset gets ellipses with 1 % noise."""
    text = """
    [geometry]
    beam = "fan"
    image_size = 16
    angles_degrees = { first = 0.0, step = 30.0, count = 12 }
    detectors = 40
    source_to_axis = 40.0
    source_to_detector = 60.0
    [data]
    train = 4
    validation = 2
    noise = { kind = "poisson", photons = 1e5 }
    phantoms = "discs-with-holes"
    mismatch = { beam = [0.2, 0.3], air_offset = 0.01 }
    correction = { air = true, hardening = 0.25 }
    [model]
    kind = "cascade"
    blocks = 1
    value_scale = 0.05
    [training]
    epochs = 1
    """
    preset = parse_preset(text, "own")
    model = make_model(preset, RayTransform(preset.geometry))
    model.provenance = {"preset": "own", "preset_text": text}
    scans = scans_like_training(model, "calibration", 6, None, 0)
    assert len(scans) == 6 and scans.correction == preset.correction and scans.noise == preset.noise
    assert _set_of_head(model) == "train"  # random phantoms are others with every seed
    pictures = {"preset": "own", "preset_text": text.replace("discs-with-holes", "a/folder/of/pictures")}
    model.provenance, own = pictures, model.provenance
    assert _set_of_head(model) == "head"
    model.provenance = own
    assert scans.images is not None and 0.04 < float(scans.images.max()) < 0.06
    assert not torch.equal(scans.images[:4], scans_like_training(model, "train", 4, None, 0).images)
    assert scans_like_training(model, "calibration", 2, GaussianNoise(0.05), 0).noise == GaussianNoise(0.05)
    plain = scans_like_training(small_model(), "calibration", 2, None, 0)
    assert plain.noise == GaussianNoise(0.01) and plain.correction is None


PICTURES = """
[geometry]
beam = "sparse"
image_size = 16
views = 6
[data]
train = 4
validation = 2
noise = { kind = "gaussian", relative = 0.01 }
phantoms = "FOLDER"
[model]
blocks = 1
[training]
epochs = 1
"""


def trained_on_pictures(folder: Path, count: int) -> Path:
    """A model, as if it had been trained on a folder of so many pictures."""
    (folder / "pictures").mkdir()
    for n in range(count):
        np.save(folder / "pictures" / f"{n}.npy", np.random.default_rng(n).random((8, 8)))
        np.save(folder / "pictures" / f"{n}-again.npy", np.random.default_rng(n).random((8, 8)))
    preset = parse_preset(PICTURES.replace("FOLDER", str(folder / "pictures")), "own")
    model = make_model(preset, RayTransform(preset.geometry))
    model.provenance = {"preset": "own", "preset_text": preset.text}
    save(model, folder / "model.safetensors")
    return folder / "model.safetensors"


def test_a_calibration_on_pictures_promises_nothing_beyond_them(tmp_path: Path) -> None:
    model = trained_on_pictures(tmp_path, 260)
    pictures = distinct_pictures(tmp_path / "pictures", "calibration", 16)
    assert LEAST_IMAGES <= pictures < 40
    result = bdgd("calibrate", model, "-o", tmp_path / "out.safetensors", "--images", 40, "--draws", 1, "--device", "cpu")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert f"exchangeable with the 40 calibration scans: these {pictures} pictures of the folder" in said
    assert "any other object" in said and "the same kind of object" not in said


def test_a_calibration_on_few_pictures_is_refused_before_a_scale_head_is_trained(tmp_path: Path) -> None:
    model = trained_on_pictures(tmp_path, 60)
    pictures = distinct_pictures(tmp_path / "pictures", "calibration", 16)
    result = bdgd("calibrate", model, "-o", tmp_path / "out.safetensors", "--head", 4, "--draws", 1, "--device", "cpu")
    assert f"has {pictures} different pictures for calibration, about one of ten, and 20 are needed" in assert_one_sentence(result)
    assert 0 < pictures < LEAST_IMAGES and not (tmp_path / "out.safetensors").exists()


def test_a_calibration_on_scans_of_one_image_says_so(tmp_path: Path) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    g = torch.Generator().manual_seed(3)
    image = random_ellipses(1, 16, generator=g).repeat(20, 1, 1, 1)
    write_scans(tmp_path / "scans.h5", simulate(small_model().A, image, GaussianNoise(0.03), generator=g))
    options = ("--scans", tmp_path / "scans.h5", "-o", tmp_path / "out.safetensors", "--draws", 2, "--device", "cpu")
    result = bdgd("calibrate", tmp_path / "model.safetensors", *options)
    assert result.exit_code == 0, result.output
    assert "the 20 calibration scans: the same objects (different images: 1), this geometry" in " ".join(result.output.split())


@pytest.mark.parametrize(("count", "known", "message"), [(3, True, "has 3 with them"), (20, False, "has 20 without them")])
def test_scans_that_cannot_calibrate_are_refused_before_a_scale_head_is_trained(
    count: int, known: bool, message: str, tmp_path: Path
) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    g = torch.Generator().manual_seed(3)
    scans = simulate(small_model().A, random_ellipses(count, 16, generator=g), GaussianNoise(0.03), generator=g)
    write_scans(tmp_path / "scans.h5", scans if known else replace(scans, images=None))
    result = bdgd("calibrate", tmp_path / "model.safetensors", "--scans", tmp_path / "scans.h5", "--head", 4, "--device", "cpu")
    assert message in assert_one_sentence(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scans", "scans.h5", "--images", 40), "--images belongs to simulated scans, and --scans takes their place"),
        (("--scans", "scans.h5", "--noise", 0.05), "--noise belongs to simulated scans, and --scans takes their place"),
        (("--epochs", 3), "--epochs are those of a new scale head; add --head"),
        (("--false-alarms", 0.7), "false_alarms must lie between 0 and 0.5, got 0.7"),
        (("--head", 4, "--false-alarms", 0.7), "false_alarms must lie between 0 and 0.5, got 0.7"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused_before_any_work(options: tuple[object, ...], message: str, tmp_path: Path) -> None:
    result = bdgd("calibrate", tmp_path / "no-model.safetensors", "-o", tmp_path / "out.safetensors", *options)
    assert_one_sentence(result)
    assert message in result.stderr
