"""The table of measured scans: one file per condition and method with an entry per scan, rendered as Markdown, what is missing named.

Where a method tried several settings (the weights of TV), an entry has them all, and a scan takes the setting that is best on the scans
of other groups: by MCC inside the disc for both MCC, by PSNR for PSNR and SSIM.

A model's entry says by what it was made: {"weights", "calibration": fingerprints, "draws", "seed"}. Two models may have the same name,
and a row is of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bdgd.evaluation.challenge import ViewCondition, group_of
from bdgd.evaluation.pages import listed, markdown_table, origins
from bdgd.models import pretrained
from bdgd.storage import read_kept, write_json

Results = Mapping[str, Mapping[str, Any]]  # setting -> score -> value
MISSING, UNMEASURED = "not trained yet", "not measured yet"

#: Which score chooses the setting that each score is taken from.
_CHOSEN_BY = {
    **dict.fromkeys(("mcc", "mcc_inside", "coverage", "width", "noise_width"), "mcc_inside"),
    **dict.fromkeys(("psnr", "ssim"), "psnr"),
}


def label(method: str) -> str:
    """The name of a method in files and tables: its own, or the stem of a model's file."""
    return Path(method).name.replace(".safetensors", "")


def read_entries(folder: Path, condition: str, method: str) -> dict[str, dict[str, Any]]:
    """What is there of a condition and a method: {scan: {"results": ..., "provenance": ...}}, of a model also "made_by"."""

    def entries(kept: Any) -> dict[str, dict[str, Any]]:
        own = {name: {"made_by": entry["made_by"]} if "made_by" in entry else {} for name, entry in kept["scans"].items()}
        return {name: {key: entry[key] for key in ("results", "provenance")} | own[name] for name, entry in kept["scans"].items()}

    return read_kept(_file(folder, condition, method), "scores of measured scans", entries, {})


def write_entries(folder: Path, condition: str, method: str, entries: Mapping[str, dict[str, Any]]) -> None:
    """Keep these scans of a method, all that there are."""
    path = _file(folder, condition, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"condition": condition, "method": label(method), "scans": dict(sorted(entries.items()))})


def is_made_by(entry: Mapping[str, Any], made_by: Mapping[str, Any] | None, *, shipped: bool = False) -> bool:
    """Whether an entry is of that model, draws and seed; made_by: None for a method that is no model.

    An entry from before its weights were kept is of the model that it is named by, if that is shipped.
    """
    if made_by is None:
        return True
    if "made_by" in entry:
        return bool(entry["made_by"] == made_by)
    return shipped and entry["provenance"]["seed"] == made_by["seed"] and _draws([entry]) == {made_by["draws"]}


def is_complete(entry: dict[str, Any] | None, with_reference: bool) -> bool:
    """Whether nothing has to be made again: an entry made without a reference lacks its PSNR."""
    return entry is not None and (not with_reference or all(result["psnr"] is not None for result in entry["results"].values()))


def chosen_setting(entries: Mapping[str, Mapping[str, Any]], scan: str, score: str) -> str | None:
    """The setting with the highest mean of that score over the scans of other groups; None where no such scan is there."""
    settings = list(entries[scan]["results"])
    if len(settings) == 1:
        return settings[0]
    others = [entry["results"] for name, entry in entries.items() if group_of(name) != group_of(scan)]
    means = {}
    for setting in settings:
        values = [results[setting][score] for results in others if results.get(setting, {}).get(score) is not None]
        if values:
            means[setting] = fmean(values)
    return max(means, key=means.__getitem__) if means else None


def scores_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """{scan: {score: value}}, each with the setting that was chosen for it."""
    table = {}
    for scan, entry in entries.items():
        values: dict[str, float | None] = {}
        for score, choice in _CHOSEN_BY.items():
            setting = chosen_setting(entries, scan, choice)
            values[score] = None if setting is None else entry["results"][setting].get(score)
        table[scan] = values
    return table


@dataclass(frozen=True)
class Row:
    """A row of the table and the method that fills it; a learned one says so where its model is missing, or its scores are."""

    name: str
    method: str
    learned: bool = False


def rows(folder: Path, condition: ViewCondition) -> list[Row]:
    """The rows that every table has, and after them whatever else was evaluated."""
    known = [Row("filled disc", "disc"), Row("FBP", "fbp"), Row("TV", "tv")]
    known += [Row("FBP, corrected", "fbp+linear"), Row("TV, corrected", "tv+linear")]
    for name, kind in (("DGD", "dgd"), ("BDGD", "mfvi")):
        known += [Row(name, f"{condition.model}-{kind}", True), Row(f"{name}, corrected", f"{condition.model}-{kind}+linear")]
        known += [Row(f"{name} and rest, corrected", f"{condition.model}-{kind}+rest+linear")]
    there = sorted(path.name.removesuffix(".json") for path in (folder / condition.name).glob("*.json"))
    return known + [Row(name, name) for name in there if name not in {row.method for row in known}]


def measured_markdown(folder: Path, condition: ViewCondition) -> str:
    """The table of a condition: means over the scans that are there, and where they were made."""
    own = ", ".join(condition.own)
    columns = ["", "scans", "MCC", "MCC inside", "lowest"] + ([f"inside: {own}"] if own else [])
    columns += ["PSNR (dB)", "SSIM", "95 % covers", "width", "of noise"]
    cells, shown = list[list[str]](), list[dict[str, Any]]()
    for row in rows(folder, condition):
        entries = read_entries(folder, condition.name, row.method)
        scores = scores_of(entries)
        shown += entries.values()
        if scores:
            cells.append([row.name, f"{len(scores)}", *_cells(scores, condition.own)])
        elif row.learned and not read_entries(folder, condition.name, f"{row.method}+linear"):  # the one row of a model that corrects
            cells.append([row.name, "0", UNMEASURED if row.method in pretrained() else MISSING, *[""] * (len(columns) - 3)])
    title = f"**{condition.title[0].upper()}{condition.title[1:]}**"
    return "\n\n".join([title, markdown_table(columns, cells), *_of_draws(shown), origins(shown)])


def _of_draws(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The line that says of how many draws a model's images are the mean; none where no model was drawn from."""
    several = {number for number in _draws(entries) if number > 1}
    return [f"*The image of a model with random weights is the mean of {listed(several)} draws.*"] if several else []


def _draws(entries: Iterable[Mapping[str, Any]]) -> set[int]:
    """The numbers of draws of the models' entries, whose setting is called "100 draws"."""
    settings = {setting for entry in entries for setting in entry["results"] if setting.endswith(" draws")}
    return {int(setting.removesuffix(" draws")) for setting in settings}


def _cells(scores: Mapping[str, Mapping[str, float | None]], own: Sequence[str]) -> list[str]:
    """The figures of a row; a score that no scan has is left empty, one that few have says how many. The solid disc has no inside."""

    def mean(score: str, digits: int) -> str:
        values = [value for entry in scores.values() if (value := entry[score]) is not None]
        part = "" if len(values) == len(scores) or score == "mcc_inside" else f" ({len(values)})"
        return f"{fmean(values):.{digits}f}{part}" if values else ""

    inside = [value for entry in scores.values() if (value := entry["mcc_inside"]) is not None]
    cells = [mean("mcc", 3), mean("mcc_inside", 3), f"{min(inside):.2f}" if inside else ""]
    if own:
        cells.append(", ".join(_short(scores.get(name, {}).get("mcc_inside")) for name in own))
    return [*cells, mean("psnr", 2), mean("ssim", 3), mean("coverage", 3), mean("width", 4), mean("noise_width", 4)]


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"  # noqa: RUF001 (an en dash for what is not there)


def _file(folder: Path, condition: str, method: str) -> Path:
    return folder / condition / f"{label(method)}.json"
