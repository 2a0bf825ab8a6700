"""The comparison of devices: what counts as the same table, and what is compared at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shelf import Shelf
from typer.testing import CliRunner

from bdgd.apps import cli, reproduce
from bdgd.apps.devices import compared
from bdgd.apps.provenance import provenance
from bdgd.evaluation import Effort
from bdgd.evaluation.methods import training_of
from bdgd.evaluation.tables import write_cell
from bdgd.models import load


def device(name: str, psnr: list[float], weights: str = "w") -> dict[str, Any]:
    origin = {"hardware": name, "seed": 0, "commit": "c" * 40, "date": "2026-01-01T00:00:00"}
    return {"hardware": name, "models": {"model": {"weights": weights, "psnr": psnr, "provenance": origin}}}


def row(*devices: dict[str, Any]) -> list[str]:
    line = next(line for line in compared(list(devices)).splitlines() if line.startswith("| model"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_devices_agree_where_means_and_shepp_logan_do() -> None:
    found = row(device("A", [40.0, 44.0, 50.0]), device("B", [40.03, 43.98, 50.01]))
    assert found == ["model", "42.000 / 50.000", "42.005 / 50.010", "0.0100", "0.0300", "agree"]
    assert row(device("A", [40.0, 44.0, 50.0]), device("B", [40.0, 44.0, 50.03]))[-1] == "differ"
    assert row(device("A", [40.0, 44.0, 50.0]), device("B", [40.1, 44.0, 50.0]))[-1] == "differ"


def test_only_the_same_weights_and_images_are_compared() -> None:
    assert row(device("A", [40.0, 50.0]))[-1] == "one device only"
    assert row(device("A", [40.0, 50.0]), device("B", [40.0, 50.0], "others"))[-1] == "other weights or images"
    assert row(device("A", [40.0, 50.0]), device("B", [40.0, 41.0, 50.0]))[-1] == "other weights or images"


@pytest.mark.parametrize("text", ["{", "[]", '{"models": {"model": {}}, "hardware": "A"}', ""])
def test_results_that_cannot_be_read_are_said_before_any_work(text: str, tmp_path: Path) -> None:
    (tmp_path / "quick/devices").mkdir(parents=True)
    (tmp_path / "quick/devices/a.json").write_text(text)
    result = CliRunner().invoke(cli.app, ["reproduce", "devices", "--quick", "--results", str(tmp_path), "--device", "cpu"])
    assert result.exit_code == 2 and "cannot be read as the results of a device" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "command",
    [
        *(("reproduce", what) for what in ("table1", "gains", "claims", "errorbars", "devices", "epistemic", "honesty", "all")),
        ("stress", "sparse30-mfvi"),
    ],
)
@pytest.mark.parametrize("page", ["no place", None, "<!-- COMMAND -->, a place without an end", "<!-- stressed -->\n<!-- /stressed -->"])
def test_a_page_without_a_place_is_said_before_any_work(command: tuple[str, ...], page: str | None, tmp_path: Path) -> None:
    path, results = tmp_path / "page.md", ("--results", str(tmp_path)) if command[0] == "reproduce" else ()
    if page is not None:
        path.write_text(page.replace("COMMAND", command[1] if command[0] == "reproduce" else "stress"))
    result = CliRunner().invoke(cli.app, [*command, "--page", str(path), *results, "--device", "cpu"])
    assert result.exit_code == 2 and ("no place" in result.output or "no page" in result.output), result.output


@pytest.mark.parametrize("place", ["devices", "epistemic", "honesty"])
def test_a_place_for_what_is_no_part_of_all_does_not_do_for_all(place: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"<!-- {place} -->\n<!-- /{place} -->")
    result = CliRunner().invoke(cli.app, ["reproduce", "all", "--page", str(tmp_path / "page.md"), "--results", str(tmp_path)])
    assert result.exit_code == 2 and "has no place for the table; add the lines <!-- table1 -->" in " ".join(result.output.split())


def test_a_cell_of_the_table_from_the_same_cpu_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Shelf(tmp_path / "weights", monkeypatch).add("sparse30-mfvi", "sparse30-dgd")
    monkeypatch.setattr(reproduce, "FULL", Effort(ellipses=2, draws=2, claim_images=1))
    monkeypatch.chdir(tmp_path)
    model = load("sparse30-mfvi")
    recipe = {"draws": 2, "trained": training_of(model.provenance)}
    entry = {"recipe": recipe, "psnr": [1.0, 2.0, 3.0], "seconds": 9.0, "provenance": provenance(0, "cpu")}
    write_cell(Path("results"), "sparse30", "sparse30-mfvi", [entry])
    result = CliRunner().invoke(cli.app, ["reproduce", "devices", "--device", "cpu"])
    assert result.exit_code == 0 and "1.500 / 3.000" in result.output
    (kept,) = Path("results/devices").glob("*.json")
    models = json.loads(kept.read_text())["models"]
    assert models["sparse30-mfvi"]["psnr"] == [1.0, 2.0, 3.0] and models["sparse30-dgd"]["psnr"] != [1.0, 2.0, 3.0]


def test_what_a_device_made_of_earlier_weights_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Shelf(tmp_path / "weights", monkeypatch).add("sparse30-dgd")
    monkeypatch.setattr(reproduce, "FULL", Effort(ellipses=1, draws=1, claim_images=1))
    monkeypatch.chdir(tmp_path)
    Path("results/devices").mkdir(parents=True)
    other = device("another machine", [40.0, 50.0])
    other["models"] = {"sparse30-dgd": other["models"]["model"], "model": other["models"]["model"]}
    Path("results/devices/other.json").write_text(json.dumps(other))
    result = CliRunner().invoke(cli.app, ["reproduce", "devices", "--device", "cpu"])
    assert result.exit_code == 0 and "40.000" not in result.output and "| model |" not in result.output
    assert "one device only" in result.output
