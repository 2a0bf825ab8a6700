"""The paper's tables: cells on disk, the page they are rendered into, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bdgd.checks import InputError
from bdgd.evaluation.pages import insert, machines
from bdgd.evaluation.tables import PAPER, PAPER_SPREAD, markdown, read_cell, rows, write_cell


def result(psnr: float, commit: str = "0123456789abcdef") -> dict[str, Any]:
    scores = {f"{kind}_{metric}": psnr for kind in ("ellipses", "shepp_logan") for metric in ("psnr", "ssim")}
    return {**scores, "provenance": {"hardware": "a machine", "commit": commit}}


def test_cells_come_back(tmp_path: Path) -> None:
    assert read_cell(tmp_path, "sparse30", "fbp") == []
    write_cell(tmp_path, "sparse30", "fbp", [result(20.0), result(22.0)])
    assert [cell["ellipses_psnr"] for cell in read_cell(tmp_path, "sparse30", "fbp")] == [20.0, 22.0]


def body(text: str) -> dict[str, list[str]]:
    """The cells of every row by its name."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)}


@pytest.mark.parametrize("setting", PAPER)
def test_a_table_has_every_row_of_the_paper_and_says_what_is_missing(tmp_path: Path, setting: str) -> None:
    write_cell(tmp_path, setting, "fbp", [result(20.0), result(22.0)])
    text = markdown(tmp_path, setting)
    table = body(text)
    assert list(table) == list(PAPER[setting])
    ours, (ellipses, head) = "21.00 ± 1.41 (21.000)", PAPER[setting]["FBP"]
    assert table["FBP"] == [ours, f"{ellipses:.2f}", ours, f"{head:.2f}", "2"]
    assert all(table[name][0] == table[name][2] == "not measured yet" and table[name][4] == "0" for name in list(table)[2:])
    assert table["BDGD-MFVI"][1] == f"{PAPER[setting]['BDGD-MFVI'][0]:.2f} ± {PAPER_SPREAD[setting]['BDGD-MFVI'][0]:.2f}"
    left_out = [f"{setting}-{kind}-paper" for kind in ("dgd", "mfvi", "mcdo")] + [f"{setting}-best"]
    assert text.splitlines()[-2:] == [
        f"*Not measured yet, and left out: {', '.join(left_out)}.*",
        "*Measured on a machine (commit 0123456789).*",
    ]


def test_learned_rows_stand_twice_and_our_best_last(tmp_path: Path) -> None:
    for method in ("sparse30-mfvi", "sparse30-mfvi-paper", "sparse30-best"):
        write_cell(tmp_path, "sparse30", method, [result(40.0)])
    table = body(markdown(tmp_path, "sparse30"))
    assert list(table)[4:] == ["BDGD-MFVI", "BDGD-MFVI, paper's recipe", "BDGD-MCDO", "our best"]
    assert table["BDGD-MFVI, paper's recipe"][1] == table["BDGD-MFVI"][1] and table["our best"][1] == table["our best"][3] == ""
    assert [row.method for row in rows("sparse30") if row.paper == "LPD"] == ["sparse30-lpd"]  # the paper gives no recipe for it


def test_seeds_are_counted_and_trainings_where_they_are_fewer(tmp_path: Path) -> None:
    def trained(*seeds: int) -> str:
        write_cell(tmp_path, "sparse30", "sparse30-dgd", [result(40.0) | {"recipe": {"trained": {"seed": seed}}} for seed in seeds])
        return body(markdown(tmp_path, "sparse30"))["DGD"][4]

    assert trained(0) == "1" and trained(0, 1, 2) == "3" and trained(0, 0, 0, 0, 0) == "5 (1 trained)"


def test_a_table_says_which_rows_were_trained_by_several_commits(tmp_path: Path) -> None:
    for kind, commits in (("dgd", "ab"), ("mfvi", "bb"), ("lpd", " ")):
        trained = [{"seed": seed, "hardware": "a GPU", "commit": by.strip()} for seed, by in enumerate(commits)]
        write_cell(tmp_path, "sparse30", f"sparse30-{kind}", [result(40.0) | {"recipe": {"trained": made}} for made in trained])
    lines = markdown(tmp_path, "sparse30").splitlines()
    assert lines[-2] == "*Trained on a GPU (commits a, b); the seeds of one row by different commits: DGD.*"


def test_a_note_stands_in_the_table(tmp_path: Path) -> None:
    assert "**QUICK: few**" in markdown(tmp_path, "sparse30", "QUICK: few") and "**" not in markdown(tmp_path, "sparse30").split("\n", 1)[1]


def test_an_unclean_tree_is_said(tmp_path: Path) -> None:
    write_cell(tmp_path, "sparse30", "fbp", [result(20.0, "0123456789abcdef-modified")])
    assert "commit 0123456789-modified" in markdown(tmp_path, "sparse30")


def test_each_machine_is_named_once_with_its_commits() -> None:
    made = [{"hardware": hardware, "commit": commit * 40} for hardware, commit in (("b", "2"), ("a", "1"), ("b", "1"), ("b", "2"))]
    assert machines(made) == "a (commit 1111111111); b (commits 1111111111, 2222222222)"


def test_a_page_is_filled_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table1 -->\nold\n<!-- /table1 -->\nafter\n")
    for text in ("new", "newer"):
        insert(page, "table1", text)
        assert page.read_text() == f"before\n<!-- table1 -->\n{text}\n<!-- /table1 -->\nafter\n"
    with pytest.raises(InputError, match="no place"):
        insert(page, "table2", "text")


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    write_cell(tmp_path, "sparse30", "fbp", [result(20.0)])
    (tmp_path / "sparse30" / "fbp.json").write_text("{")
    with pytest.raises(InputError, match="delete it"):
        read_cell(tmp_path, "sparse30", "fbp")
