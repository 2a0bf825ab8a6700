"""`bdgd bench`: how fast projecting, training and sampling are here, beside what others offer, in one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from bdgd.apps.bench_quality import measure_quality
from bdgd.apps.console import Output
from bdgd.apps.options import Device, choose_device, make_folder, require_writable
from bdgd.apps.provenance import file_name, hardware, provenance, version_of
from bdgd.checks import InputError
from bdgd.evaluation import save_figure, speed
from bdgd.evaluation.pages import insert, require_place, short_commit
from bdgd.storage import read_kept, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is measured beside, or with; their versions go into the file.
PACKAGES = ("triton", "astra-toolbox", "deepinv", "scikit-image", "numpy", "scipy")

Results = dict[str, Any]


class Part(StrEnum):
    """What can be measured apart; its numbers join those of the other parts in the same file."""

    projector = "projector"
    training = "training"
    sampling = "sampling"
    growth = "growth"
    quality = "quality"


def bench(
    out: Output,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the numbers and the plot.")] = Path("results/bench"),
    only: Annotated[list[Part] | None, typer.Option("--only", help="Measure this part alone and keep the numbers of the others.")] = None,
    quality: Annotated[
        bool, typer.Option("--quality", help="Also the time to the paper's quality: two whole trainings, on a GPU.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="A Markdown page with <!-- speed-cpu --> ... <!-- /speed-cpu -->, or gpu, to fill.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Measure the inner loops beside ASTRA, deepinv, scikit-image and a plain training loop, and how they grow.

    Writes FOLDER/DEVICE.json and a plot, and says which of the project's own requirements are met on this machine.
    """
    where = choose_device(device)
    parts = _chosen(only, quality, where)
    if page is not None:
        require_place(page, _place(gpu=where.type == "cuda"))
        require_writable(page)
    path = make_folder(output) / f"{file_name(hardware(where))}.json"
    results = _earlier(path, otherwise={"hardware": hardware(where), "gpu": where.type == "cuda", "parts": {}})
    with out.progress("measuring", len(parts)) as step:
        for part in parts:
            results["parts"][part.value] = _measured(_JOBS[part], where)
            step(1, part.value)
    results["bars"] = [asdict(bar) for bar in speed.bars(results["parts"], results["gpu"])]
    write_json(path, results)
    figure = speed.speed_figure(results["parts"], results["hardware"])
    if figure is not None:
        save_figure(figure, path.with_suffix(".png"))
    for table in speed.tables(results["parts"], results["gpu"]):
        out.table(table.columns, table.rows, table.title, right=table.columns[table.left :])
        out.say("")
    for sentence in _missing(results):
        out.say(sentence)
    out.say(f"wrote {path}" + (f" and {path.with_suffix('.png').name}" if figure is not None else ""))
    if page is not None:
        _fill(page, results, figure)
        out.say(f"wrote {page}")


def _chosen(only: list[Part] | None, quality: bool, where: torch.device) -> list[Part]:
    """The parts to measure: those asked for, or all but the quality."""
    parts: list[Part] = list(dict.fromkeys(only)) if only else [part for part in Part if part is not Part.quality]
    if quality and Part.quality not in parts:
        parts.append(Part.quality)
    if Part.quality in parts and where.type != "cuda":
        raise InputError("the time to the paper's quality is measured on a GPU; on a CPU it takes hours: leave --quality out")
    return parts


def _measured(measure: Callable[[torch.device], Results], where: torch.device) -> Results:
    """The numbers of a part, with where they come from."""
    start = time.perf_counter()
    found = measure(where)
    seconds = round(time.perf_counter() - start, 1)
    versions = {package: version_of(package) for package in PACKAGES}
    busy = {"threads": torch.get_num_threads(), "load": _load()}
    return {**found, "provenance": {**provenance(0, where), "seconds": seconds, "versions": versions, **busy}}


def _load() -> float | None:
    """How many processes want a core, on average over the last minute: times mean little where that is more than there are."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def _projector(where: torch.device) -> Results:
    return {"rows": [row for size, views in speed.CASES for row in speed.projector_rows(where, size, views)]}


def _training(where: torch.device) -> Results:
    """On a CPU a small set, and the loss curves of smaller images."""
    on_gpu = where.type == "cuda"
    data = speed.training_data(where, 4096 if on_gpu else 32)
    rows = list(speed.training_rows(where, data, (128, 32, 16) if on_gpu else (16,)))
    curve = speed.loss_curves(data, 128) if on_gpu else speed.loss_curves(speed.training_data(where, 64, 32), 16)
    return {"rows": rows, "curve": curve}


def _sampling(where: torch.device) -> Results:
    return {"row": speed.sampling_row(where, 101 if where.type == "cuda" else 1)}


def _growth(where: torch.device) -> Results:
    return {"rows": list(speed.growth_rows(where, speed.GPU if where.type == "cuda" else speed.CPU))}


_JOBS: dict[Part, Callable[[torch.device], Results]] = {
    Part.projector: _projector,
    Part.training: _training,
    Part.sampling: _sampling,
    Part.growth: _growth,
    Part.quality: measure_quality,
}


def _earlier(path: Path, otherwise: Results) -> Results:
    """What was measured on this device before."""

    def results(kept: Any) -> Results:
        return {"hardware": kept["hardware"], "gpu": kept["gpu"], "parts": dict(kept["parts"])}

    return read_kept(path, "an earlier measurement", results, otherwise)


def _missing(results: Results) -> list[str]:
    """A sentence for every peer that could not be measured, with its reason."""
    rows = results["parts"].get("projector", {}).get("rows", [])
    return list(dict.fromkeys(f"{row['by']} is {row['note']}" for row in rows if row["forward"] is None))


def _fill(page: Path, results: Results, figure: Figure | None) -> None:
    """Put the numbers of this kind of device into the page, and the plot beside its pictures."""
    place = _place(gpu=results["gpu"])
    made = speed.tables(results["parts"], results["gpu"])
    made_by = [part["provenance"] for part in results["parts"].values()]
    origins = {f"{short_commit(str(origin['commit']))}, {origin['date'][:10]}" for origin in made_by}
    seconds = sum(origin["seconds"] for origin in made_by)
    threads, loads = max(origin["threads"] for origin in made_by), [origin["load"] for origin in made_by if origin["load"] is not None]
    work = f", {threads} threads, load up to {max(loads):g}" if loads and not results["gpu"] else ""
    lines = [
        f"*Measured on {results['hardware']} in {seconds:.0f} s{work} (commit {'; '.join(sorted(origins))}).*",
        speed.markdown(made[-1:]),
        *([] if figure is None else [_picture(page, place, figure)]),
        speed.markdown(made[:-1]),
        *(f"- {sentence}" for sentence in _missing(results)),
    ]
    insert(page, place, "\n\n".join(lines))


def _picture(page: Path, place: str, figure: Figure) -> str:
    """Write the plot beside the page's pictures; the Markdown that shows it."""
    picture = make_folder(page.parent / "images") / f"{place}.png"
    save_figure(figure, picture)
    return f"![Times faster than each peer; growth of time; growth of memory]({picture.relative_to(page.parent).as_posix()})"


def _place(*, gpu: bool) -> str:
    """The place of a page, and the picture, for one kind of device."""
    return f"speed-{'gpu' if gpu else 'cpu'}"
