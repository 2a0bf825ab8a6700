"""The paper's tables: cells on disk, the page they are rendered into, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bdgd.checks import InputError
from bdgd.evaluation.tables import PAPER, insert, markdown, read_cell, rows, write_cell


def result(psnr: float, commit: str = "0123456789abcdef") -> dict[str, Any]:
    scores = {f"{kind}_{metric}": psnr for kind in ("ellipses", "shepp_logan") for metric in ("psnr", "ssim")}
    return {**scores, "provenance": {"hardware": "a machine", "commit": commit}}


def test_cells_come_back(tmp_path: Path) -> None:
    assert read_cell(tmp_path, "sparse30", "fbp") == []
    write_cell(tmp_path, "sparse30", "fbp", [result(20.0), result(22.0)])
    assert [cell["ellipses_psnr"] for cell in read_cell(tmp_path, "sparse30", "fbp")] == [20.0, 22.0]


@pytest.mark.parametrize("setting", PAPER)
def test_a_table_has_every_row_and_says_what_is_missing(tmp_path: Path, setting: str) -> None:
    write_cell(tmp_path, setting, "fbp", [result(20.0), result(22.0)])
    lines = markdown(tmp_path, setting).splitlines()
    body = [line for line in lines if line.startswith("| ") and "---" not in line][1:]
    assert [line.split("|")[1].strip() for line in body] == [row.name for row in rows(setting)] == list(PAPER[setting])
    assert "21.00 ± 1.41" in body[0] and f"{PAPER[setting]['FBP'][0]:.2f}" in body[0]
    assert all("not trained yet" in line for line in body[2:])
    assert lines[-1] == "*Measured on a machine, commit 0123456789.*"


def test_an_unclean_tree_is_said(tmp_path: Path) -> None:
    write_cell(tmp_path, "sparse30", "fbp", [result(20.0, "0123456789abcdef-modified")])
    assert "commit 0123456789-modified" in markdown(tmp_path, "sparse30")


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
