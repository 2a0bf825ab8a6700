"""The table of epistemic uncertainties: what its columns mean, how it chooses, and one command that trains, resumes and keeps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import no_update_undone, small_model, small_transform, some_sinograms
from typer.testing import CliRunner

from bdgd.apps import cli, epistemic, reproduce, short_trainings
from bdgd.apps.short_trainings import preset_of
from bdgd.checks import InputError
from bdgd.evaluation import Effort, epistemic_table, table_scans
from bdgd.evaluation.epistemic import POINT, ROWS, SCHEDULE, Row, Training, growth, measure, posterior_function, text_auroc, with_lost_views
from bdgd.evaluation.epistemic_table import chosen, markdown, reason
from bdgd.models import load
from bdgd.operators import ParallelBeam, RayTransform

TINY = """
seed = 0
[geometry]
beam = "sparse"
image_size = 64
views = 6
[data]
train = 6
validation = 2
noise = { kind = "gaussian", relative = 0.01 }
[model]
kind = "cascade"
blocks = 4
last_layer = "mean_field"
gradient_scale = 30.0
[training]
epochs = 6
batch = 8
learning_rate = 1e-3
"""
PAGE = "before\n<!-- epistemic -->\n<!-- /epistemic -->\nafter\n"


# The rows ----------------------------------------------------------------------------------------------------------------


def test_the_rows_are_those_that_were_asked_for() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)
    kinds = {(training.last_layer, training.kl_weight) for row in ROWS for training in row.trainings}
    assert kinds == {("point", 1), ("dropout", 1), ("full_covariance", 1), *(("mean_field", weight) for weight in (1, 100, 16384))}
    assert {len(row.trainings) for row in ROWS} == {1, 5}
    assert any(row.laplace for row in ROWS) and {row.draw for row in ROWS} == {"weights", "pixels"}
    assert len({training for row in ROWS for training in row.trainings}) == 10


def test_trainings_differ_in_what_they_say_alone() -> None:
    point, dropout = preset_of(POINT), preset_of(Training("dropout"))
    assert point.model | {"last_layer": "dropout"} == dropout.model and point.training == dropout.training
    assert point.training.items() >= SCHEDULE.items()
    assert (point.train, preset_of(POINT, images=7).train) == (4000, 7)
    assert preset_of(Training("mean_field", 16384.0)).training["kl_weight"] == 16384


# The columns -------------------------------------------------------------------------------------------------------------


def test_lost_views_are_the_mean_of_their_neighbours(generator: torch.Generator) -> None:
    y = torch.rand(2, 1, 30, 8, generator=generator)
    kept = y.clone()
    lost = with_lost_views(y)
    changed = (lost != y).any(3).any(0)[0].nonzero()[:, 0].tolist()
    assert changed == [2, 7, 12, 17, 22, 27] and len(changed) == 0.2 * 30
    assert torch.equal(lost[:, :, 7], (y[:, :, 6] + y[:, :, 8]) / 2) and torch.equal(y, kept)
    with pytest.raises(InputError, match="at least 4 views, got 3"):
        with_lost_views(y[:, :, :3])


def test_growth_of_a_posterior_whose_moments_are_known() -> None:
    """A posterior whose variance is the square of the sinogram's mean: its growth is known, whatever the images."""
    A = RayTransform(ParallelBeam.sparse(image_size=16, views=6))
    scans = table_scans(A, 4)[:-1]

    class Known:
        def __init__(self, y: torch.Tensor):
            squares = y.square().mean((1, 2, 3), keepdim=True)
            self.mean, self.epistemic = torch.zeros(len(y), 1, 16, 16), squares.expand(-1, -1, 16, 16)

    variance, error = growth(Known, scans)  # type: ignore[arg-type]
    inside = (scans.images > 1e-6).float().mean((1, 2, 3))

    def weighted(y: torch.Tensor) -> float:
        return float((y.square().mean((1, 2, 3)) * inside).sum())

    assert variance == pytest.approx(weighted(with_lost_views(scans.sinograms)) / weighted(scans.sinograms), rel=1e-4)
    assert error == 1.0


def test_a_point_has_no_variance_to_grow_and_finds_nothing() -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=64, views=6))
    of_point = posterior_function([small_model("point", A)], "weights", 5)
    assert growth(of_point, table_scans(A, 3)[:-1])[0] is None
    assert text_auroc(of_point, A, 1) == 0.5


def test_several_models_are_an_ensemble_and_draws_repeat() -> None:
    A = small_transform()
    models, y = [small_model("mean_field", A), small_model("point", A)], some_sinograms(A)
    with no_update_undone():
        one, two = (posterior_function(models, "weights", 6)(y) for _ in range(2))
        assert one.number == 4 and torch.equal(one.mean, two.mean)  # three of the first and the only one of the second
        assert posterior_function(models[:1], "pixels", 6)(y).origin.draw == "pixels"


def test_all_columns_of_a_row() -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=64, views=6))
    effort = Effort(ellipses=2, draws=4, claim_images=1)
    scores = measure(posterior_function([small_model("mean_field", A)], "weights", 4), A, effort, 12.0)
    assert scores.draws == 4 and scores.training_seconds == 12 and scores.sampling_seconds > 0
    assert set(scores.coverage) == {"0.5", "0.68", "0.9", "0.95"} and all(0 <= covered <= 1 for covered in scores.coverage.values())
    assert 0 < scores.epistemic_part < 1 and 0 <= scores.text_auroc <= 1 and scores.error_growth > 0
    assert json.loads(json.dumps(asdict(scores))) == asdict(scores)


# The choice --------------------------------------------------------------------------------------------------------------


def result(psnr: float, nll: float, text: float, part: float = 0.1) -> dict[str, Any]:
    scores = {"psnr": psnr, "nll": nll, "text_auroc": text, "epistemic_part": part}
    more = {"patch_nll": None, "coverage": {"0.9": 0.9}, "ause": 0.1, "variance_growth": None, "error_growth": 2.0, "draws": 3}
    return {
        "scores": scores | more | {"training_seconds": 1.0, "sampling_seconds": 0.1},
        "training_images": 6,
        "effort": {"ellipses": 2},
        "provenance": {"hardware": "a machine", "commit": "c0ffee" * 4},
    }


def test_the_choice_follows_the_rule() -> None:
    rows = [Row(key, key, (POINT,)) for key in "abcde"] + [Row("five", "five", (POINT,) * 5)]
    results = {
        "a": result(40.0, -3.00, 0.80),
        "b": result(39.8, -2.97, 0.90),  # chosen: close in both, and better at finding
        "c": result(39.6, -3.00, 0.99),  # loses too many dB
        "d": result(40.0, -2.90, 0.99),  # loses too many nats
        "e": result(41.0, -5.00, 0.50, part=0.0),  # has no variance
        "five": result(42.0, -5.00, 0.99),  # does not fit into one file
    }
    winner = chosen(results, rows)
    assert winner is not None and winner.key == "b"
    assert "Chosen: b" in reason(results, rows) and "0.900" in reason(results, rows)
    text = markdown(results, "QUICK", rows)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows) and len({line.count("|") for line in table}) == 1 and "**QUICK**" in text
    assert chosen({}, rows) is None and "none is chosen" in reason({}, rows)


# The command -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two blocks, one epoch, six training images, two test images; one row of each sort."""
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "page.md").write_text(PAGE)
    members = (POINT, Training("point", seed=1))
    rows = (
        Row("point", "point", (POINT,)),
        Row("pixels", "pixels", (Training("mean_field", 100.0),), "pixels"),
        Row("closed", "closed form", (POINT,), laplace=1.0),
        Row("ensemble", "ensemble", members),
    )
    monkeypatch.setattr(reproduce, "FULL", Effort(ellipses=2, draws=3, claim_images=1))
    for name, value in {"PRESET": "tiny.toml", "BLOCKS": 2, "SCHEDULE": {"epochs": 1, "batch": 4, "learning_rate": 2e-3}}.items():
        monkeypatch.setattr(short_trainings, name, value)
    monkeypatch.setattr(epistemic, "ROWS", rows)
    monkeypatch.setattr(epistemic, "markdown", lambda results, note: epistemic_table.markdown(results, note, rows))
    monkeypatch.setattr(epistemic, "chosen", lambda results: epistemic_table.chosen(results, rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments), "--device", "cpu"], prog_name="bdgd")


def test_one_command_trains_measures_keeps_and_fills_the_page(tiny: Path) -> None:
    done = bdgd("epistemic", "--runs", "trained", "--page", "page.md")
    assert done.exit_code == 0, done.output
    whole = json.loads((tiny / "results/epistemic.json").read_text())
    assert set(whole["rows"]) == {"point", "pixels", "closed", "ensemble"} and whole["provenance"]["hardware"]
    scores = {key: found["scores"] for key, found in whole["rows"].items()}
    assert scores["point"]["epistemic_part"] == 0 < scores["closed"]["epistemic_part"]
    assert scores["ensemble"]["draws"] == 2 and scores["pixels"]["draws"] == 3
    assert scores["ensemble"]["training_seconds"] > scores["point"]["training_seconds"]
    assert whole["chosen"] in ("pixels", "closed")
    by = whole["rows"]["ensemble"]["trained"]
    assert [training["seed"] for training in by] == [0, 1] and all(training["hardware"] and training["seconds"] > 0 for training in by)
    table = (tiny / "results/epistemic.md").read_text().strip()
    assert (tiny / "page.md").read_text() == PAGE.replace("-->\n<!-- /", f"-->\n{table}\n<!-- /")
    assert table.count("\n| ") == 4 and "closed form" in table

    folders = sorted(path.name for path in (tiny / "trained").iterdir())
    assert folders == sorted(f"epistemic-{name}" for name in ("point-kl1-seed0", "point-kl1-seed1", "mean-field-kl100-seed0"))
    first, second = (load(tiny / f"trained/epistemic-point-kl1-seed{seed}/model.safetensors") for seed in (0, 1))
    assert first.fingerprint() != second.fingerprint()
    assert first.provenance["data_seed"] == second.provenance["data_seed"] == 0  # the same images
    assert (first.provenance["seed"], second.provenance["seed"]) == (0, 1)

    # Again: nothing is made that is there; a row that is gone is made again, and a training that was cut off ends with the same weights.
    before = {path: path.stat().st_mtime_ns for path in tiny.rglob("*") if path.suffix in (".json", ".safetensors")}
    (tiny / "results/epistemic/pixels.json").unlink()
    for unfinished in ("model", "block-02"):
        (tiny / f"trained/epistemic-point-kl1-seed1/{unfinished}.safetensors").unlink()
    assert bdgd("epistemic", "--runs", "trained").exit_code == 0
    changed = {path.name for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {"pixels.json", "epistemic.json", "model.safetensors", "block-02.safetensors"}
    assert load(tiny / "trained/epistemic-point-kl1-seed1/model.safetensors").fingerprint() == second.fingerprint()
    again = json.loads((tiny / "results/epistemic.json").read_text())["rows"]["pixels"]
    assert {**again["scores"], "sampling_seconds": 0, "training_seconds": 0} == {
        **scores["pixels"],
        "sampling_seconds": 0,
        "training_seconds": 0,
    }

    # Elsewhere, without the trainings: what was measured is kept, and only what the missing row needs is trained.
    (tiny / "results/epistemic/pixels.json").unlink()
    assert bdgd("epistemic", "--runs", "elsewhere").exit_code == 0
    assert [path.name for path in (tiny / "elsewhere").iterdir()] == ["epistemic-mean-field-kl100-seed0"]

    other = bdgd("epistemic", "--runs", "trained", "--images", 5)
    assert other.exit_code == 2 and "another recipe" in " ".join(other.output.split())


def test_images_are_for_this_table_alone(tiny: Path) -> None:
    for option in ("--images", "--draws"):
        done = bdgd("table1", option, 5)
        assert done.exit_code == 2 and f"{option} is for" in " ".join(done.output.split())
