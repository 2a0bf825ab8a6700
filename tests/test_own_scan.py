"""A model for one's own scanner: what a preset takes over from a scan, and the whole way from a file to 1/mm."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny_presets
from commands import bdgd
from discs import COARSE_FAN as FAN
from discs import MATERIAL, scanned_disc
from tiny_presets import CPU
from toys import seeded

from bdgd.apps.own_scan import Wishes, fitted_preset
from bdgd.apps.presets import parse_preset, preset_text, read_preset
from bdgd.checks import InputError
from bdgd.data import Correction, Ellipses, GaussianNoise, Mismatch, PoissonNoise, Scans, ellipse_sinogram, read_scans, write_scans
from bdgd.data.correction import hardened
from bdgd.data.scanner import read_scanner, training_geometry
from bdgd.models import load
from bdgd.models.scales import gradient_scale
from bdgd.operators import ParallelBeam

TINY = tiny_presets.TINY.replace("[model]", "mismatch = { axis_shift = 0.1 }\n[model]")


@pytest.fixture
def scan_file(tmp_path: Path) -> Path:
    write_scans(tmp_path / "scan.h5", scanned_disc())
    return tmp_path / "scan.h5"


# --- the geometry ----------------------------------------------------------------------------------------------------


def test_a_scanner_from_toml_and_from_a_scan(tmp_path: Path, scan_file: Path) -> None:
    (tmp_path / "mine.toml").write_text(FAN.to_toml() + 'unit = "cm"\npages = "views"\n')
    scanner = read_scanner(tmp_path / "mine.toml")
    assert scanner.geometry == FAN and scanner.unit == "cm" and scanner.scan is None
    scanner = read_scanner(scan_file)
    assert scanner.geometry == FAN and scanner.scan is not None and scanner.unit == "mm"
    strange = replace(FAN, angles=tuple(57.3 * angle for angle in FAN.angles))
    (tmp_path / "degrees.toml").write_text(strange.to_toml())
    np.savez(tmp_path / "scan.npz", sinogram=np.exp(-read_scans(scan_file).sinograms[0, 0].numpy()), **FAN.to_dict())
    for name, said in (
        ("degrees.toml", "if they are degrees, name them angles_degrees"),
        ("scan.npz", "which should see air, read the most"),
    ):
        assert said in read_scanner(tmp_path / name).notes[0]
        assert said in fitted_preset(parse_preset(TINY, "tiny"), Wishes(geometry=tmp_path / name), CPU)[1][0]
    (tmp_path / "wrong.toml").write_text("beam = ")
    for name, message in (("wrong.toml", "is not valid TOML"), ("none.json", "cannot read the geometry")):
        with pytest.raises(InputError, match=message):
            read_scanner(tmp_path / name)


# --- the preset ------------------------------------------------------------------------------------------------------


def test_a_preset_takes_over_what_the_scan_tells(scan_file: Path) -> None:
    base = read_preset("own-scan")
    preset, notes = fitted_preset(base, Wishes(geometry=scan_file, views=30, size=32, phantoms="discs-with-holes"), CPU)
    assert preset.geometry == training_geometry(FAN, views=30, size=32)[0] and preset.phantoms == "discs-with-holes"
    assert preset.value_scale == pytest.approx(MATERIAL, rel=0.06) and isinstance(preset.noise, PoissonNoise)
    assert preset.mismatch is not None and preset.mismatch.air_offset[1] > 0.03
    assert preset.model["gradient_scale"] == pytest.approx(gradient_scale(preset.geometry, CPU), rel=0.01)
    assert (preset.train, preset.training) == (base.train, base.training)
    assert parse_preset(preset.text, preset.name) == preset  # the run folder's copy is the whole of it
    assert any("1/mm" in note for note in notes) and any("photons" in note for note in notes)


@pytest.fixture
def bent_scan(tmp_path: Path) -> Wishes:
    """A disc that was hardened with b = 0.2, and the wish to undo it."""
    straight = ellipse_sinogram(Ellipses.from_rows([(MATERIAL, 30.0, 30.0, 1.0, -2.0, 0.0)]), FAN, unit=1 / FAN.pixel_size)
    write_scans(tmp_path / "bent.h5", Scans(PoissonNoise(1e5)(hardened(straight, 0.2) + 0.02, generator=seeded()), FAN, unit="mm"))
    return Wishes(geometry=tmp_path / "bent.h5", views=30, size=32, phantoms="discs-with-holes", air=True, hardening=0.2)


def test_a_wished_correction_is_trained_with_around_what_it_undoes(bent_scan: Wishes) -> None:
    """The corrected scan has the values of the material; the noise and the air are the scan's."""
    preset, notes = fitted_preset(read_preset("own-scan"), bent_scan, CPU)
    assert preset.correction == Correction(air=True, hardening=0.2) and preset.mismatch is not None
    assert preset.mismatch.beam == (0.17, 0.23) and preset.mismatch.hardening == (0.0, 0.0)
    assert preset.mismatch.air_offset[0] < 0.02 < preset.mismatch.air_offset[1] and any("photons" in note for note in notes)
    assert preset.value_scale == pytest.approx(MATERIAL, rel=0.06) and parse_preset(preset.text, preset.name) == preset


def test_without_the_correction_a_hardened_scan_has_lower_values(bent_scan: Wishes) -> None:
    preset, _ = fitted_preset(read_preset("own-scan"), replace(bent_scan, air=False, hardening=None), CPU)
    assert preset.correction is None and preset.value_scale < 0.8 * MATERIAL
    assert preset.mismatch is not None and preset.mismatch.beam == (0.0, 0.0)


def test_air_is_not_corrected_where_no_detector_sees_it(bent_scan: Wishes, tmp_path: Path) -> None:
    y = read_scans(tmp_path / "bent.h5").sinograms[..., 40:100]  # the object reaches beyond these detectors
    write_scans(tmp_path / "narrow.h5", Scans(y, replace(FAN, detectors=60, image_size=24)))
    with pytest.raises(InputError, match="outermost detectors do not see air"):
        fitted_preset(read_preset("own-scan"), replace(bent_scan, geometry=tmp_path / "narrow.h5", size=24), CPU)


def test_a_correction_can_be_wished_for_a_geometry_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FAN.to_toml())
    preset, _ = fitted_preset(parse_preset(TINY, "tiny"), Wishes(geometry=tmp_path / "mine.toml", hardening=0.2), CPU)
    assert preset.mismatch == Mismatch(axis_shift=0.1, beam=(0.17, 0.23)) and preset.correction == Correction(hardening=0.2)


def test_given_noise_and_images_come_first(scan_file: Path) -> None:
    preset, _ = fitted_preset(parse_preset(TINY, "tiny"), Wishes(geometry=scan_file, size=16, noise=0.05, images=7), CPU)
    assert preset.noise == GaussianNoise(0.05) and preset.train == 7


def test_a_geometry_alone_leaves_noise_and_values(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(ParallelBeam.sparse(image_size=20, views=7).to_toml())
    base = parse_preset(TINY, "tiny")
    preset, _ = fitted_preset(base, Wishes(geometry=tmp_path / "mine.toml"), CPU)
    assert preset.geometry.views == 7 and (preset.noise, preset.value_scale, preset.mismatch) == (base.noise, 1.0, base.mismatch)


def test_without_wishes_nothing_changes() -> None:
    preset = read_preset("own-scan")
    assert fitted_preset(preset, Wishes(), CPU) == (preset, [])


def test_preset_text_reads_back() -> None:
    values = {"seed": 3, "a": {"text": 'a "b" \\ ü', "yes": True, "table": {"x": [1.5, 2], "y": 1e-05}}}
    assert tomllib.loads(preset_text(values, "one\ntwo")) == values


# --- the whole way ---------------------------------------------------------------------------------------------------


def test_from_a_scan_file_to_values_in_1_per_mm(scan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    run = tmp_path / "run"
    options = ("--geometry", scan_file, "--views", 15, "--size", 24, "--phantoms", "discs-with-holes", "--device", "cpu")
    result = bdgd("train", tmp_path / "tiny.toml", *options, "-o", run)
    assert result.exit_code == 0, result.output
    assert "1/mm" in result.stderr and "GB are free" in result.stderr and f"bdgd reconstruct {scan_file} --model" in result.output
    assert f"before that: bdgd calibrate {run}/model.safetensors --head 2000 -o {run}/calibrated.safetensors" in result.stdout
    model = load(run / "model.safetensors")
    assert model.value_scale == pytest.approx(MATERIAL, rel=0.06)
    assert float(model.noise_level) < 0.01  # in 1/mm, not in the network's unit
    result = bdgd("train", tmp_path / "tiny.toml", *options, "-o", run, "--resume")  # the same estimates, so the same run
    assert result.exit_code == 0, result.output

    assert bdgd("reconstruct", scan_file, "-m", run / "model.safetensors", "-o", tmp_path / "out", "--draws", 3).exit_code == 0
    with h5py.File(tmp_path / "out" / "posterior.h5") as file:
        mean, std = file["mean"][0], file["std"][0]
    assert 0.5 * MATERIAL < np.quantile(mean, 0.8) < 1.5 * MATERIAL and mean[0].mean() < 0.5 * MATERIAL
    assert 0 < std.max() < MATERIAL

    assert bdgd("simulate", "--geometry", scan_file, "--phantom", "discs-with-holes", "-o", tmp_path / "rehearsal.h5").exit_code == 0
    rehearsal = read_scans(tmp_path / "rehearsal.h5")
    assert rehearsal.unit == "mm" and isinstance(rehearsal.noise, PoissonNoise) and rehearsal.geometry == FAN
    assert rehearsal.images is not None and float(rehearsal.images.max()) == pytest.approx(MATERIAL, rel=0.06)
    assert (
        bdgd("reconstruct", tmp_path / "rehearsal.h5", "-m", run / "model.safetensors", "-o", tmp_path / "out2", "--draws", 3).exit_code
        == 0
    )


@pytest.mark.slow
def test_the_commands_of_the_page_run_as_they_stand(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the size: --size 16 --images 16 make seconds of minutes."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "own-scan.md").read_text()
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == [
        *("train", "reconstruct", "calibrate", "train", "reconstruct", "reconstruct", "simulate", "reconstruct"),
        *("simulate", "evaluate"),
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "htc2022_ta_full.mat").symlink_to(shared_data / "htc2022_mat" / "htc2022_ta_full.mat")
    acrylic = []  # in 1/mm
    for trained, used in (commands[:2], commands[3:5]):
        for command, extra in ((trained, ["--size", 16, "--images", 16]), (used, ["--draws", 2])):
            result = bdgd(*command.split()[1:], *extra)
            assert result.exit_code == 0, result.output
        with h5py.File("result/posterior.h5") as file:
            acrylic.append(float(file["mean"][0, 6:10, 6:10].mean()))
    assert 0.02 < acrylic[0] < 0.04 and 0.04 < acrylic[1] < 0.06 and "p + 0.27 p^2" in result.stderr
    few = ["--head", 4, "--epochs", 1, "--images", 20, "--draws", 2]
    # the rehearsal's truth is on narrower pixels
    for command, extra in ((commands[2], few), (commands[6], []), (commands[7], ["--draws", 2])):
        result = bdgd(*command.split()[1:], *extra)
        assert result.exit_code == 0, result.output
    assert "averaged over the model's pixels" in result.stderr and "PSNR" in result.output
    assert "<b>Error</b>" in Path("rehearsed/report.html").read_text()
    scored = bdgd("evaluate", "fbp", "runs/mine/model.safetensors", "--scans", "rehearsal.h5", "--draws", 2)
    assert scored.exit_code == 0 and "width in 1/mm" in scored.output, scored.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("own-scan",), "own-scan trains for your own scanner; add --geometry SCAN"),
        (("small", "--size", "32"), "--size says how a scan is used; add --geometry SCAN"),
        (("own-scan", "--geometry", "nowhere.h5"), "there is no file nowhere.h5"),
        (("small", "--phantoms", "squares"), "--phantoms must be ellipses, discs-with-holes or a folder"),
        (("small", "--noise", "-1"), "relative noise must be at least 0"),
        (("small", "--hardening", "0.2"), "--hardening says how a scan is used; add --geometry SCAN"),
        (("small", "--air"), "--air says how a scan is used; add --geometry SCAN"),
    ],
)
def test_wrong_options_are_one_sentence(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = bdgd("train", *options, "-o", tmp_path / "run")
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
