"""`bdgd reproduce honesty`: what each departure from the paper's formulas does, measured on short trainings, kept as JSON."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.gains import read_gains
from bdgd.apps.options import make_folder
from bdgd.apps.presets import Preset
from bdgd.apps.reproduction import Reproduction
from bdgd.apps.short_trainings import identity_of, kept, measured_before, origin, preset_of, tell_cost, trained, write_results
from bdgd.checks import Diverged
from bdgd.evaluation.epistemic import POINT, SETTING, Training, posterior_function
from bdgd.evaluation.honesty import CASES, Case
from bdgd.evaluation.honesty_scores import measure_case
from bdgd.evaluation.honesty_table import markdown
from bdgd.evaluation.methods import training_of
from bdgd.evaluation.selection import METHODS, selection_scores
from bdgd.evaluation.tables import read_cell
from bdgd.models import DeepGradientDescent
from bdgd.operators import RayTransform
from bdgd.storage import write_json


def make_honesty(job: Reproduction, page: Path | None = None, images: int | None = None) -> None:
    """Case by case: train what is missing, measure what is not there, write honesty.json and honesty.md; fill the page at the end.

    The trainings of `bdgd reproduce epistemic` in the same RUNS are used; what choosing on the test set buys, and how far trainings
    differ by luck, comes from the table and the gains that are kept in the same folder. images: training images instead of the preset's.
    """
    data = preset_of(POINT, images)
    needed = {case: preset_of(case.training, images) for case in CASES}
    before = {case: measured_before(job, _path(job, case.key), case, preset, [preset]) for case, preset in needed.items()}
    tell_cost(job, "honesty", {preset.name: preset for case, preset in needed.items() if before[case] is None}.values())
    selection = _selection(job)
    models: dict[Training, DeepGradientDescent | None] = {}
    cases: dict[str, dict[str, Any]] = {}
    text = ""
    for case, preset in needed.items():
        if before[case] is None and case.training not in models:
            models[case.training] = _trained(job, preset, data)
        cases[case.key] = before[case] or _measured(job, case, models[case.training], preset)
        text = markdown(cases, selection, job.effort.note())
        write_results(job, "honesty", cases, {"cases": cases, "selection": selection}, text)
    job.publish("honesty", text, page)


def _path(job: Reproduction, key: str) -> Path:
    return make_folder(job.folder / "honesty") / f"{key}.json"


def _trained(job: Reproduction, preset: Preset, data: Preset) -> DeepGradientDescent | None:
    """The model of a preset; None where its training diverged, which is a result too."""
    try:
        return trained(job, preset, data)
    except Diverged as error:
        job.out.note(f"honesty: {preset.name}: {error}")
        return None


def _measured(job: Reproduction, case: Case, model: DeepGradientDescent | None, preset: Preset) -> dict[str, Any]:
    """The case's file, made again where its model, its recipe or the effort are not what it was made with."""
    path = _path(job, case.key)
    identity = identity_of(job, case, [model] if model else [], preset)
    if (found := kept(path, identity)) is not None:
        job.out.note(f"honesty: {path} is there already")
        return found
    start, scores = time.perf_counter(), None
    if model is not None:
        with job.out.waiting(f"honesty: {case.name}"):
            A = RayTransform(preset.geometry, job.device)
            posterior_of = posterior_function([model], case.draw, job.effort.draws, precision=case.precision)
            scores = measure_case(posterior_of, A, job.effort)
        job.out.note(f"honesty: {case.name}: {scores.psnr:.2f} dB, epistemic std {scores.epistemic_std:.2g}, error {scores.error:.2g}")
    seconds = {"training": model.provenance["seconds"] if model else None, "measuring": round(time.perf_counter() - start, 1)}
    trained_by = training_of(model.provenance) if model else None  # perhaps by other code than that which measures it
    result = {**identity, "scores": asdict(scores) if scores else None, "trained": trained_by, "seconds": seconds, **origin(job)}
    write_json(path, result)
    return result


def _selection(job: Reproduction) -> dict[str, Any] | None:
    """What choosing on test images buys, from the results that are kept; None where there are too few. origins: where those come from."""
    cells = {method: read_cell(job.folder, SETTING, method) for method in METHODS}
    gains = {model: cell for model, cell in read_gains(job.folder).items() if model in METHODS}
    scores = selection_scores(cells, gains)
    if not scores["families"]:
        return None
    sources = [*(entry for cell in cells.values() for entry in cell), *gains.values()]
    return {**scores, "origins": [{"provenance": source["provenance"]} for source in sources]}
