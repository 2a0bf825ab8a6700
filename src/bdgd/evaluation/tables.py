"""The paper's two tables: one cell per method and setting, kept as JSON, rendered as Markdown with the paper's numbers beside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bdgd.checks import InputError
from bdgd.storage import replacing

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
TITLES = {"sparse30": "Sparse view: 30 views over the half circle", "limited120": "Limited view: one view per degree over [0°, 120°)"}


@dataclass(frozen=True)
class Row:
    """One row of a table: its name in the paper, and the method that fills it."""

    name: str
    method: str


def rows(setting: str) -> list[Row]:
    """The rows of the paper's table for that setting; a learned row is filled by the shipped model of that name."""
    learned = {"LPD": "lpd", "DGD": "dgd", "BDGD-MFVI": "mfvi", "BDGD-MCDO": "mcdo"}
    return [Row(name, f"{setting}-{learned[name]}" if name in learned else name.lower()) for name in PAPER[setting]]


def read_cell(folder: Path, setting: str, method: str) -> list[dict[str, Any]]:
    """The results of a cell, one per seed; empty where it has not been made."""
    path = _cell(folder, setting, method)
    if not path.exists():
        return []
    try:
        results = json.loads(path.read_text())["seeds"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as the cell of a table ({error}); delete it to make it again") from None
    return list(results)


def write_cell(folder: Path, setting: str, method: str, results: Sequence[dict[str, Any]]) -> None:
    """Keep the results of a cell, one entry per seed with its values, recipe and provenance."""
    path = _cell(folder, setting, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"setting": setting, "method": method, "seeds": list(results)}, indent=1) + "\n")


def markdown(folder: Path, setting: str) -> str:
    """The table of a setting from the cells that are there; what is missing says so."""
    lines = [
        f"**{TITLES[setting]}** (PSNR in dB; SSIM in brackets)",
        "",
        "| | ellipses | paper | Shepp-Logan | paper | seeds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    origins = set()
    for row in rows(setting):
        cell, (ellipses, head) = read_cell(folder, setting, row.method), PAPER[setting][row.name]
        ours = [_value(cell, kind) for kind in ("ellipses", "shepp_logan")]
        lines.append(f"| {row.name} | {ours[0]} | {ellipses:.2f} | {ours[1]} | {head:.2f} | {len(cell)} |")
        origins |= {(result["provenance"]["hardware"], _short(str(result["provenance"]["commit"]))) for result in cell}
    measured = "; ".join(f"{hardware}, commit {commit}" for hardware, commit in sorted(origins)) or "nothing yet"
    return "\n".join([*lines, "", f"*Measured on {measured}.*"])


def insert(path: Path, marker: str, text: str) -> None:
    """Put the text between <!-- marker --> and <!-- /marker --> of a page."""
    page = path.read_text()
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if start not in page or end not in page:
        raise InputError(f"{path} has no place for the table; add the lines {start} and {end}")
    before, after = page.split(start)[0], page.split(end, 1)[1]
    with replacing(path) as temporary:
        temporary.write_text(f"{before}{start}\n{text}\n{end}{after}")


def _value(cell: list[dict[str, Any]], kind: str) -> str:
    if not cell:
        return "not trained yet"
    psnr = [result[f"{kind}_psnr"] for result in cell]
    spread = f" ± {stdev(psnr):.2f}" if len(psnr) > 1 else ""
    return f"{fmean(psnr):.2f}{spread} ({fmean([result[f'{kind}_ssim'] for result in cell]):.3f})"


def _short(commit: str) -> str:
    """Ten letters, and whether the tree was that of the commit."""
    return commit[:10] + ("-modified" if commit.endswith("-modified") else "")


def _cell(folder: Path, setting: str, method: str) -> Path:
    return folder / setting / f"{method}.json"
