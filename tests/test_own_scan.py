"""A model for one's own scanner: what is read from a scan, the geometry it is trained on, and the whole way from a file to 1/mm."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from discs import COARSE_FAN as FAN
from discs import MATERIAL
from typer.testing import CliRunner

from bdgd.apps import cli, forecast
from bdgd.apps.forecast import Pace, in_words, memory_needed, rehearse, require_memory
from bdgd.apps.own_scan import Wishes, fitted_preset, gradient_scale, preset_text, scanner_errors, value_scale
from bdgd.apps.presets import Preset, parse_preset, preset_names, read_preset
from bdgd.apps.scanner import axis_spacing, read_scanner, training_geometry
from bdgd.apps.training import make_model
from bdgd.checks import InputError
from bdgd.data import (
    Correction,
    Ellipses,
    GaussianNoise,
    Mismatch,
    PoissonNoise,
    Scans,
    ellipse_sinogram,
    estimate_noise,
    random_ellipses,
    read_scans,
    simulate,
    write_scans,
)
from bdgd.data.correction import hardened
from bdgd.evaluation.mismatch import CORRECTION, HARDENING
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, load
from bdgd.operators import ParallelBeam, RayTransform

CPU = torch.device("cpu")
TINY = """
seed = 1
[geometry]
beam = "sparse"
image_size = 16
views = 5
[data]
train = 24
validation = 4
noise = { kind = "gaussian", relative = 0.02 }
mismatch = { axis_shift = 0.1 }
[model]
blocks = 2
gradient_scale = 30.0
[training]
epochs = 1
batch = 8
"""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="bdgd")


@pytest.fixture(scope="module")
def scan() -> Scans:
    """An analytic disc of 30 mm radius, with a hole, photon noise and air off by 0.02."""
    disc = Ellipses.from_rows([(MATERIAL, 30.0, 30.0, 1.0, -2.0, 0.0), (-MATERIAL, 6.0, 9.0, 10.0, 5.0, 0.4)])
    clean = ellipse_sinogram(disc, FAN, unit=1 / FAN.pixel_size)
    return Scans(PoissonNoise(1e5)(clean + 0.02, generator=generator()), FAN, unit="mm")


@pytest.fixture
def scan_file(scan: Scans, tmp_path: Path) -> Path:
    write_scans(tmp_path / "scan.h5", scan)
    return tmp_path / "scan.h5"


# --- the geometry ---------------------------------------------------------------------------------------------------


def degrees(geometry: Any) -> np.ndarray:
    return np.rad2deg(geometry.angles)


def test_views_and_arcs_of_a_scan_that_ends_where_it_began() -> None:
    closed = replace(FAN, angles=np.deg2rad(np.arange(0, 360.1, 0.5)))  # 721 views
    assert np.allclose(degrees(training_geometry(closed, views=60)[0]), np.arange(0, 360, 6))
    assert np.allclose(degrees(training_geometry(closed, arc=30)[0]), np.arange(0, 30, 0.5))
    assert np.allclose(degrees(training_geometry(closed, arc=90, views=45)[0]), np.arange(0, 90, 2))
    backwards = replace(FAN, angles=np.deg2rad(200 - np.arange(0, 180, 1.0)))
    assert np.allclose(degrees(training_geometry(backwards, arc=4)[0]), [200, 199, 198, 197])
    assert len(training_geometry(FAN)[0].angles) == FAN.views


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"views": 91}, "--views 91: there are only 90 views"),
        ({"arc": 0}, "--arc must be above 0"),
        ({"arc": 361}, "at most the 360 degrees"),
        ({"size": 8}, "--size must lie between 16 and 1024 pixels, got 8"),
    ],
)
def test_impossible_wishes(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_geometry(FAN, **wishes)


def test_another_size_keeps_the_field_and_joins_detectors() -> None:
    geometry, notes = training_geometry(replace(FAN, image_size=(64, 48), detectors=141, detector_offset=0.3), size=32)
    assert geometry.image_size == (32, 32) and geometry.pixel_size * 32 == pytest.approx(FAN.pixel_size * 64)
    assert axis_spacing(geometry) == pytest.approx(geometry.pixel_size, rel=0.01) and geometry.detectors == 35
    # the joined cells are where the first 140 of 141 were
    assert float(geometry.detector_positions()[0]) == pytest.approx((0 - 70) * 0.8 + 0.3 + 1.5 * 0.8)
    assert len(notes) == 2 and "averaged into one" in notes[1]
    assert training_geometry(replace(FAN, image_size=600, pixel_size=0.1))[0].image_size == (256, 256)


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


# --- the preset -----------------------------------------------------------------------------------------------------


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


def test_a_wished_correction_is_trained_with_around_what_it_undoes(tmp_path: Path) -> None:
    """A disc that was hardened with b = 0.2: the corrected scan has the values of the material, the noise and the air are the scan's."""
    straight = ellipse_sinogram(Ellipses.from_rows([(MATERIAL, 30.0, 30.0, 1.0, -2.0, 0.0)]), FAN, unit=1 / FAN.pixel_size)
    bent = Scans(PoissonNoise(1e5)(hardened(straight, 0.2) + 0.02, generator=generator()), FAN, unit="mm")
    write_scans(tmp_path / "bent.h5", bent)
    wishes = Wishes(geometry=tmp_path / "bent.h5", views=30, size=32, phantoms="discs-with-holes", air=True, hardening=0.2)
    preset, notes = fitted_preset(read_preset("own-scan"), wishes, CPU)
    assert preset.correction == Correction(air=True, hardening=0.2) and preset.mismatch is not None
    assert preset.mismatch.beam == (0.17, 0.23) and preset.mismatch.hardening == (0.0, 0.0)
    assert preset.mismatch.air_offset[0] < 0.02 < preset.mismatch.air_offset[1] and any("photons" in note for note in notes)
    assert preset.value_scale == pytest.approx(MATERIAL, rel=0.06) and parse_preset(preset.text, preset.name) == preset
    plain, _ = fitted_preset(read_preset("own-scan"), replace(wishes, air=False, hardening=None), CPU)
    assert plain.correction is None and plain.value_scale < 0.85 * preset.value_scale and plain.mismatch.beam == (0.0, 0.0)  # type: ignore[union-attr]
    narrow = replace(FAN, detectors=60, image_size=24)  # the object reaches beyond its ends
    write_scans(tmp_path / "narrow.h5", Scans(bent.sinograms[..., 40:100], narrow))
    with pytest.raises(InputError, match="outermost detectors do not see air"):
        fitted_preset(read_preset("own-scan"), replace(wishes, geometry=tmp_path / "narrow.h5", size=24), CPU)
    (tmp_path / "mine.toml").write_text(FAN.to_toml())
    blind, _ = fitted_preset(parse_preset(TINY, "tiny"), Wishes(geometry=tmp_path / "mine.toml", hardening=0.2), CPU)
    assert blind.mismatch == Mismatch(axis_shift=0.1, beam=(0.17, 0.23)) and blind.correction == Correction(hardening=0.2)


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
    import tomllib

    assert tomllib.loads(preset_text(values, "one\ntwo")) == values


@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith("htc")])
def test_the_helsinki_presets(name: str) -> None:
    preset = read_preset(name)
    setting, _, kind = name.rpartition("-")
    views = {"htc60views": 60, "htc30views": 30, "htc-arc90": 90, "htc-arc60": 60, "htc-arc30": 30}[setting]
    step = 360 / views if "views" in name else 1.0
    assert np.allclose(degrees(preset.geometry), step * np.arange(views))
    assert preset.phantoms == "discs-with-holes" and preset.mismatch is not None
    fine = replace(preset.geometry, image_size=(256, 256), pixel_size=0.29664)  # that of 30 degrees has half the pixels, and kept the scale
    assert preset.model["gradient_scale"] == pytest.approx(gradient_scale(fine, CPU), rel=0.01)
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


# --- before it starts -----------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_said_with_numbers_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = read_preset("htc60views-mfvi")
    needed = memory_needed(preset, CPU)
    assert 8e9 < needed < 40e9
    monkeypatch.setattr(forecast, "memory_there", lambda device: (4e9, 8e9))
    with pytest.raises(InputError, match=r"needs about .* GB of memory, and 4 GB are free: .*try --images 1500 or --size 128"):
        require_memory(preset, CPU)
    assert "GB are free" in require_memory(parse_preset(TINY, "tiny"), CPU)


def test_the_memory_of_this_machine_is_known() -> None:
    free, total = forecast.memory_there(CPU)
    assert 0 < free <= total


def test_a_rehearsal_leaves_the_model_alone_and_gives_a_pace() -> None:
    preset = parse_preset(TINY, "tiny")
    model = make_model(preset, RayTransform(preset.geometry))
    assert isinstance(model, DeepGradientDescent)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pace = rehearse(model, 4)
    assert pace.step > 0 and pace.push > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # 2 blocks of one epoch of 3 steps, and 24 + 2 * 4 images pushed
    assert Pace(2.0, 0.5).total(preset) == pytest.approx(2 * (3 * 2.0 + 32 * 0.5))
    assert [in_words(s) for s in (0.2, 75, 600, 9000)] == ["1 s", "75 s", "10 minutes", "2.5 hours"]


# --- the whole way --------------------------------------------------------------------------------------------------


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


def test_value_scale_changes_the_unit_and_nothing_else(tmp_path: Path) -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=16, views=6))
    plain, scaled = DeepGradientDescent(A, 2, seed=4), DeepGradientDescent(A, 2, seed=4, value_scale=0.25)
    y = A(random_ellipses(2, 16, generator=generator(1)))
    from bdgd.inference import reconstruct

    one, other = reconstruct(plain, y, 5), reconstruct(scaled, 0.25 * y, 5)  # a power of two: exact
    assert torch.equal(other.mean, 0.25 * one.mean) and torch.equal(other.aleatoric, 0.0625 * one.aleatoric)
    assert torch.allclose(other.epistemic, 0.0625 * one.epistemic, rtol=1e-5, atol=0)
    for a, b in zip(one.draws(), other.draws(), strict=True):
        assert torch.equal(b, 0.25 * a)
    assert float(scaled.noise_level) == pytest.approx(0.25 * float(plain.noise_level))
    poisson = DeepGradientDescent(A, 1, misfit="poisson", attenuation=0.02, value_scale=0.25)
    assert poisson.arguments()["attenuation"] == pytest.approx(0.02) and getattr(poisson.misfit, "attenuation") == pytest.approx(0.005)  # noqa: B009


def test_primal_dual_has_a_value_scale_too() -> None:
    from bdgd.inference import reconstruct

    A = RayTransform(ParallelBeam.sparse(image_size=16, views=6))
    y = A(random_ellipses(2, 16, generator=generator(1)))
    plain, scaled = LearnedPrimalDual(A, 1, seed=4), LearnedPrimalDual(A, 1, seed=4, value_scale=0.25)
    assert torch.equal(reconstruct(scaled, 0.25 * y).mean, 0.25 * reconstruct(plain, y).mean)
    assert scaled.arguments() == {"iterations": 1, "value_scale": 0.25}


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


def test_training_does_not_see_the_unit(tmp_path: Path) -> None:
    from bdgd.training import finetune_jointly, train_greedily

    A = RayTransform(ParallelBeam.sparse(image_size=16, views=6))
    scans = simulate(A, random_ellipses(8, 16, generator=generator(1)), GaussianNoise(0.01), generator=generator(2))
    weights = []
    for scale in (1.0, 0.25):
        model = DeepGradientDescent(A, 2, seed=4, value_scale=scale)
        theirs = replace(scans, sinograms=scale * scans.sinograms, images=scale * scans.images)
        train_greedily(model, theirs, validation=theirs, epochs=1, batch=4, generator=generator(3))
        history = finetune_jointly(model, theirs, validation=theirs, epochs=1, batch=4, generator=generator(3))
        weights.append((model.state_dict(), history["validation_psnr"]))
    assert all(torch.equal(value, weights[1][0][name]) for name, value in weights[0][0].items())
    assert weights[0][1] == weights[1][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("own-scan",), "own-scan trains for your own scanner; add --geometry SCAN"),
        (("small", "--size", "32"), "--size says how a scan is used; add --geometry SCAN"),
        (("own-scan", "--geometry", "nowhere.h5"), "there is no file nowhere.h5"),
        (("small", "--phantoms", "squares"), "--phantoms must be ellipses, discs-with-holes or a folder"),
        (("small", "--noise", "-1"), "relative must be at least 0"),
        (("small", "--hardening", "0.2"), "--hardening says how a scan is used; add --geometry SCAN"),
        (("small", "--air"), "--air says how a scan is used; add --geometry SCAN"),
    ],
)
def test_wrong_options_are_one_sentence(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = bdgd("train", *options, "-o", tmp_path / "run")
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1


def test_shipped_presets_know_their_phantoms() -> None:
    presets: dict[str, Preset] = {name: read_preset(name) for name in preset_names()}
    assert {preset.phantoms for preset in presets.values()} == {"ellipses", "discs-with-holes"}
    assert all(
        preset.mismatch is None and preset.value_scale == 1.0 for name, preset in presets.items() if name.startswith(("sparse", "limited"))
    )
