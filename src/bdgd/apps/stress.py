"""`bdgd stress`: what a model makes of scans it was not made for, and whether its error bars or its alarm say so."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bdgd.apps.console import Output, Step
from bdgd.apps.options import Device, Seed, choose_device, require_writable
from bdgd.apps.provenance import measured_on, provenance
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Noise, ellipse_images, noise_from_dict
from bdgd.data.slices import Slices, read_slices
from bdgd.evaluation import save_figure
from bdgd.evaluation.conditions import KINDS, Condition, geometry_of, standard_conditions
from bdgd.evaluation.degradation import Degradation, degradation_curves
from bdgd.evaluation.degradation_figures import COLUMNS, degradation_figure, degradation_markdown, degradation_rows
from bdgd.evaluation.pages import insert, require_place
from bdgd.models import Reconstructor, load
from bdgd.storage import write_json, write_text

_CURVES = [kind for kind in KINDS if kind != "anatomy"]


def stress(
    out: Output,
    model: Annotated[str, typer.Argument(help="A shipped model by name, or a .safetensors file; a calibrated one has an alarm.")],
    images: Annotated[int, typer.Option("--images", min=1, help="Ellipse images, the first of the test set.")] = 100,
    draws: Annotated[
        int | None, typer.Option("--draws", min=1, help="Monte-Carlo draws: the calibration's unless given, else 100.")
    ] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="Ordinary noise: the calibration's unless given, else 0.01.")] = None,
    level: Annotated[float, typer.Option("--level", help="Of the intervals.")] = 0.9,
    only: Annotated[list[str] | None, typer.Option("--only", help=f"Only this curve ({', '.join(_CURVES)}); may be repeated.")] = None,
    slices: Annotated[
        Path | None, typer.Option("--slices", help="A folder of real anatomy: DICOM files, or npz in Hounsfield units.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A JSON file for all numbers.")] = None,
    table: Annotated[Path | None, typer.Option("--table", help="A Markdown file for the table.")] = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="A picture of the curves.")] = None,
    page: Annotated[Path | None, typer.Option("--page", help="A Markdown page with <!-- stress --> ... <!-- /stress --> to fill.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Score a model as scans get worse: more noise, other views, lost views, a shifted axis, real anatomy.

    Error bars should widen, or the alarm should ring. Example: bdgd stress calibrated.safetensors -o stress.json --figure stress.png
    """
    where = choose_device(device)
    for path in filter(None, (output, table, figure, page)):
        require_writable(path)
    if page is not None:
        require_place(page, "stress")
    network = load(model, device=where)
    side = _side(network)
    ordinary, conditions = _chosen(network, noise, only)
    anatomy = None if slices is None else read_slices(slices, side)
    phantoms = network.value_scale * ellipse_images("test", images, side, seed, device=where)
    patients = None if anatomy is None else network.value_scale * anatomy.images.to(where)
    if not network.has_alarm:
        out.note("this model is not calibrated: its intervals promise nothing and it has no alarm; see bdgd calibrate")
    total = images * (1 + len(conditions)) + (0 if patients is None else len(patients))
    with out.progress("scans", total) as step:
        tell = partial(_tell, step)
        found = degradation_curves(
            network, phantoms, slices=patients, conditions=conditions, noise=ordinary, draws=draws, level=level, seed=seed, report=tell
        )
    name, origin = Path(model).name, provenance(seed, where)
    out.table(COLUMNS, degradation_rows(found), f"{name}: intervals of {100 * level:g} %, {found.draws} draws", right=COLUMNS[2:-1])
    _write(out, found, name, anatomy, origin, output, table, figure)
    if page is not None:
        insert(page, "stress", f"{degradation_markdown(found).rstrip()}\n\n*{name}. {measured_on(origin)}*")
        out.say(f"wrote {page}")


def _tell(step: Step, condition: Condition, done: int) -> None:
    step(done, f"{condition.kind} {condition.value:g}".removesuffix(" 0"))


def _side(network: Reconstructor) -> int:
    height, width = geometry_of(network).image_size
    if height != width:
        raise InputError(f"ellipses are drawn for square images, and this model's are {height} x {width}; choose another model")
    return height


def _chosen(network: Reconstructor, relative: float | None, only: Sequence[str] | None) -> tuple[Noise, list[Condition]]:
    """What noise is ordinary, and the conditions of the wanted curves."""
    if unknown := [kind for kind in only or () if kind not in _CURVES]:
        raise InputError(f"--only {unknown[0]} is no curve; known are {', '.join(_CURVES)}")
    known = network.calibration.noise if network.calibration is not None else None
    noise = GaussianNoise(relative) if relative is not None else noise_from_dict(known) if known is not None else GaussianNoise(0.01)
    return noise, [condition for condition in standard_conditions(network, noise) if not only or condition.kind in only]


def _write(
    out: Output,
    found: Degradation,
    name: str,
    anatomy: Slices | None,
    origin: dict[str, Any],
    output: Path | None,
    table: Path | None,
    figure: Path | None,
) -> None:
    """Those of the three files that were asked for."""
    if output is not None:
        about = {} if anatomy is None else {"patients": sorted(set(anatomy.patients)), "attenuation_of_1": _range(anatomy.scale)}
        write_json(output, {"model": name, **found.to_dict(), **({"anatomy": about} if about else {}), "provenance": origin})
    if table is not None:
        write_text(table, degradation_markdown(found, name))
    if figure is not None:
        save_figure(degradation_figure(found, name), figure)
    for path in filter(None, (output, table, figure)):
        out.say(f"wrote {path}")


def _range(values: torch.Tensor) -> list[float]:
    """The least and the largest."""
    return [float(values.min()), float(values.max())]
