"""`bdgd stress`: what a model makes of scans it was not made for, and whether its error bars or its alarm say so."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from bdgd.apps.console import Output, Step
from bdgd.apps.options import Device, Seed, choose_device, require_writable, wrong_draws
from bdgd.apps.presets import Preset, trained_by
from bdgd.apps.provenance import measured_on, provenance
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Noise, ellipse_images, noise_from_dict, phantom_images
from bdgd.data.slices import Slices, read_slices
from bdgd.evaluation import save_figure
from bdgd.evaluation.conditions import KINDS, Condition, geometry_of, standard_conditions
from bdgd.evaluation.degradation import Degradation, degradation_curves
from bdgd.evaluation.degradation_figures import COLUMNS, degradation_figure, degradation_markdown, degradation_rows
from bdgd.evaluation.figures import require_ending
from bdgd.evaluation.pages import insert, require_place
from bdgd.models import Reconstructor, load
from bdgd.storage import write_json, write_text

_CURVES = [kind for kind in KINDS if kind != "anatomy"]


def stress(
    out: Output,
    model: Annotated[str, typer.Argument(help="A shipped model by name, or a .safetensors file; a calibrated one has an alarm.")],
    images: Annotated[int, typer.Option("--images", min=1, help="Test images, of the kind that it was trained on.")] = 100,
    draws: Annotated[
        int | None, typer.Option("--draws", min=1, help="Monte-Carlo draws: the calibration's unless given, else 100.")
    ] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="Ordinary noise: that of calibration or training unless given.")] = None,
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

    Ordinary scans are as those that the model was trained on, with the errors of their scanner and the correction that it carries.
    Error bars should widen, or the alarm should ring. Example: bdgd stress calibrated.safetensors -o stress.json --figure stress.png
    """
    where = choose_device(device)
    for path in filter(None, (output, table, figure, page)):
        require_writable(path)
    if page is not None:
        require_place(page, "stress")
    if figure is not None:
        require_ending(figure)
    network = load(model, device=where)
    if draws is not None and (wrong := wrong_draws(network, draws)):
        raise InputError(f"{wrong}, or leave it out")
    preset = trained_by(network)
    ordinary, conditions = _chosen(network, preset, noise, only)
    anatomy = None if slices is None else read_slices(slices, _side(network))
    phantoms = network.value_scale * _phantoms(network, preset, images, seed)
    patients = None if anatomy is None else network.value_scale * anatomy.images.to(where)
    if not network.has_alarm:
        out.note("this model is not calibrated: its intervals promise nothing and it has no alarm; see bdgd calibrate")
    total = images * (1 + len(conditions)) + (0 if patients is None else len(patients))
    with out.progress("scans", total) as step:
        tell = partial(_tell, step)
        scanner = None if preset is None else preset.mismatch
        options: dict[str, Any] = {"conditions": conditions, "noise": ordinary, "mismatch": scanner, "draws": draws, "level": level}
        found = degradation_curves(network, phantoms, slices=patients, **options, seed=seed, report=tell)
    name, origin = Path(model).name, provenance(seed, where)
    out.table(COLUMNS, degradation_rows(found), f"{name}: intervals of {100 * level:g} %, {found.draws} draws", right=COLUMNS[2:-1])
    _write(out, found, name, anatomy, origin, output, table, figure)
    if page is not None:
        insert(page, "stress", f"{degradation_markdown(found).rstrip()}\n\n*{name}. {measured_on(origin)}*")
        out.say(f"wrote {page}")


def _tell(step: Step, condition: Condition, done: int) -> None:
    step(done, f"{condition.kind} {condition.value:g}".removesuffix(" 0"))


def _phantoms(network: Reconstructor, preset: Preset | None, count: int, seed: int) -> Tensor:
    """(count, 1, H, W) in about [0, 1]: test images of the kind that the model was trained on; ellipses where it does not say."""
    if preset is None:
        return ellipse_images("test", count, _side(network), seed, device=network.device)
    return phantom_images(preset.phantoms, "test", count, preset.geometry, seed, network.device, spread=preset.value_spread)


def _side(network: Reconstructor) -> int:
    height, width = geometry_of(network).image_size
    if height != width:
        raise InputError(f"ellipses and slices are square, and this model's images are {height} x {width}; choose another model")
    return height


def _chosen(
    network: Reconstructor, preset: Preset | None, relative: float | None, only: Sequence[str] | None
) -> tuple[Noise, list[Condition]]:
    """What noise is ordinary, and the conditions of the wanted curves."""
    if unknown := [kind for kind in only or () if kind not in _CURVES]:
        raise InputError(f"--only {unknown[0]} is no curve; known are {', '.join(_CURVES)}")
    known = network.calibration.noise if network.calibration is not None else None
    trained = GaussianNoise(0.01) if preset is None else preset.noise
    noise = GaussianNoise(relative) if relative is not None else noise_from_dict(known) if known is not None else trained
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


def _range(values: Tensor) -> list[float]:
    """The least and the largest."""
    return [float(values.min()), float(values.max())]
