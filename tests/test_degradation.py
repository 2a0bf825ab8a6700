"""How models degrade: what each condition does to a scan, what is scored, and what `bdgd stress` writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import bdgd
from test_slices import write_slices
from tiny_presets import TINY
from toys import dense, small_model, small_transform

from bdgd.apps import stress
from bdgd.apps.presets import parse_preset
from bdgd.apps.training import make_model
from bdgd.checks import InputError
from bdgd.data import (
    Correction,
    GaussianNoise,
    Mismatch,
    PoissonNoise,
    Scans,
    match,
    named_generator,
    phantom_images,
    random_ellipses,
    simulate,
)
from bdgd.evaluation.conditions import ORDINARY, Condition, ordinary_value, scans_under, spread_views, standard_conditions
from bdgd.evaluation.degradation import Degradation, degradation_curves
from bdgd.evaluation.degradation_figures import degradation_figure, degradation_markdown
from bdgd.evaluation.uncertainty import score_uncertainty
from bdgd.inference import calibrate, reconstruct
from bdgd.metrics import psnr
from bdgd.models import Reconstructor, save
from bdgd.operators import ParallelBeam, RayTransform

NOISE = GaussianNoise(0.01)


def ellipses(count: int, seed: int = 0) -> torch.Tensor:
    return random_ellipses(count, 16, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def calibrated() -> Reconstructor:
    model = small_model()
    scans = simulate(model.A, ellipses(60), NOISE, generator=torch.Generator().manual_seed(1))
    return model.with_calibration(calibrate(model, scans, draws=2, false_alarms=0.1))


@pytest.fixture(scope="module")
def found(calibrated: Reconstructor) -> Degradation:
    conditions = [Condition("noise", 30.0), Condition("axis", 2.0), Condition("missing", 2.0), Condition("views", 4.0)]
    return degradation_curves(calibrated, ellipses(4, 2), slices=1 - ellipses(3, 3), conditions=conditions)


# Conditions


def test_the_standard_curves_leave_out_what_is_ordinary() -> None:
    model = small_model(A=small_transform(views=30))
    kinds: dict[str, list[float]] = {}
    for condition in standard_conditions(model, NOISE):
        kinds.setdefault(condition.kind, []).append(condition.value)
    assert kinds["noise"] == [0.5, 2.0, 3.0, 4.0, 5.0] and kinds["views"] == [27, 28, 29, 31, 32, 33]
    assert kinds["missing"] == [1, 2, 3] and kinds["axis"] == [0.25, 0.5, 1.0, 1.5, 2.0]
    assert ordinary_value("noise", 30, PoissonNoise(1e4).to_dict()) is None


@pytest.mark.parametrize(
    "wrong", [("fog", 1.0), ("noise", -1.0), ("missing", 0.5), ("views", 1.0)], ids=["unknown", "negative", "part of a view", "one view"]
)
def test_conditions_that_make_no_sense_are_refused(wrong: tuple[str, float]) -> None:
    with pytest.raises(InputError):
        Condition(*wrong)


def test_views_of_another_scan_are_over_the_same_arc() -> None:
    sparse = ParallelBeam.sparse(image_size=16, views=30)
    np.testing.assert_allclose(spread_views(sparse, 27), (np.arange(27) + 0.5) * np.pi / 27)
    np.testing.assert_allclose(spread_views(sparse, 30), sparse.angles)
    limited = ParallelBeam.limited(image_size=16, degrees=60)
    edge = np.rad2deg(limited.angles[0]) - 0.5
    np.testing.assert_allclose(np.rad2deg(spread_views(limited, 64)), edge + (np.arange(64) + 0.5) * 60 / 64, atol=1e-9)


def test_each_view_gets_the_measured_one_at_the_nearest_angle() -> None:
    model, x, none = small_model(A=small_transform(views=6)), ellipses(2), GaussianNoise(0.0)
    given = scans_under(Condition("views", 5.0), model, x, none).sinograms
    measured = RayTransform(replace(model.A.geometry, angles=tuple((np.arange(5) + 0.5) * np.pi / 5)))(x)  # type: ignore[union-attr]
    # 15, 45, 75, 105, 135, 165 degrees take 18, 54, 90, 90, 126, 162 of 18, 54, 90, 126, 162
    for view, nearest in enumerate((0, 1, 2, 2, 3, 4)):
        torch.testing.assert_close(given[:, :, view], measured[:, :, nearest])
    same = scans_under(Condition("views", 6.0), model, x, none).sinograms
    torch.testing.assert_close(same, model.A(x))


@pytest.mark.parametrize("off", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("geometry", [ParallelBeam.sparse(image_size=128), ParallelBeam.limited(image_size=128)], ids=["sparse", "limited"])
def test_a_scan_that_states_other_angles_is_refused_as_the_page_says(geometry: ParallelBeam, off: int) -> None:
    other = replace(geometry, angles=spread_views(geometry, geometry.views + off))
    with pytest.raises(InputError, match="does not fit the model"):
        match(Scans(torch.zeros(1, 1, other.views, other.detectors), other), geometry)


def test_lost_views_are_zero_and_others_in_every_image() -> None:
    model = small_model(A=small_transform(views=12))
    usual, lost = (scans_under(condition, model, ellipses(6), NOISE) for condition in (Condition(), Condition("missing", 2.0)))
    gone = (lost.sinograms == 0).all(-1)[:, 0]  # (B, V)
    assert gone.sum(1).tolist() == [2] * 6 and len({tuple(row) for row in gone.tolist()}) > 1
    assert torch.equal(lost.sinograms[~gone[:, None]], usual.sinograms[~gone[:, None]])  # the noise is the same
    with pytest.raises(InputError, match="12 views cannot be lost of 12"):
        scans_under(Condition("missing", 12.0), model, ellipses(1), NOISE)


def test_a_whole_shift_of_the_axis_moves_every_view_by_a_detector() -> None:
    model = small_model()
    shifted = scans_under(Condition("axis", 1.0), model, ellipses(2), GaussianNoise(0.0)).sinograms
    torch.testing.assert_close(shifted[..., 1:], model.A(ellipses(2))[..., :-1])


def test_noise_is_in_per_cent_and_from_the_same_numbers() -> None:
    model, x = small_model(), ellipses(2)
    clean = model.A(x)
    one, five = (scans_under(condition, model, x, NOISE).sinograms - clean for condition in (Condition(), Condition("noise", 5.0)))
    torch.testing.assert_close(five, 5 * one, rtol=1e-3, atol=1e-4)


def test_ordinary_scans_have_the_errors_of_the_scanner_and_the_correction_of_the_model() -> None:
    model, x = small_model(), ellipses(2)
    model.correction, errors = Correction(hardening=0.2), Mismatch(beam=(0.1, 0.3), gain=0.01)
    usual = scans_under(Condition(), model, x, NOISE, 0, errors)
    generator = named_generator("conditions noise", 0)
    as_trained = simulate(model.A, x, NOISE, generator=generator, mismatch=errors).corrected(model.correction)
    assert usual.correction == model.correction and torch.equal(usual.sinograms, as_trained.sinograms)
    for condition in (Condition("noise", 3.0), Condition("views", 4.0), Condition("missing", 1.0), Condition("axis", 0.5)):
        worse = scans_under(condition, model, x, NOISE, 0, errors)
        assert worse.correction == model.correction and worse.sinograms.shape == usual.sinograms.shape
    shift = replace(errors, axis_shift=(0.3, 0.7))  # further off than usual by as much as was asked for
    errors = replace(errors, axis_shift=(-0.2, 0.2))
    shifted = simulate(model.A, x, NOISE, generator=named_generator("conditions noise", 0), mismatch=shift).corrected(model.correction)
    torch.testing.assert_close(scans_under(Condition("axis", 0.5), model, x, NOISE, 0, errors).sinograms, shifted.sinograms)


# Scores


def test_the_ordinary_point_is_what_the_other_scores_say(calibrated: Reconstructor, found: Degradation) -> None:
    scans = scans_under(Condition(), calibrated, ellipses(4, 2), NOISE)
    scores = score_uncertainty(calibrated, scans, (0.9,), draws=2, patches=())
    inside, point = scores.strata["object"], found.ordinary
    assert (point.coverage, point.width) == (inside.intervals[0].coverage, inside.intervals[0].width)
    assert (point.rmse, point.ause) == (inside.rmse, scores.strata["all"].ause)
    assert point.images == 4 and found.false_alarms == 0.1 and found.draws == 2 and found.noise == NOISE.to_dict()


def test_psnr_and_lights_do_not_depend_on_the_batch(calibrated: Reconstructor, found: Degradation) -> None:
    again = degradation_curves(calibrated, ellipses(4, 2), conditions=[Condition("noise", 30.0)], batch=3)
    assert again.points[1].psnr == pytest.approx(found.points[1].psnr, abs=1e-6)
    assert (again.points[1].red, again.points[1].reasons) == (found.points[1].red, found.points[1].reasons)


def test_psnr_is_the_mean_over_images() -> None:
    model, x = small_model("point"), ellipses(3)
    point = degradation_curves(model, x, conditions=[], draws=1).ordinary
    mean = reconstruct(model, scans_under(Condition(), model, x, NOISE).sinograms, 1).mean
    assert point.psnr == pytest.approx(float(psnr(mean, x).mean()), abs=1e-9)
    assert point.red is None and point.reasons is None


def test_thirty_times_the_noise_is_worse_and_rings_more_often(found: Degradation) -> None:
    usual, noisy = found.points[:2]
    assert noisy.condition == Condition("noise", 30.0) and noisy.psnr < usual.psnr - 1 and noisy.rmse > usual.rmse
    assert noisy.red is not None and usual.red is not None and noisy.red > usual.red
    for point in found.points:  # every red light has its reason
        assert point.reasons is not None and point.red is not None and sum(point.reasons.values()) == round(point.red * point.images)


def test_curves_hold_the_ordinary_point_where_it_belongs(found: Degradation) -> None:
    assert found.kinds() == ["noise", "views", "missing", "axis", "anatomy"]
    assert [value for value, _ in found.curve("noise")] == [1.0, 30.0] and found.curve("noise")[0][1] is found.ordinary
    assert [value for value, _ in found.curve("views")] == [4.0, 5.0] and found.curve("views")[1][1] is found.ordinary
    assert [point.images for _, point in found.curve("anatomy")] == [3]


def test_the_verdict_is_by_coverage_then_by_the_light(found: Degradation) -> None:
    usual = found.ordinary
    assert found.verdict(replace(usual, coverage=0.881, red=0.0)) == "holds"
    assert found.verdict(replace(usual, coverage=0.87, red=0.5)) == "rings"
    assert found.verdict(replace(usual, coverage=0.87, red=0.49)) == found.verdict(replace(usual, coverage=0.1, red=None)) == "silent"


def test_what_cannot_be_scored_is_refused(calibrated: Reconstructor) -> None:
    with pytest.raises(InputError, match="holds for 2 draws"):
        degradation_curves(calibrated, ellipses(1), draws=5)
    with pytest.raises(InputError, match="give them as slices"):
        degradation_curves(calibrated, ellipses(1), conditions=[Condition("anatomy")])
    with pytest.raises(InputError, match="only for a ray transform"):
        degradation_curves(small_model(A=dense(small_transform())), ellipses(1), draws=1)
    with pytest.raises(InputError, match="all images are empty"):
        degradation_curves(small_model(), torch.zeros(1, 1, 16, 16), conditions=[], draws=2)


# What is shown


def test_the_figure_has_a_column_per_kind_and_a_row_per_metric(found: Degradation) -> None:
    figure = degradation_figure(found, "small")
    assert len(figure.axes) == 4 * 5
    assert figure.axes[-5].get_xlabel() == "noise / % of the mean"
    figure.canvas.draw()
    silent = replace(found, points=tuple(replace(point, red=None) for point in found.points), false_alarms=None)
    assert len(degradation_figure(silent).axes) == 3 * 5


def test_the_figure_of_one_kind_is_wide_enough_for_its_words(found: Degradation) -> None:
    noise = replace(found, points=tuple(point for point in found.points if point.condition.kind in (ORDINARY, "noise")))
    figure = degradation_figure(noise, "small")
    figure.canvas.draw()
    (words,) = figure.texts
    box = words.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and "no alarm says so" in words.get_text().replace("\n", " ")


def test_the_table_has_a_row_per_point(found: Degradation) -> None:
    lines = degradation_markdown(found, "small").splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert len(rows) == len(found.points) == 6
    assert rows[0].startswith("| ordinary |  | 4 |") and "| 1.00 | 1.00 |" in rows[0]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


# The command


def test_stress_writes_numbers_table_and_picture(calibrated: Reconstructor, tmp_path: Path) -> None:
    save(calibrated, tmp_path / "model.safetensors")
    (tmp_path / "slices").mkdir()
    write_slices(tmp_path / "slices" / "a.npz", np.random.default_rng(0).normal(0, 300, (2, 32, 32)), [{"patient": 1}, {"patient": 2}])
    files = {name: tmp_path / f"out.{name}" for name in ("json", "md", "png")}
    result = bdgd(
        *("stress", tmp_path / "model.safetensors", "--images", 2, "--only", "axis", "--slices", tmp_path / "slices", "--device", "cpu"),
        *("-o", files["json"], "--table", files["md"], "--figure", files["png"]),
    )
    assert result.exit_code == 0, result.output
    written = json.loads(files["json"].read_text())
    kinds = [point["condition"]["kind"] for point in written["points"]]
    assert kinds == ["ordinary", *["axis"] * 5, "anatomy"] and written["anatomy"]["patients"] == ["1", "2"]
    assert written["provenance"]["seed"] == 0 and written["draws"] == 2 and all("verdict" in point for point in written["points"])
    assert files["md"].read_text().count("| axis |") == 5 and files["png"].read_bytes().startswith(b"\x89PNG")
    assert all(f"wrote {path}" in result.stdout for path in files.values())


def test_stress_takes_scans_like_those_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = 'phantoms = "discs-with-holes"\nvalue_spread = 0.1\nmismatch = { gain = 0.01 }\ncorrection = { hardening = 0.1 }\n'
    text = TINY.replace("[model]", f"{data}[model]").replace("relative = 0.02", "relative = 0.03")
    preset = parse_preset(text, "mine")
    model, asked = make_model(preset, RayTransform(preset.geometry)), list[tuple[torch.Tensor, dict[str, object]]]()
    model.provenance = {"preset": "mine", "preset_text": text}
    save(model, tmp_path / "model.safetensors")

    def curves(model: Reconstructor, images: torch.Tensor, **options: object) -> Degradation:
        asked.append((images, options))
        return degradation_curves(model, images, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(stress, "degradation_curves", curves)
    words = ("--images", 2, "--draws", 2, "--only", "missing", "--device", "cpu")
    result = bdgd("stress", tmp_path / "model.safetensors", *words)
    assert result.exit_code == 0, result.output
    ((images, options),) = asked
    assert options["noise"] == GaussianNoise(0.03) and options["mismatch"] == Mismatch(gain=0.01)
    assert torch.equal(images, phantom_images("discs-with-holes", "test", 2, preset.geometry, spread=0.1))


def test_stress_says_what_it_does_not_know(tmp_path: Path) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    result = bdgd("stress", tmp_path / "model.safetensors", "--only", "fog")
    assert result.exit_code == 2 and "--only fog is no curve; known are noise, views, missing, axis" in result.stderr
    result = bdgd("stress", tmp_path / "model.safetensors", "--only", "missing", "--images", 1, "--draws", 2, "--device", "cpu")
    assert result.exit_code == 0 and "not calibrated" in result.stderr
