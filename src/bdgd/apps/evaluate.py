"""`bdgd evaluate`: methods scored on the paper's test set, as a table and as a file with every image's values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bdgd.apps.console import Output
from bdgd.apps.known_truth import evaluate_file
from bdgd.apps.options import Device, Seed, choose_device, require_writable, wrong_draws
from bdgd.apps.provenance import provenance
from bdgd.apps.uncertainty import uncertainty_of, uncertainty_table, write_figure
from bdgd.checks import InputError
from bdgd.data import Scans
from bdgd.evaluation import (
    FULL,
    METHODS,
    SETTINGS,
    Method,
    Scores,
    UncertaintyScores,
    find_method,
    remembering,
    require_setting,
    score,
    setting_of,
    table_scans,
)
from bdgd.evaluation.figures import require_ending
from bdgd.models import load
from bdgd.operators import RayTransform
from bdgd.storage import write_json


class Setting(StrEnum):
    sparse30 = "sparse30"
    limited120 = "limited120"
    limited60 = "limited60"
    small = "small"


_KNOWN = f"{', '.join(METHODS)}, a shipped model by name, or the file of a model; without any, {' and '.join(METHODS)}."

Names = Annotated[list[str] | None, typer.Argument(metavar="METHOD", help=_KNOWN)]
SettingName = Annotated[
    Setting | None,
    typer.Option("--setting", help="30 views, one view per degree over 120 or 60, or that of the preset small; unless given, the model's."),
]
Images = Annotated[
    int | None,
    typer.Option("--images", help="Images of the fixed test set, 101 unless given: the last is Shepp-Logan, the others are ellipses."),
]
ScanFile = Annotated[
    Path | None,
    typer.Option("--scans", metavar="FILE", help="In place of the test set: a scan file with its truth, as bdgd simulate writes it."),
]
Draws = Annotated[int, typer.Option("--draws", min=1, help="Monte-Carlo draws of a trained model.")]
WithUncertainty = Annotated[bool, typer.Option("--uncertainty", help="Score the error bars too, which takes about twice as long.")]
Figure = Annotated[Path | None, typer.Option("--figure", help="With --uncertainty: a picture of reliability and sparsification.")]
Destination = Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file for the values of every image.")]


def evaluate(
    out: Output,
    methods: Names = None,
    setting: SettingName = None,
    images: Images = None,
    scans: ScanFile = None,
    draws: Draws = FULL.draws,
    uncertainty: WithUncertainty = False,
    figure: Figure = None,
    output: Destination = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Score methods on the paper's test set: 100 ellipse images and Shepp-Logan, 128 x 128, 1 % noise (small: 64 x 64, 10 %).

    What a method has to choose, it chooses on validation images. Example: bdgd evaluate fbp tv --setting limited120 -o limited.json
    With --scans the scans of a file are scored instead. Example: bdgd evaluate fbp htc-arc90-mfvi --scans rehearsal.h5
    """
    wanted = {name: find_method(name) for name in methods or METHODS}
    where = choose_device(device)
    _require_drawable(figure, uncertainty, wanted)
    for path in filter(None, (output, figure)):
        require_writable(path)
    for name in (name for name in wanted if name not in METHODS and (uncertainty or scans is not None)):
        if wrong := wrong_draws(load(name), draws):
            out.note(f"{name}: {wrong}")
    if scans is not None:
        _require_alone(setting, images, uncertainty)
        evaluate_file(out, scans, list(wanted), draws=draws, seed=seed, device=where, output=output)
        return
    setting, images = setting or Setting(setting_of(wanted)), 101 if images is None else images
    require_setting(wanted, setting)
    A = RayTransform(SETTINGS[setting], where)
    test = table_scans(A, images, seed)
    ready = {name: partial(prepare, A, seed, replace(FULL, draws=draws)) for name, prepare in wanted.items()}
    results, rows, honesty = _score_all(out, ready, test, uncertainty)
    columns = ("method", "PSNR / dB", "SSIM", "PSNR / dB, SL", "SSIM, SL", "seconds", "recipe")
    out.table(columns, rows, f"{setting}, seed {seed}: mean of {images - 1} ellipse images, and Shepp-Logan (SL)", right=columns[1:6])
    if honesty:
        uncertainty_table(out, honesty)
    if output is not None:
        described = {"setting": str(setting), "images": images, "noise": test.noise.to_dict() if test.noise else None}
        write_json(output, {**described, "provenance": provenance(seed, where), "methods": results})
        out.say(f"wrote {output}")
    if figure is not None:
        write_figure(out, figure, honesty)


def _require_drawable(figure: Path | None, uncertainty: bool, methods: Iterable[str]) -> None:
    """Raise where --figure would have nothing to show: better now than after the work."""
    if figure is None:
        return
    require_ending(figure)
    if not uncertainty:
        raise InputError("--figure shows how honest the error bars are; add --uncertainty to have them scored")
    if set(methods) <= set(METHODS):
        raise InputError(f"cannot draw {figure}: none of the methods has error bars; add a trained model such as sparse30-mfvi")


def _require_alone(setting: Setting | None, images: int | None, uncertainty: bool) -> None:
    """Raise where an option of the test set stands beside --scans."""
    for name, given in (("--setting", setting is not None), ("--images", images is not None), ("--uncertainty", uncertainty)):
        if given:
            raise InputError(f"{name} belongs to the test set, and --scans takes its place; leave one of them out")


def _score_all(
    out: Output, methods: Mapping[str, Callable[[], Method]], test: Scans, uncertainty: bool
) -> tuple[dict[str, dict[str, Any]], list[list[str]], dict[str, dict[str, UncertaintyScores]]]:
    """Of each method what the file says, its row of the table and, where asked for and it has any, the scores of its error bars."""
    results: dict[str, dict[str, Any]] = {}
    rows: list[list[str]] = []
    honesty: dict[str, dict[str, UncertaintyScores]] = {}
    for name, prepare in methods.items():
        method, scores, preparing = _score(out, name, prepare, test, remember=uncertainty)
        results[name] = result_of(scores, method.recipe, preparing)
        rows.append(_row(name, scores, method.recipe))
        if uncertainty and method.posterior is None:
            out.note(f"{name} has no error bars to score")
        elif uncertainty:
            honesty[name] = uncertainty_of(out, name, method, test)
            results[name]["uncertainty"] = {kind: found.to_dict() for kind, found in honesty[name].items()}
    return results, rows, honesty


def _score(out: Output, name: str, prepare: Callable[[], Method], test: Scans, *, remember: bool) -> tuple[Method, Scores, float]:
    """The method once it is prepared, its scores on the test scans, and the seconds of preparing it.

    remember: keep its posteriors, since the error bars are scored after the images.
    """
    start = time.perf_counter()
    with out.waiting(f"{name}: " + ("choosing its kind and weight on validation images" if name == "tv" else "preparing")):
        method = remembering(prepare()) if remember else prepare()
    preparing = time.perf_counter() - start
    with out.progress(name, len(test)) as step:
        scores = score(method, test, lambda done, mean: step(done, f"{mean:.2f} dB"))
    return method, scores, preparing


def result_of(scores: Scores, recipe: dict[str, Any], preparing: float) -> dict[str, Any]:
    """What the file says about a method; per-image values in the order of the test set, Shepp-Logan last."""
    return {
        "recipe": recipe,
        **scores.summary(),
        "seconds": scores.seconds,
        "seconds_preparing": preparing,
        "psnr": list(scores.psnr),
        "ssim": list(scores.ssim),
    }


def _row(name: str, scores: Scores, recipe: dict[str, Any]) -> list[str]:
    summary = scores.summary()
    told = [f"{key} {value}" for key, value in recipe.items() if not isinstance(value, dict)]
    figures = [
        f"{summary['ellipses_psnr']:.2f}",
        f"{summary['ellipses_ssim']:.4f}",
        f"{summary['shepp_logan_psnr']:.2f}",
        f"{summary['shepp_logan_ssim']:.4f}",
        f"{scores.seconds:.1f}",
    ]
    return [name, *figures, ", ".join(told).replace("_", " ")]
