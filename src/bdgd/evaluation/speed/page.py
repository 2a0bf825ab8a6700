"""The benchmark as tables of text: the same for the terminal and, as Markdown, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bdgd.evaluation.pages import markdown_table
from bdgd.evaluation.requirements import BAR_COLUMNS
from bdgd.evaluation.speed.bars import Parts, bars, ratio
from bdgd.evaluation.speed.measuring import Row
from bdgd.evaluation.speed.peers import ASTRA_CPU, ASTRA_GPU

TITLES = {"projector": "Projector", "training": "Training step", "sampling": "Sampling", "growth": "Growth", "quality": "Quality"}


@dataclass(frozen=True)
class Table:
    """Rows of text under their columns; all columns after the first `left` are numbers, aligned at the right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1


def tables(parts: Parts, on_gpu: bool) -> list[Table]:
    """A table for every part that was measured, the projector's cut by case, and the bars at the end."""
    made: list[Table] = []
    if "projector" in parts:
        made += _projector(parts["projector"]["rows"])
    if "training" in parts:
        made.append(_training(parts["training"]))
    if "sampling" in parts:
        made.append(_sampling(parts["sampling"]["row"]))
    if "growth" in parts:
        made.append(_growth(parts["growth"]["rows"]))
    if "quality" in parts:
        made.append(_quality(parts["quality"]))
    return [*made, Table("What is asked for", BAR_COLUMNS, [bar.cells() for bar in bars(parts, on_gpu)], left=len(BAR_COLUMNS))]


def markdown(found: Sequence[Table]) -> str:
    """The tables under their titles."""
    parts: list[str] = []
    for table in found:
        align = "l" * table.left + "r" * (len(table.columns) - table.left)
        parts += [f"**{table.title}**", markdown_table(table.columns, table.rows, align)]
    return "\n\n".join(parts)


def _projector(rows: list[Row]) -> list[Table]:
    """One table for each case; a missing peer has a row that says so, and its reason stands in the JSON file."""
    columns = ("by", "images", "forward/s", "adjoint/s", "x ASTRA CPU", "x ASTRA GPU", "mismatch", "memory")
    made = []
    for size, views in dict.fromkeys((row["size"], row["views"]) for row in rows):
        lines = []
        for row in (row for row in rows if (row["size"], row["views"]) == (size, views)):
            name = row["by"].removeprefix("bdgd, ") + (" *" if row["default"] else "")
            if row["forward"] is None:
                lines.append((name, "", row["note"].partition(":")[0], "", "", "", "", ""))
                continue
            images = "each" if row.get("note") == "per image" else str(row["images"])
            times = [_pair([ratio(rows, row, peer, way) for way in ("forward", "adjoint")], row, peer) for peer in (ASTRA_CPU, ASTRA_GPU)]
            mismatch = f"{row['mismatch']:.0e}"
            lines.append((name, images, _number(row["forward"]), _number(row["adjoint"]), *times, mismatch, _size(row.get("memory"))))
        made.append(Table(f"Projector, {size} x {size} pixels, {views} views (ours: matrix and matrix-free; * default)", columns, lines))
    return made


def _training(part: dict[str, Any]) -> Table:
    plain = {row["batch"]: row["rate"] for row in part["rows"] if row["by"] == "plain eager loop"}
    rows = [
        (row["by"], str(row["batch"]), _number(row["rate"]), f"{row['rate'] / plain[row['batch']]:.1f}", _size(row["memory"]))
        for row in part["rows"]
    ]
    curve = part["curve"]
    title = f"Training step (losses of {curve['steps']} steps differ from the plain loop's by at most {curve['difference']:.2%})"
    return Table(title, ("by", "batch", "images/s", "x plain loop", "memory"), rows)


def _sampling(row: Row) -> Table:
    columns = ("images", "draws", "blocks", "seconds", "draws of images/s", "memory")
    numbers = (str(row["images"]), str(row["draws"]), str(row["blocks"]), f"{row['seconds']:.2f}")
    return Table("Sampling", columns, [(*numbers, _number(row["images"] * row["draws"] / row["seconds"]), _size(row["memory"]))], left=0)


def _growth(rows: list[Row]) -> Table:
    lines = []
    for row in rows:
        timed = row["measured"] == "seconds"
        points = ", ".join(f"{value}: {_time(found) if timed else _size(found)}" for value, found in row["points"])
        lines.append((row["what"], "time" if timed else "memory", row["against"], points, f"{row['slope']:.2f}"))
    return Table("Growth (slope of the logarithms: 1 is linear)", ("of", "", "with", "points", "slope"), lines, left=4)


def _quality(found: dict[str, Any]) -> Table:
    columns = ("compile cache", "seconds", "validation", "ellipses", "Shepp-Logan")
    values = tuple(f"{found[name]:.2f} dB" for name in ("validation_psnr", "ellipses_psnr", "shepp_logan_psnr"))
    return Table(f"Quality ({found['recipe']})", columns, [(state, f"{found[state]:.1f}", *values) for state in ("cold", "warm")])


def _pair(found: Sequence[float | None], row: Row, peer: str) -> str:
    return "" if row["by"] == peer else " / ".join(f"{value:.3g}" for value in found if value is not None)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _size(memory: float | None) -> str:
    return "" if memory is None else f"{memory / 1e6:,.0f} MB"
