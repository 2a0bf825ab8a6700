"""`bdgd reproduce`: the paper's tables from our code, with the paper's numbers beside ours."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bdgd.apps.console import Output
from bdgd.apps.evaluate import result_of
from bdgd.apps.options import Device, choose_device, make_folder
from bdgd.apps.provenance import provenance
from bdgd.evaluation import METHODS, SETTINGS, find_method, score, table_scans
from bdgd.evaluation.tables import insert, markdown, read_cell, rows, write_cell
from bdgd.models import pretrained
from bdgd.operators import RayTransform
from bdgd.storage import replacing


class What(StrEnum):
    table1 = "table1"
    table2 = "table2"
    all = "all"


_SETTINGS = {What.table1: "sparse30", What.table2: "limited120"}


def reproduce(
    out: Output,
    what: Annotated[What, typer.Argument(help="Which table: sparse view, limited view, or both.")] = What.all,
    results: Annotated[Path, typer.Option("--results", help="Where the cells of the tables are kept.")] = Path("results"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of the test noise and of the draws.")] = 1,
    page: Annotated[Path | None, typer.Option("--page", help="A Markdown page with <!-- table1 --> ... <!-- /table1 --> to fill.")] = None,
    device: Device = "auto",
) -> None:
    """Make the tables of the paper: FBP, TV and the shipped models on 100 ellipse images and Shepp-Logan.

    Cells that are there already are kept, so an interrupted run goes on where it was. Delete a cell's file to make it again.
    """
    make_folder(results)
    where = choose_device(device)
    for table, setting in _SETTINGS.items():
        if what not in (table, What.all):
            continue
        A = RayTransform(SETTINGS[setting], where)
        for row in rows(setting):
            if row.method not in METHODS and row.method not in pretrained():
                out.note(f"{setting}, {row.name}: no trained model {row.method} is shipped yet; its row stays empty")
                continue
            _fill(out, results, A, setting, row.method, seeds)
        text = markdown(results, setting)
        with replacing(results / f"{table}.md") as temporary:
            temporary.write_text(text + "\n")
        if page is not None:
            insert(page, table, text)
        out.say(text)


def _fill(out: Output, folder: Path, A: RayTransform, setting: str, method: str, seeds: int) -> None:
    """Add the seeds that a cell lacks, one at a time."""
    cell: list[dict[str, Any]] = read_cell(folder, setting, method)
    for seed in range(len(cell), seeds):
        start = time.perf_counter()
        prepared = find_method(method)(A, seed)
        preparing = time.perf_counter() - start
        scans = table_scans(A, seed=seed)
        with out.progress(f"{setting} {method}", len(scans)) as step:
            scores = score(prepared, scans, lambda done, mean, step=step: step(done, f"{mean:.2f} dB"))  # type: ignore[misc]
        cell.append({**result_of(scores, prepared.recipe, preparing), "provenance": provenance(seed, A.device)})
        write_cell(folder, setting, method, cell)
