"""Methods on scans of the Helsinki challenge: synthetic discs in its geometry, and the measured ones where they are."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import ACRYLIC, coarse, disc_image, measured_disc, write_compact
from torch import Tensor
from typer.testing import CliRunner

from bdgd.apps import cli
from bdgd.apps import measured as command
from bdgd.apps.console import Output
from bdgd.checks import InputError
from bdgd.classical import fbp, tv
from bdgd.data import Correction, GaussianNoise, random_ellipses, simulate
from bdgd.evaluation import measured, measured_methods, tooth
from bdgd.evaluation.challenge import ARCS, CONDITIONS, NAMES, TRAINING, MeasuredScan, ViewCondition, find_scans, read_measured, scanner
from bdgd.evaluation.measured import Reconstructed, disc_scores, score_measured
from bdgd.evaluation.measured_methods import References, corrected, evaluate_scans, measured_fbp, measured_model, measured_tv, reference
from bdgd.evaluation.measured_tables import MISSING, chosen_setting, is_complete, measured_markdown, read_entries, write_entries
from bdgd.evaluation.mismatch import CORRECTION, HARDENING
from bdgd.evaluation.segmentation import rotated
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, checkpoint, save
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.storage import write_json

CPU = torch.device("cpu")


# --- what is used and what is left out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=lambda condition: condition.name)
@pytest.mark.parametrize("scan", ["ta", "02a", "05b", "07b"])
def test_no_view_is_used_and_left_out(condition, scan: str) -> None:  # type: ignore[no-untyped-def]
    used, left_out = condition.used(scan), condition.left_out(scan)
    start = condition.start(scan)
    assert not set(used) & set(left_out) and all((view - start) % 2 for view in left_out) and len(left_out) >= 134
    assert len(used) == (condition.views or condition.degrees + 1) == len(set(used))
    if condition.degrees:
        assert used[0] == ARCS.get(scan, (0, 0))[0] and (used[-1] - used[0]) % 360 == condition.degrees


def test_the_challenge_asks_for_the_own_arcs() -> None:
    for name, scans in (("arc90", ("01a", "01b")), ("arc60", ("04a", "04b")), ("arc30", ("07a", "07b"))):
        condition = CONDITIONS[name]
        assert condition.own == scans and all(ARCS[scan][1] == condition.degrees for scan in scans)
    assert len(NAMES) == 19 and {measured_disc(name).group for name in ("ta", "td")} == {"training"}


# --- reading ---------------------------------------------------------------------------------------------------------------


def test_a_compact_file_comes_back_the_right_way_round(tmp_path: Path) -> None:
    scan = measured_disc("03b")
    path = write_compact(tmp_path, scan)
    assert find_scans(tmp_path) == {"03b": path}
    read = read_measured("03b", path)
    assert torch.equal(read.segmentation, scan.segmentation) and torch.equal(read.scans.sinograms, scan.scans.sinograms)
    assert read.scans.geometry == scanner() and read.group == "03"


@pytest.mark.parametrize(("keys", "words"), [({}, "no segmentation"), ({"seg512": np.zeros(5, np.uint8)}, "32768 bytes")])
def test_a_file_without_its_segmentation_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    path = write_compact(tmp_path, measured_disc())
    with np.load(path) as file:
        kept = {name: file[name] for name in ("sino", "geo")}
    np.savez(path, **kept, **keys)
    with pytest.raises(InputError, match=words):
        read_measured("ta", path)


def test_folders_without_scans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no scan"):
        find_scans(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        find_scans(tmp_path / "none")


def test_the_organisers_files_and_the_compact_ones_are_the_same_scan(shared_data: Path) -> None:
    found = find_scans(shared_data / "htc2022_mat")
    assert tuple(found) == TRAINING
    original, compact = read_measured("ta", found["ta"]), read_measured("ta", shared_data / "htc2022" / "ta.npz")
    assert torch.equal(original.scans.sinograms, compact.scans.sinograms) and torch.equal(original.segmentation, compact.segmentation)


def test_the_arcs_are_the_challenges(shared_data: Path) -> None:
    paths = find_scans(shared_data / "htc2022")
    assert tuple(paths) == NAMES
    for name, (start, degrees) in ARCS.items():
        with np.load(paths[name]) as file:
            assert json.loads(str(file["geo"]))["limited"][:2] == [start, start + degrees]


# --- scores ----------------------------------------------------------------------------------------------------------------


def test_fbp_of_many_views_finds_the_holes_and_the_filled_disc_finds_none(generator: torch.Generator, tmp_path: Path) -> None:
    scan = measured_disc(noise=0.003, generator=generator)
    ((setting, found),) = measured_fbp(CPU, [scan], CONDITIONS["views60"])
    (scores,) = score_measured(found, [scan], CONDITIONS["views60"], disc_image(256, ACRYLIC), 0.0)
    assert setting == "hann" and scores.mcc is not None and scores.mcc > 0.97
    assert scores.mcc_inside is not None and scores.mcc_inside > 0.97
    assert scores.psnr is not None and scores.psnr > 20 and scores.coverage is None
    filled = disc_scores(scan)
    assert filled.mcc is not None and 0.5 < filled.mcc < 0.95 and filled.mcc_inside == 0.0


def test_correcting_restores_the_values(generator: torch.Generator) -> None:
    bent = measured_disc(air=0.015, hardening=0.27)
    images = {}
    for name, scan in (("bent", bent), ("corrected", corrected(bent))):
        ((_, found),) = measured_fbp(CPU, [scan], CONDITIONS["views60"])
        images[name] = found.images[0, 0, 128 - 5 : 128 + 5, 128 - 5 : 128 + 5].mean()  # acrylic in the middle, where the beam is hardest
    assert float(images["bent"]) < 0.8 * ACRYLIC and float(images["corrected"]) == pytest.approx(ACRYLIC, rel=0.03)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_methods, "MOST_ITERATIONS", 20)
    monkeypatch.setattr(measured_methods, "TV_WEIGHTS", (1e-5, 3e-6))


@pytest.mark.usefixtures("quick")
def test_references_are_kept_and_tv_tries_every_weight(tmp_path: Path, generator: torch.Generator) -> None:
    scan, condition = coarse(measured_disc(noise=0.003, generator=generator)), CONDITIONS["views30"]
    references = References(tmp_path / "references", CPU)
    (results,) = evaluate_scans("tv", partial(measured_tv, CPU), [scan], condition, references).values()
    assert list(results) == ["1e-05", "3e-06"] and all(scores["psnr"] > 22 for scores in results.values())
    (path,) = (tmp_path / "references").iterdir()
    np.save(path, np.zeros((1, 1, 64, 64), np.float32))  # the file is what is used from now on
    assert float(references([scan], CONDITIONS["views60"]).abs().max()) == 0.0


# --- all scans of a condition together -------------------------------------------------------------------------------------


def arc_scan(name: str, generator: torch.Generator) -> MeasuredScan:
    return coarse(measured_disc(name, air=0.01, noise=0.003, generator=generator))


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=lambda condition: condition.name)
def test_all_scans_of_a_condition_have_one_geometry(condition: ViewCondition) -> None:
    """Turned so that its arc starts at 0, every scan has the geometry of one whose arc does; its views are still its own."""
    scans, own = [coarse(measured_disc(name)) for name in ("07b", "05b", "02a")], measured_disc("05b").scans.sinograms
    for views in (condition.used, condition.left_out):
        together = condition.counted_from_start(scans, views)
        assert scanner()[views("07b")].angles == together.geometry.angles and len(together) == 3  # type: ignore[union-attr]
        assert torch.equal(together.sinograms[1:2], own[:, :, views("05b")])
        turned = torch.tensor(together.geometry.angles) + condition.rotation("05b")  # type: ignore[union-attr]
        measured_at = torch.tensor(scanner()[views("05b")].angles)
        torch.testing.assert_close(torch.polar(torch.ones_like(turned), turned), torch.polar(torch.ones_like(turned), measured_at))
    assert condition.start("05b") == (35 if condition.degrees else 0)
    with pytest.raises(InputError, match="one scanner"):
        condition.counted_from_start([scans[0], measured_disc("05b")], condition.used)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["views30", "arc90"])
def test_scans_together_score_as_each_alone(name: str, tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_DRAWS", 6)
    condition, scans = CONDITIONS[name], [arc_scan(scan, generator) for scan in ("ta", "05b")]
    geometry = scans[0].scans.geometry
    assert geometry is not None
    model = DeepGradientDescent(RayTransform(geometry[condition.used("ta")]), blocks=1, value_scale=ACRYLIC)
    assert model.random
    methods = {"fbp": partial(measured_fbp, CPU), "tv": partial(measured_tv, CPU), "model": partial(measured_model, model, 3, 0)}
    for kind, method in methods.items():
        together = evaluate_scans(kind, method, scans, condition, References(tmp_path / "together", CPU))
        assert list(together) == ["ta", "05b"]
        for scan in scans:
            (alone,) = evaluate_scans(kind, method, [scan], condition, References(tmp_path / "alone", CPU)).values()
            assert list(alone) == list(together[scan.name])
            for setting, scores in alone.items():
                there = {key: value for key, value in scores.items() if value is not None and key != "seconds"}
                assert ("coverage" in there) == (kind == "model") and {"mcc", "mcc_inside", "psnr", "ssim"} <= set(there)
                assert {key: together[scan.name][setting][key] for key in there} == pytest.approx(there, rel=1e-3)


@pytest.mark.usefixtures("quick")
def test_the_image_of_a_turned_arc_is_turned_back(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arc 90 degrees after the upright one: pixels turn onto pixels, and the images are those of the arc where it was measured."""
    monkeypatch.setitem(ARCS, "02a", (135, 80))
    scan, condition = arc_scan("02a", generator), CONDITIONS["arc90"]
    seen = scan.seen(condition.used("02a"))
    assert seen.geometry is not None
    A = RayTransform(seen.geometry)
    expected = fbp(A, seen.sinograms, filter="hann")
    ((_, found),) = measured_fbp(CPU, [scan], condition)
    assert found.rotations == (0.0,) and torch.equal(found.images, expected)
    expected = expected.clamp(min=0)
    for (_, found), weight in zip(measured_tv(CPU, [scan], condition), measured_methods.TV_WEIGHTS, strict=True):
        expected = tv(A, seen.sinograms, weight, start=expected, tolerance=1e-3, most_iterations=20)
        assert found.rotations[0] == pytest.approx(math.pi / 2)
        turned = rotated(found.images, found.rotations[0])
        torch.testing.assert_close(turned, expected, rtol=0, atol=0.05 * ACRYLIC)  # forward differences know left from right
        assert float((found.images - expected).abs().max()) > 0.5 * ACRYLIC


def test_a_reference_is_turned_to_lie_as_the_image(generator: torch.Generator) -> None:
    """The reference of an arc that starts at 40 degrees, and the same image however it lies: only what is interpolated differs."""
    scan, condition, image = arc_scan("03b", generator), CONDITIONS["arc60"], disc_image(64, ACRYLIC)
    truth = rotated(image, -condition.rotation("03b"))
    for rotation in (0.0, condition.rotation("03b"), condition.rotation("03b") - condition.upright):
        found = Reconstructed(rotated(image, -rotation), (rotation,))
        (right,) = score_measured(found, [scan], condition, truth, 0.0)
        (wrong,) = score_measured(replace(found, rotations=(rotation + 0.5,)), [scan], condition, truth, 0.0)
        assert right.psnr is not None and right.psnr > 20 and right.mcc_inside is not None and right.mcc_inside > 0.9
        assert wrong.psnr is not None and wrong.psnr < 15


def test_an_image_of_larger_pixels_is_compared_on_the_reference_s(generator: torch.Generator) -> None:
    scan, condition, truth = arc_scan("ta", generator), CONDITIONS["arc60"], disc_image(64, ACRYLIC)
    small = torch.nn.functional.avg_pool2d(truth, 2)
    (scores,) = score_measured(Reconstructed(small, (0.0,)), [scan], condition, truth, 0.0)
    assert scores.psnr == pytest.approx(float(psnr(rotated(small, 0.0, 64), truth, ACRYLIC)), abs=0.01)


@pytest.mark.usefixtures("quick")
def test_only_missing_references_are_made(tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def watched(scans: Sequence[MeasuredScan], condition: ViewCondition, device: torch.device) -> Tensor:
        asked.append([scan.name for scan in scans])
        return reference(scans, condition, device)

    monkeypatch.setattr(measured_methods, "reference", watched)
    references, condition = References(tmp_path, CPU), CONDITIONS["arc60"]
    scans = {name: arc_scan(name, generator) for name in ("ta", "04a", "05b")}
    first = references([scans["04a"]], condition)
    images = references(list(scans.values()), condition)
    assert asked == [["04a"], ["ta", "05b"]] and torch.equal(images[1:2], first)
    assert not torch.equal(images[:1], images[2:])


# --- tables ----------------------------------------------------------------------------------------------------------------


def entry(**by_setting: tuple[float, float | None]) -> dict[str, Any]:
    """Scores by setting, from (MCC inside, PSNR)."""
    kept = {"mcc": 0.9, "ssim": 0.8, "coverage": None, "width": None, "noise_width": None, "seconds": 1.0}
    return {
        "results": {name: {**kept, "mcc_inside": a, "psnr": b} for name, (a, b) in by_setting.items()},
        "provenance": {"hardware": "a machine"},
    }


def test_a_setting_is_chosen_on_other_groups_only() -> None:
    entries = {
        "04a": entry(rough=(0.9, 20.0), smooth=(0.1, 30.0)),
        "04b": entry(rough=(0.9, 20.0), smooth=(0.1, 30.0)),
        "ta": entry(rough=(0.2, 31.0), smooth=(0.4, 21.0)),
    }
    assert chosen_setting(entries, "04a", "mcc_inside") == "smooth" and chosen_setting(entries, "04a", "psnr") == "rough"
    assert chosen_setting(entries, "ta", "mcc_inside") == "rough" and chosen_setting(entries, "ta", "psnr") == "smooth"
    assert chosen_setting({"04a": entries["04a"], "04b": entries["04b"]}, "04a", "psnr") is None
    assert chosen_setting({"04a": entry(hann=(0.5, None))}, "04a", "psnr") == "hann"


def test_a_table_says_what_is_missing(tmp_path: Path) -> None:
    condition = CONDITIONS["arc60"]
    for scan, value in (("04a", 0.8), ("04b", 0.6), ("ta", 0.7)):
        write_entries(tmp_path, "arc60", "fbp", {scan: entry(hann=(value, 25.0))})
    write_entries(tmp_path, "arc60", "some/where/mine.safetensors", {"04a": entry(draws=(0.95, 30.0))})
    lines = measured_markdown(tmp_path, condition).splitlines()
    assert "| FBP | 3 | 0.900 | 0.700 | 0.60 | 0.80, 0.60 | 25.00 | 0.800 |" in "\n".join(lines)
    assert sum(MISSING in line for line in lines) == 2 and lines[-3].startswith("| mine | 1 ")
    assert len({line.count("|") for line in lines[2:-2]}) == 1 and lines[-1] == "*Measured on a machine.*"
    kept = read_entries(tmp_path, "arc60", "fbp")
    assert is_complete(kept["ta"], True) and not is_complete(entry(hann=(0.5, None)), True) and is_complete(entry(hann=(0.5, None)), False)
    (tmp_path / "arc60" / "fbp.json").write_text("{")
    with pytest.raises(InputError, match="delete it"):
        read_entries(tmp_path, "arc60", "fbp")


# --- the tooth -------------------------------------------------------------------------------------------------------------


def test_the_tooth_on_its_axis(tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phantom in the tooth's file format, its axis off the middle: TV beats FBP on the image and on the views it did not get."""
    monkeypatch.setattr(tooth, "_SIZE", 48)
    geometry = ParallelBeam(image_size=48, angles=np.deg2rad(np.arange(90) * 2), detectors=100, detector_offset=3.5, pixel_size=2.0)
    x = 0.01 * random_ellipses(count=2, size=48, generator=generator)
    y = simulate(RayTransform(geometry), x, GaussianNoise(0.02), generator=generator).sinograms
    np.savez(tmp_path / "tooth.npz", sino=y[:, 0].numpy(), theta_deg=np.arange(90) * 2, centre_px=46.0)
    read = tooth.read_tooth(tmp_path / "tooth.npz")
    assert read.used.geometry == geometry[::3] and read.left_out.sinograms.shape == (2, 1, 60, 100)
    scores, images = tooth.evaluate_tooth(read, CPU)
    by_method = {(s.method, s.slice): s for s in scores}
    assert set(images) == {"reference", "FBP", "TV"} and len(scores) == 4
    for b in (0, 1):
        assert by_method["TV", b].psnr > by_method["FBP", b].psnr + 1 and by_method["TV", b].missed < by_method["FBP", b].missed
    assert len(tooth.tooth_table(scores).splitlines()) == 6
    write_json(tmp_path / "tooth.json", {"scores": [s.to_dict() for s in scores]})
    assert tooth.read_tooth_scores(tmp_path / "tooth.json") == scores and tooth.read_tooth_scores(tmp_path / "none.json") == []
    np.savez(tmp_path / "bad.npz", sino=y.numpy())
    with pytest.raises(InputError, match="centre_px"):
        tooth.read_tooth(tmp_path / "bad.npz")


# --- the command -----------------------------------------------------------------------------------------------------------


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="bdgd")


def test_the_command_scores_a_method_and_a_model_and_goes_on_where_it_was(tmp_path: Path, generator: torch.Generator) -> None:
    folder, results, page = tmp_path / "scans", tmp_path / "results", tmp_path / "page.md"
    folder.mkdir()
    write_compact(folder, measured_disc("07a", air=0.01, noise=0.003, generator=generator))
    page.write_text("<!-- arc30 -->\n<!-- /arc30 -->\n")
    save(DeepGradientDescent(RayTransform(scanner()[list(range(31))]), blocks=1), tmp_path / "mine.safetensors")
    words = ["measured", folder, "disc", "fbp", tmp_path / "mine.safetensors", "-o", results, "--condition", "arc30", "--no-reference"]
    done = bdgd(*words, "--draws", 2, "--device", "cpu", "--page", page)
    assert done.exit_code == 0, done.output
    assert "| FBP | 1 |" in page.read_text() and "| mine | 1 |" in page.read_text() and MISSING in page.read_text()
    (scores,) = read_entries(results, "arc30", "mine")["07a"]["results"].values()
    assert 0 <= scores["coverage"] <= 1 and scores["width"] > scores["noise_width"] and scores["psnr"] is None
    before = (results / "arc30" / "fbp.json").stat().st_mtime_ns
    assert bdgd(*words[:4], *words[5:], "--device", "cpu").exit_code == 0
    assert (results / "arc30" / "fbp.json").stat().st_mtime_ns == before
    kept = read_entries(results, "arc30", "fbp")
    write_compact(folder, measured_disc("05b", air=0.01, noise=0.003, generator=generator))
    assert bdgd(*words[:4], *words[5:], "--device", "cpu").exit_code == 0
    there = read_entries(results, "arc30", "fbp")
    assert sorted(there) == ["05b", "07a"] and there["07a"] == kept["07a"]


def test_a_model_that_carries_a_correction_has_a_corrected_row_only(
    tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, results, condition = tmp_path / "scans", tmp_path / "results", CONDITIONS["arc30"]
    folder.mkdir()
    write_compact(folder, measured_disc("07a", air=0.01, hardening=HARDENING, noise=0.003, generator=generator))
    monkeypatch.setattr(checkpoint, "_weights", lambda: tmp_path)
    monkeypatch.setattr(measured, "_DRAWS", 2)
    model = DeepGradientDescent(RayTransform(scanner()[list(range(31))]), blocks=1, value_scale=ACRYLIC)
    for name, carried in (("htc-arc30-dgd", None), ("htc-arc30-mfvi", CORRECTION), ("other", Correction(hardening=0.2))):
        model.correction = carried
        save(model, tmp_path / f"{name}.safetensors")
    job = command._Job(results, {}, None, 2, 0, CPU)
    names = command._available(Output(), job, condition)
    plain = ["htc-arc30-dgd", "htc-arc30-dgd+rest"]
    corrected_too = ["fbp", "tv", "htc-arc30-dgd", "htc-arc30-mfvi", "htc-arc30-dgd+rest", "htc-arc30-mfvi+rest"]
    assert names == ["disc", "fbp", "tv", *plain, *(f"{name}+linear" for name in corrected_too)]
    words = ["-o", results, "--condition", "arc30", "--no-reference", "--draws", 2, "--device", "cpu"]
    done = bdgd("measured", folder, "htc-arc30-mfvi", *words)
    assert done.exit_code == 0 and "htc-arc30-mfvi carries a correction" in done.stderr, done.output
    assert [path.name for path in (results / "arc30").iterdir()] == ["htc-arc30-mfvi+linear.json"]
    assert "| BDGD, corrected | 1 |" in done.output and "| BDGD |" not in done.output and done.output.count(MISSING) == 1
    done = bdgd("measured", folder, tmp_path / "other.safetensors", *words)
    assert done.exit_code == 2 and "train it with the latter" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--condition", "arc10"], "--condition must be one of views60"),
        (["--scan", "09z"], "--scan must be one of ta"),
        (["nonsense"], "METHOD must be disc, fbp, tv"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, options: list[str], words: str) -> None:
    write_compact(tmp_path, measured_disc())
    done = bdgd("measured", tmp_path, "-o", tmp_path / "results", *options, "--device", "cpu")
    assert done.exit_code == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
