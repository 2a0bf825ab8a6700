"""`bdgd reproduce epistemic`: the models of the table trained where they are missing, each row measured once and kept as JSON."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.options import make_folder
from bdgd.apps.presets import Preset
from bdgd.apps.reproduction import Reproduction
from bdgd.apps.short_trainings import identity_of, kept, measured_before, origin, preset_of, tell_cost, trained, write_results
from bdgd.apps.training import make_scans
from bdgd.data import named_generator
from bdgd.evaluation.epistemic import ROWS, Row, Training, measure, posterior_function
from bdgd.evaluation.epistemic_table import chosen, markdown
from bdgd.evaluation.methods import training_of
from bdgd.models import DeepGradientDescent, Reconstructor
from bdgd.operators import RayTransform
from bdgd.storage import write_json
from bdgd.training import laplace


def make_epistemic(job: Reproduction, page: Path | None = None, images: int | None = None) -> None:
    """Row by row: train what is missing, measure what is not there, write epistemic.json and epistemic.md; fill the page at the end.

    images: training images instead of the preset's.
    """
    presets = {training: preset_of(training, images) for row in ROWS for training in row.trainings}
    needed = {row: [presets[training] for training in row.trainings] for row in ROWS}
    before = {row.key: measured_before(job, _path(job, row), row, needed[row][0], needed[row]) for row in ROWS}
    results = {key: found for key, found in before.items() if found is not None}
    missing = [row for row in ROWS if row.key not in results]
    tell_cost(job, "epistemic", {preset.name: preset for row in missing for preset in needed[row]}.values())
    models: dict[Training, DeepGradientDescent] = {}
    for row in missing:
        for training in row.trainings:
            if training not in models:
                models[training] = trained(job, presets[training], data=next(iter(presets.values())))
        results[row.key] = _measured(job, row, models, presets)
        _write(job, results)  # so that what is there can be read however the run ends
    text = _write(job, results)
    job.publish("epistemic", text, page)


def _write(job: Reproduction, results: dict[str, dict[str, Any]]) -> str:
    """The table of these rows, as it was written."""
    text, choice = markdown(results, job.effort.note()), chosen(results)
    write_results(job, "epistemic", results, {"chosen": choice.key if choice else None, "rows": results}, text)
    return text


def _path(job: Reproduction, row: Row) -> Path:
    return make_folder(job.folder / "epistemic") / f"{row.key}.json"


def _measured(job: Reproduction, row: Row, models: dict[Training, DeepGradientDescent], presets: dict[Training, Preset]) -> dict[str, Any]:
    """The row's file, made again where its models, its recipe or the effort are not what it was made with."""
    path = _path(job, row)
    members = [models[training] for training in row.trainings]
    identity = identity_of(job, row, members, presets[row.trainings[0]])
    if (found := kept(path, identity)) is not None:
        job.out.note(f"epistemic: {path} is there already")
        return found
    with job.out.waiting(f"epistemic: {row.name}"):
        start = time.perf_counter()
        used = _with_closed_form(job, row, members, presets)
        seconds = sum(float(model.provenance["seconds"]) for model in members) + time.perf_counter() - start
        A = RayTransform(presets[row.trainings[0]].geometry, job.device)
        scores = measure(posterior_function(used, row.draw, job.effort.draws), A, job.effort, round(seconds, 1))
    trained_by = [training_of(model.provenance) for model in members]  # perhaps by other code than that which measures them
    result = {**identity, "scores": asdict(scores), "trained": trained_by, **origin(job)}
    write_json(path, result)
    job.out.note(f"epistemic: {row.name}: {scores.psnr:.2f} dB, NLL {scores.nll:.3f}, text AUROC {scores.text_auroc:.3f}")
    return result


def _with_closed_form(
    job: Reproduction, row: Row, members: list[DeepGradientDescent], presets: dict[Training, Preset]
) -> list[Reconstructor]:
    """The models of a row, with their last layers' closed-form posterior where the row asks for it."""
    if row.laplace is None:
        return list(members)
    preset = presets[row.trainings[0]]
    scans = make_scans(preset, RayTransform(preset.geometry, device=job.device), "train")
    return [laplace(model, scans, kl_weight=row.laplace, generator=named_generator("training", preset.seed)) for model in members]
