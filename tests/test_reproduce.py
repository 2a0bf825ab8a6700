"""`bdgd reproduce`: what it writes and where, what it keeps, and what it says about models that are not there."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import assert_one_sentence
from shelf import Shelf
from typer.testing import CliRunner

from bdgd.apps import cli, reproduce
from bdgd.apps.presets import read_preset
from bdgd.apps.reproduce import What
from bdgd.evaluation import Effort, classical
from bdgd.evaluation.tables import read_cell, write_cell
from bdgd.models import load, save

RESULTS = Path(__file__).resolve().parents[1] / "results"


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments), "--device", "cpu"], prog_name="bdgd")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Small models and settings, two test images, two draws, and a TV that is far from converged."""
    monkeypatch.setattr(reproduce, "QUICK", Effort(ellipses=1, draws=2, claim_images=1, quick=True))
    monkeypatch.setattr(reproduce, "FULL", Effort(ellipses=2, draws=2, claim_images=1))
    monkeypatch.setattr(classical, "TV_VALIDATION_IMAGES", 1)
    monkeypatch.setattr(classical, "TV_VALIDATION_HEADS", 1)
    monkeypatch.setattr(classical, "TV_WEIGHTS", (1e-4,))
    for name in ("tv", "choose_tv_weight"):
        monkeypatch.setattr(classical, name, partial(getattr(classical, name), most_iterations=10))
    monkeypatch.chdir(tmp_path)
    return Shelf(tmp_path / "weights", monkeypatch)


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_all_of_it_quickly_and_never_over_the_full_results(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi", "limited120-mfvi", "sparse30-mfvi-paper")
    assert bdgd("table1").exit_code == 0
    full = written(Path("results"))
    result = bdgd("all", "--quick")
    assert result.exit_code == 0, result.output
    assert {name: text for name, text in written(Path("results")).items() if not name.startswith("quick/")} == full
    quick = written(Path("results/quick"))
    figures = ("fig2", "fig3", "fig4", "fig5", "fig6", "worst")
    assert {f"{name}.{ending}" for name in figures for ending in ("png", "json")} <= set(quick)
    assert {"table1.md", "table2.md", "claims.md", "claims.json", "sparse30/tv.json", "limited120/limited120-mfvi.json"} <= set(quick)
    for name, content in quick.items():
        assert name.endswith(".png") or b"QUICK: 1 test ellipses and 2 draws" in content, f"{name} must say that it is not the full result"


def test_a_quick_entry_is_no_full_one_in_the_same_folder(shelf: Shelf) -> None:
    folder = Path("results/quick")
    assert bdgd("table1", "--quick").exit_code == 0
    assert bdgd("table1", "--results", folder, "--only", "fbp").exit_code == 0
    (full,), (quick,) = read_cell(folder, "sparse30", "fbp"), read_cell(folder, "sparse30", "tv")
    assert len(full["psnr"]) == 3 and "effort" not in full and len(quick["psnr"]) == 2
    table = (folder / "table1.md").read_text()
    assert "| FBP |" in table and "| TV | not measured yet" in table and "QUICK" not in table


def test_a_record_says_how_its_figure_came_about(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")
    result = bdgd("fig2", "--results", "here")
    assert result.exit_code == 0 and "wrote here/fig2.png" in result.output.replace("\\", "/")
    record = json.loads(Path("here/fig2.json").read_text())
    assert record["models"]["sparse30-mfvi"]["commit"] == "c0ffee" and record["note"] == "" and record["seconds"] > 0
    assert {"seed", "commit", "hardware", "torch"} <= set(record["provenance"]) and "block 3" in record["numbers"]["sparse30-mfvi"]
    cost = {entry["model"]: entry for entry in record["missing"]}["sparse30-mcdo"]
    assert cost["command"] == "bdgd train sparse30-mcdo -o runs/sparse30-mcdo-seed0" and cost["seconds"] > 10
    assert "bdgd train sparse30-mcdo -o runs/sparse30-mcdo-seed0 makes it in about" in result.output


def test_a_figure_is_kept_until_a_model_is_added_or_changed(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")

    def made() -> bytes:
        assert bdgd("fig5").exit_code == 0
        return Path("results/fig5.json").read_bytes()

    first = made()
    assert made() == first
    shelf.add("limited60-mfvi")
    second = made()
    assert set(json.loads(second)["models"]) == {"sparse30-mfvi", "limited60-mfvi"} and made() == second
    shelf.add("sparse30-mfvi", seed=7)
    assert json.loads(made())["models"]["sparse30-mfvi"]["seed"] == 7
    Path("results/fig5.png").unlink()
    made()
    assert Path("results/fig5.png").is_file()


def test_the_worst_image_is_looked_for_again_when_the_table_has_changed(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")

    def made() -> dict[str, Any]:
        assert bdgd("worst").exit_code == 0
        return dict(json.loads(Path("results/worst.json").read_text()))

    first = made()
    assert made() == first
    (entry,) = read_cell(Path("results"), "sparse30", "sparse30-mfvi")
    entry["psnr"][0] = min(entry["psnr"]) - 1
    write_cell(Path("results"), "sparse30", "sparse30-mfvi", [entry])
    assert made()["numbers"]["psnr in the table"] == entry["psnr"][0] and made()["numbers"]["image"] == 0


def test_without_a_model_a_figure_is_left_out(shelf: Shelf) -> None:
    result = bdgd("fig3")
    assert result.exit_code == 0 and "left out" in result.output and not list(Path("results").iterdir())


def test_seeds_are_added_one_by_one_and_a_training_of_its_own_replaces_the_shared_one(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")
    assert bdgd("table1").exit_code == 0
    first = read_cell(Path("results"), "sparse30", "sparse30-mfvi")
    result = bdgd("table1", "--seeds", 3)
    assert (
        "the noise and draws of seed 1, 2 share its one training; bdgd train sparse30-mfvi -o runs/sparse30-mfvi-seed1 --seed 1"
        in result.output
    )
    three = read_cell(Path("results"), "sparse30", "sparse30-mfvi")
    assert three[:1] == first and [entry["provenance"]["seed"] for entry in three] == [0, 1, 2]
    assert len({entry["ellipses_psnr"] for entry in three}) == 3, "each seed has noise of its own"
    assert "3 (1 trained)" in Path("results/table1.md").read_text()
    run = Path("runs/sparse30-mfvi-seed1")
    run.mkdir(parents=True)
    shelf.add("sparse30-mfvi", seed=1, path=run / "model.safetensors")
    assert bdgd("table1", "--seeds", 3).exit_code == 0
    now = read_cell(Path("results"), "sparse30", "sparse30-mfvi")
    assert [entry["recipe"]["trained"]["seed"] for entry in now] == [0, 1, 0] and now[0] == three[0] and now[2] == three[2]
    assert "3 (2 trained)" in Path("results/table1.md").read_text()
    (run / "model.safetensors").unlink()  # what it gave stays
    again = bdgd("table1", "--seeds", 3)
    assert "the noise and draws of seed 2 share its one training" in again.output.replace("\n", " ")
    assert read_cell(Path("results"), "sparse30", "sparse30-mfvi") == now


def test_only_what_was_named_is_scored(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi", "sparse30-dgd")
    assert bdgd("table1", "--only", "fbp", "--only", "sparse30-dgd").exit_code == 0
    assert {path.stem for path in Path("results/sparse30").iterdir()} == {"fbp", "sparse30-dgd"}
    assert bdgd("devices", "--only", "sparse30-mfvi").exit_code == 0
    (device,) = Path("results/devices").iterdir()
    assert list(json.loads(device.read_text())["models"]) == ["sparse30-mfvi"]
    for arguments, message in (
        (("table1", "--only", "limited120-dgd"), "--only must be one of 'fbp', 'tv', 'sparse30-lpd'"),
        (("devices", "--only", "fbp"), "--only must be one of 'sparse30-dgd', 'sparse30-mfvi', got 'fbp'"),
        (("fig3", "--only", "fbp"), "--only is for the tables, gains and devices; leave it out"),
    ):
        assert message in assert_one_sentence(bdgd(*arguments))


def test_a_cell_is_made_again_for_a_model_that_was_trained_again(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")
    assert bdgd("table1").exit_code == 0
    path = shelf.folder / "sparse30-mfvi.safetensors"
    model = load(path)
    model.provenance = {**model.provenance, "commit": "decaf"}
    save(model, path)
    told = "*sparse30-mfvi was trained again since seed 0 was scored.*"
    assert bdgd("table1", "--only", "fbp").exit_code == 0 and told in Path("results/table1.md").read_text()
    assert bdgd("table1").exit_code == 0 and told not in Path("results/table1.md").read_text()
    (entry,) = read_cell(Path("results"), "sparse30", "sparse30-mfvi")
    assert entry["recipe"]["trained"]["commit"] == "decaf"


def test_a_table_says_which_model_was_trained_by_an_earlier_preset(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")
    assert bdgd("table1").exit_code == 0 and "earlier preset" not in Path("results/table1.md").read_text()
    path = shelf.folder / "sparse30-mfvi.safetensors"
    model = load(path)
    model.provenance |= {"preset_text": read_preset("sparse30-mfvi").text.replace("kl_weight = 100.0", "kl_weight = 1.0")}
    save(model, path)
    assert bdgd("table1").exit_code == 0
    told = "*sparse30-mfvi was trained by an earlier preset: kl_weight 1.0, now 100.0.*"
    assert Path("results/table1.md").read_text().splitlines()[-1] == told


def test_a_training_of_ones_own_fills_a_row_that_is_not_shipped(shelf: Shelf) -> None:
    run = Path("mine/sparse30-dgd-seed0")
    run.mkdir(parents=True)
    shelf.add("sparse30-dgd", path=run / "model.safetensors")
    assert bdgd("table1", "--runs", "mine").exit_code == 0
    assert len(read_cell(Path("results"), "sparse30", "sparse30-dgd")) == 1


def test_claims_are_written_with_what_is_missing(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi", "sparse30-dgd")
    Path("page.md").write_text("<!-- claims -->\n<!-- /claims -->\n")
    result = bdgd("claims", "--page", "page.md")
    assert result.exit_code == 0, result.output
    record = json.loads(Path("results/claims.json").read_text())
    found = {claim["name"]: claim for claim in record["claims"]}
    assert found["BDGD-MFVI beats DGD, sparse view"]["holds"] in (True, False)
    assert found["BDGD-MFVI beats BDGD-MCDO, sparse view"]["missing"] == ["sparse30-mcdo"]
    assert "sparse30-mcdo" in {cost["model"] for cost in record["missing"]}
    assert record["summary"] in Path("results/claims.md").read_text() and record["summary"] in Path("page.md").read_text()
    assert record["summary"] in result.output


def test_claims_are_judged_again_only_if_what_they_rest_on_changed(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi", "sparse30-dgd")
    record = Path("results/claims.json")

    def is_kept() -> bool:
        before = record.read_bytes()
        result = bdgd("claims", "--page", "page.md")
        assert result.exit_code == 0, result.output
        assert Path("results/claims.md").read_text().strip() in Path("page.md").read_text(), "kept or not, the page is filled"
        return record.read_bytes() == before

    Path("page.md").write_text("<!-- claims -->\n<!-- /claims -->\n")
    assert bdgd("claims").exit_code == 0
    assert is_kept()
    record.write_text('{"cells": 3}')
    assert not is_kept() and is_kept(), "a damaged record is made again"
    cell = read_cell(Path("results"), "sparse30", "sparse30-dgd")
    cell[0]["provenance"]["commit"] = "decaf"
    write_cell(Path("results"), "sparse30", "sparse30-dgd", cell)
    assert not is_kept() and is_kept(), "another result in a table"
    write_cell(Path("results"), "limited120", "limited120-dgd-paper", cell)
    assert not is_kept() and is_kept(), "a first result of a model that need not be shipped"
    shelf.add("sparse30-mfvi-paper")
    assert not is_kept() and is_kept(), "a model of the paper's recipe"
    shelf.add("sparse30-mcdo")
    assert not is_kept() and is_kept(), "a model that was missing"


def test_quick_fills_no_page(shelf: Shelf) -> None:
    Path("page.md").write_text("x")
    result = bdgd("all", "--quick", "--page", "page.md")
    assert result.exit_code == 2 and "does not fill a page" in result.stderr and not Path("results").exists()


def test_help_names_everything_that_can_be_made() -> None:
    result = CliRunner().invoke(cli.app, ["reproduce", "--help"], env={"COLUMNS": "200"})
    assert all(what.value in result.output for what in What) and "--seeds" in result.output and "--quick" in result.output


def test_what_quick_takes_for_tv_is_what_was_chosen_in_full() -> None:
    for setting, (ellipses, heads) in classical.TV_QUICK_WEIGHTS.items():
        recipe = read_cell(RESULTS, setting, "tv")[0]["recipe"]
        assert [(recipe[kind]["kind"], recipe[kind]["weight"]) for kind in ("ellipses", "heads")] == [
            ("anisotropic", ellipses),
            ("anisotropic", heads),
        ]


def test_the_real_quick_effort_is_small() -> None:
    from bdgd.evaluation import FULL, QUICK

    assert QUICK.quick and not FULL.quick and FULL.note() == ""
    assert (FULL.ellipses, FULL.draws) == (100, 100) and QUICK.ellipses * QUICK.draws <= 50
