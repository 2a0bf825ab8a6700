"""`bdgd reproduce gains`: every test image against its filtered back-projection, kept by weights, and shown with the worst ones named."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import assert_one_sentence
from shelf import GEOMETRIES, Shelf
from typer.testing import CliRunner

from bdgd import fbp, psnr
from bdgd.apps import cli, gains, reproduce
from bdgd.evaluation import Effort, table_scans
from bdgd.evaluation.gains import gains_table, measure_gains
from bdgd.operators import RayTransform


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["reproduce", "gains", "--quick", *map(str, arguments), "--device", "cpu"], prog_name="bdgd")


def kept() -> dict[str, Any]:
    return dict(json.loads(Path("results/quick/gains.json").read_text())["models"])


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setattr(reproduce, "QUICK", Effort(ellipses=6, draws=2, claim_images=1, quick=True))
    monkeypatch.chdir(tmp_path)
    return Shelf(tmp_path / "weights", monkeypatch)


def test_the_table_names_the_worst_images_and_counts_those_below_fbp() -> None:
    fine, harmful = (
        {"draws": 1, "psnr": [30.0, 26.0, 40.0], "fbp": [20.0, 25.0, 20.0]},
        {"draws": 9, "psnr": [30.0, 24.0], "fbp": [20.0, 25.0]},
    )
    lines = gains_table({"fine": fine, "harmful": harmful}).splitlines()
    assert lines[2] == "| fine | 1 | 3 | none | 1.0 (image 1) | 10.3 | 26.0 (image 1) | 30.0 |"
    assert lines[3] == "| harmful | 9 | 2 | **1** | -1.0 (image 1) | 4.5 | 24.0 (image 1) | 27.0 |"


def test_the_images_are_the_tables_and_draws_are_few(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi")
    A = RayTransform(GEOMETRIES["sparse30"])
    told: list[tuple[int, float]] = []
    found = measure_gains("sparse30-mfvi", A, 7, Effort(draws=100), lambda done, least: told.append((done, least)))
    scans = table_scans(A, 8)
    assert scans.images is not None
    assert found["fbp"] == pytest.approx(psnr(fbp(A, scans.sinograms), scans.images).tolist()[:7], abs=1e-4)
    differences = [after - before for after, before in zip(found["psnr"], found["fbp"], strict=True)]
    assert found["draws"] == 10 and [done for done, _ in told] == [5, 2] and told[-1][1] == pytest.approx(min(differences))


def test_what_was_measured_is_kept_until_the_weights_change(shelf: Shelf) -> None:
    shelf.add("sparse30-mfvi", "limited120-dgd")
    assert bdgd("--only", "limited120-dgd").exit_code == 0
    one = kept()
    assert list(one) == ["limited120-dgd"] and one["limited120-dgd"]["draws"] == 1 and len(one["limited120-dgd"]["psnr"]) == 6
    assert bdgd().exit_code == 0
    both = kept()
    assert set(both) == {"limited120-dgd", "sparse30-mfvi"} and both["limited120-dgd"] == one["limited120-dgd"]
    text = Path("results/quick/gains.md").read_text()
    assert "QUICK" in text and "| limited120-dgd | 1 | 6 |" in text and "| sparse30-mfvi | 2 | 6 |" in text and "Measured on" in text
    Path("results/quick/gains.json").write_text(json.dumps({"models": {"limited120-dgd": {**one["limited120-dgd"], "weights": "others"}}}))
    assert bdgd().exit_code == 0
    assert kept()["limited120-dgd"]["weights"] == one["limited120-dgd"]["weights"]


def test_a_file_that_cannot_be_read_is_said(shelf: Shelf) -> None:
    Path("results/quick").mkdir(parents=True)
    Path("results/quick/gains.json").write_text('{"models": {"sparse30-mfvi": {}}}')
    assert "gains.json cannot be read as the gains of models" in assert_one_sentence(bdgd("--quiet"))


def test_a_page_is_filled_where_it_has_a_place_and_a_picture_needs_none(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gains, "IMAGES", 1)
    shelf.add("limited120-dgd")
    Path("page.md").write_text("before\n<!-- gains -->\n<!-- /gains -->\nafter\n")
    run = partial(CliRunner().invoke, cli.app)
    assert run(["reproduce", "gains", "--page", "page.md", "--device", "cpu"]).exit_code == 0
    assert "| limited120-dgd | 1 | 1 |" in Path("page.md").read_text()
    assert "fig2 is a picture with a file of its own; leave it out" in assert_one_sentence(run(["reproduce", "fig2", "--page", "page.md"]))
