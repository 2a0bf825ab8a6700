"""`bdgd measured`: what it scores, what it skips the second time, and what it says is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import bdgd
from discs import ACRYLIC, measured_disc, write_compact
from matplotlib.figure import Figure

from bdgd.apps import measured as command
from bdgd.apps.console import Output
from bdgd.data import Correction
from bdgd.evaluation import measured
from bdgd.evaluation.challenge import CONDITIONS, MeasuredScan, ViewCondition, scanner
from bdgd.evaluation.figures import new_figure
from bdgd.evaluation.measured_tables import MISSING, UNMEASURED, read_entries
from bdgd.evaluation.mismatch import CORRECTION, HARDENING
from bdgd.models import DeepGradientDescent, checkpoint, save
from bdgd.operators import RayTransform

CPU = torch.device("cpu")


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


def test_scans_that_the_picture_lacks_are_named(tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compact(tmp_path, measured_disc("07a", air=0.01, noise=0.003, generator=generator))
    shown: list[str] = []

    def drawn(folder: Path, rows: list[tuple[MeasuredScan, ViewCondition]], method: object) -> Figure:
        shown.extend(scan.name for scan, _ in rows)
        return new_figure(1, 1)

    monkeypatch.setattr(command, "measured_figure", drawn)  # the real one reconstructs for a minute
    words = ("measured", tmp_path, "disc", "-o", tmp_path / "results", "--condition", "arc30", "--no-reference", "--device", "cpu")
    done = bdgd(*words, "--figure")
    assert done.exit_code == 0 and shown == ["07a"] and (tmp_path / "results" / "measured.png").is_file(), done.output
    assert "the folder does not hold ta, 04b, so that their rows are left out" in " ".join(done.stderr.split())


def test_another_model_of_the_same_name_is_scored_and_not_shown_as_the_first(tmp_path: Path, generator: torch.Generator) -> None:
    write_compact(tmp_path, measured_disc("07a", air=0.01, noise=0.003, generator=generator))
    A = RayTransform(scanner()[list(range(31))])
    for seed, name in enumerate("AB"):
        (tmp_path / name).mkdir()
        save(DeepGradientDescent(A, blocks=1, seed=seed), tmp_path / name / "model.safetensors")
    options = ["-o", tmp_path / "results", "--condition", "arc30", "--no-reference", "--device", "cpu"]
    found = []
    for words in (["A", 2], ["A", 2], ["B", 2], ["B", 3], ["B", 3, "--seed", 1]):
        name, draws, *rest = words
        done = bdgd("measured", tmp_path, tmp_path / str(name) / "model.safetensors", *options, "--draws", draws, *rest)
        assert done.exit_code == 0, done.output
        found.append((read_entries(tmp_path / "results", "arc30", "model")["07a"], "is made again" in done.stderr))
    (first, _), (again, _), *others = found
    assert again == first and [told for _, told in found] == [False, False, True, True, True]
    made = [first["made_by"], *(entry["made_by"] for entry, _ in others)]
    assert len({by["weights"] for by in made}) == 2 and [by["draws"] for by in made] == [2, 2, 3, 3] and made[-1]["seed"] == 1


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
    assert "| BDGD, corrected | 1 |" in done.output and "| BDGD |" not in done.output and done.output.count(UNMEASURED) == 1
    assert MISSING not in done.output
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


def test_a_page_without_the_place_is_said_before_the_work_and_only_asked_for_places_are_needed(
    tmp_path: Path, generator: torch.Generator
) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    write_compact(tmp_path, measured_disc("ta", air=0.01, noise=0.003, generator=generator))  # a training scan: its mismatch is measured
    words = ["measured", tmp_path, "disc", "-o", results, "--no-reference", "--device", "cpu", "--page", page]
    page.write_text("<!-- arc30 -->\n<!-- /arc30 -->\n")
    done = bdgd(*words, "--condition", "arc60")
    assert done.exit_code == 2 and "no place for the table; add the lines <!-- arc60 -->" in done.stderr and not results.exists()
    done = bdgd(*words, "--condition", "arc30")
    assert done.exit_code == 0 and "| filled disc | 1 |" in page.read_text(), done.output
