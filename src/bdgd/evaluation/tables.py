"""The paper's two tables: one cell per method and setting, kept as JSON, rendered as Markdown with the paper's numbers beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bdgd.evaluation.pages import left_out, machines, origins
from bdgd.storage import read_kept, write_json

#: PSNR on ellipses and on Shepp-Logan, as printed in the paper (Tables I and II).
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "sparse30": {
        "FBP": (25.5264, 18.4667),
        "TV": (35.1587, 37.2162),
        "LPD": (44.5122, 44.0472),
        "DGD": (43.2577, 44.6913),
        "BDGD-MFVI": (44.6642, 47.2946),
        "BDGD-MCDO": (43.2126, 45.1725),
    },
    "limited120": {
        "FBP": (18.5958, 17.1085),
        "TV": (32.9134, 29.2113),
        "LPD": (40.7578, 33.8427),
        "DGD": (42.6994, 42.8905),
        "BDGD-MFVI": (44.0297, 45.5140),
        "BDGD-MCDO": (41.5367, 41.4397),
    },
}
#: The standard deviations printed beside them, over five seeds.
PAPER_SPREAD: dict[str, dict[str, tuple[float, float]]] = {
    "sparse30": {
        "LPD": (0.4911, 0.4187),
        "DGD": (0.4183, 0.6644),
        "BDGD-MFVI": (0.4637, 0.5778),
        "BDGD-MCDO": (0.1285, 0.4461),
    },
    "limited120": {
        "LPD": (0.3050, 1.2380),
        "DGD": (0.4243, 0.5883),
        "BDGD-MFVI": (0.4698, 0.8261),
        "BDGD-MCDO": (0.3884, 0.6299),
    },
}
_KINDS = ("ellipses", "shepp_logan")
TITLES = {"sparse30": "Sparse view: 30 views over the half circle", "limited120": "Limited view: one view per degree over [0°, 120°)"}


@dataclass(frozen=True)
class Row:
    """One row of a table: its name, the method that fills it, and its name in the paper, where it is there."""

    name: str
    method: str
    paper: str | None


def rows(setting: str) -> list[Row]:
    """The rows for that setting; a learned row is filled by the shipped model of that name, once by our recipe and once by the paper's."""
    learned, made = {"LPD": "lpd", "DGD": "dgd", "BDGD-MFVI": "mfvi", "BDGD-MCDO": "mcdo"}, []
    for name in PAPER[setting]:
        made.append(Row(name, f"{setting}-{learned[name]}" if name in learned else name.lower(), name))
        if name in learned and name != "LPD":  # of LPD's training the paper says nothing
            made.append(Row(f"{name}, paper's recipe", f"{setting}-{learned[name]}-paper", name))
    return [*made, Row("our best", f"{setting}-best", None)]


def read_cell(folder: Path, setting: str, method: str) -> list[dict[str, Any]]:
    """The results of a cell, one per seed; empty where it has not been made."""
    return read_kept(_cell(folder, setting, method), "the cell of a table", lambda kept: list(kept["seeds"]), [])


def write_cell(folder: Path, setting: str, method: str, results: Sequence[dict[str, Any]]) -> None:
    """Keep the results of a cell, one entry per seed with its values, recipe and provenance."""
    path = _cell(folder, setting, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"setting": setting, "method": method, "seeds": list(results)})


def trainings(cell: Sequence[dict[str, Any]]) -> int:
    """How many trainings, by their seeds, the results of a cell come from; 0 for a method that is not trained."""
    trained = [result.get("recipe", {}).get("trained") for result in cell]
    return len({made.get("seed") for made in trained if made})


def markdown(folder: Path, setting: str, note: str = "") -> str:
    """The table of a setting from the cells that are there: mean ± standard deviation over seeds, and how many seeds that is.

    A row of the paper says when it is missing; any other is left out, and named below.
    """
    lines = [
        f"**{TITLES[setting]}** (PSNR in dB ± standard deviation over seeds; SSIM in brackets)",
        *(("", f"**{note}**") if note else ()),
        "",
        "| | ellipses | paper | Shepp-Logan | paper | seeds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    scored, missing, mixed = list[dict[str, Any]](), list[str](), list[str]()
    for row in rows(setting):
        cell = [entry for entry in read_cell(folder, setting, row.method) if entry.get("note", "") == note]  # of the same effort
        if not cell and row.name != row.paper:
            missing.append(row.method)
            continue
        ours, theirs = [_value(cell, kind) for kind in _KINDS], [_papers(setting, row, kind) for kind in _KINDS]
        lines.append(f"| {row.name} | {ours[0]} | {theirs[0]} | {ours[1]} | {theirs[1]} | {_seeds(cell)} |")
        scored += cell
        mixed += [row.name] if len({training["commit"] for training in _known_trainings(cell)}) > 1 else []
    return "\n".join([*lines, "", *left_out(missing), *_trained(scored, mixed), origins(scored)])


def _trained(scored: Sequence[dict[str, Any]], mixed: Sequence[str]) -> list[str]:
    """The line that says by which code the models were trained, and in which rows it differs from seed to seed; none without models."""
    found = machines(_known_trainings(scored))
    differ = f"; the seeds of one row by different commits: {', '.join(mixed)}" if mixed else ""
    return [f"*Trained on {found}{differ}.*"] if found else []


def _known_trainings(cell: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trainings behind the results, as far as their commit is known."""
    trained = [result.get("recipe", {}).get("trained") for result in cell]
    return [made for made in trained if made and made.get("commit")]


def _value(cell: list[dict[str, Any]], kind: str) -> str:
    if not cell:
        return "not measured yet"
    psnr = [result[f"{kind}_psnr"] for result in cell]
    spread = f" ± {stdev(psnr):.2f}" if len(psnr) > 1 else ""
    return f"{fmean(psnr):.2f}{spread} ({fmean([result[f'{kind}_ssim'] for result in cell]):.3f})"


def _papers(setting: str, row: Row, kind: str) -> str:
    """What the paper prints for a row; nothing where it has none."""
    if row.paper is None:
        return ""
    at, spread = _KINDS.index(kind), PAPER_SPREAD[setting].get(row.paper)
    return f"{PAPER[setting][row.paper][at]:.2f}" + (f" ± {spread[at]:.2f}" if spread else "")


def _seeds(cell: list[dict[str, Any]]) -> str:
    """How many seeds, and how many trainings they share where these are fewer."""
    number = trainings(cell)
    return f"{len(cell)} ({number} trained)" if 0 < number < len(cell) else f"{len(cell)}"


def _cell(folder: Path, setting: str, method: str) -> Path:
    return folder / setting / f"{method}.json"
