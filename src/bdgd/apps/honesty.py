"""`bdgd reproduce honesty`: what each departure from the paper's formulas does, measured on short trainings, kept as JSON."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch import Tensor

from bdgd.apps.options import make_folder
from bdgd.apps.presets import Preset
from bdgd.apps.reproduction import Reproduction
from bdgd.apps.short_trainings import identity_of, kept, measured_before, origin, preset_of, tell_cost, trained, write_results
from bdgd.checks import Diverged
from bdgd.evaluation.epistemic import POINT, Training, posterior_function
from bdgd.evaluation.honesty import CANDIDATES, CASES, Case
from bdgd.evaluation.honesty_scores import measure_case
from bdgd.evaluation.honesty_table import markdown
from bdgd.evaluation.selection import Selection, pool_scans, quality_by_block, selection_scores
from bdgd.models import DeepGradientDescent
from bdgd.operators import RayTransform
from bdgd.storage import write_json


def make_honesty(job: Reproduction, page: Path | None = None, images: int | None = None) -> None:
    """Case by case: train what is missing, measure what is not there, write honesty.json and honesty.md; fill the page at the end.

    The trainings of `bdgd reproduce epistemic` in the same RUNS are used. images: training images instead of the preset's.
    """
    presets = {training: preset_of(training, images) for training in CANDIDATES}
    data = preset_of(POINT, images)
    needed = {case: presets[case.training] for case in CASES}
    before = {case: measured_before(job, _path(job, case.key), case, preset, [preset]) for case, preset in needed.items()}
    selected = measured_before(job, _path(job, "selection"), Selection.of(job.effort), data, presets.values())
    missing = presets.values() if selected is None else [needed[case] for case in CASES if before[case] is None]
    tell_cost(job, "honesty", {preset.name: preset for preset in missing}.values())
    models = _Models(job, presets, data)
    cases: dict[str, dict[str, Any]] = {}
    for case in CASES:
        cases[case.key] = before[case] or _measured(job, case, models.get(case.training), needed[case])
        _write(job, cases, None)  # so that what is there can be read however the run ends
    text = _write(job, cases, selected or _selected(job, {training: models.get(training) for training in CANDIDATES}, data))
    job.publish("honesty", text, page)


def _path(job: Reproduction, key: str) -> Path:
    return make_folder(job.folder / "honesty") / f"{key}.json"


class _Models:
    """The models by training, each made or read once; None for one whose training diverged."""

    def __init__(self, job: Reproduction, presets: dict[Training, Preset], data: Preset):
        self.job, self.presets, self.data = job, presets, data
        self.made: dict[Training, DeepGradientDescent | None] = {}

    def get(self, training: Training) -> DeepGradientDescent | None:
        if training not in self.made:
            try:
                self.made[training] = trained(self.job, self.presets[training], self.data)
            except Diverged as error:  # a result too
                self.job.out.note(f"honesty: {training.name}: {error}")
                self.made[training] = None
        return self.made[training]


def _write(job: Reproduction, cases: dict[str, dict[str, Any]], selection: dict[str, Any] | None) -> str:
    text = markdown(cases, selection, job.effort.note())
    write_results(job, "honesty", {"cases": cases, "selection": selection}, text)
    return text


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
            scores = measure_case(posterior_function([model], case.draw, job.effort.draws), A, job.effort)
        job.out.note(f"honesty: {case.name}: {scores.psnr:.2f} dB, epistemic std {scores.epistemic_std:.2g}, error {scores.error:.2g}")
    seconds = {"training": model.provenance["seconds"] if model else None, "measuring": round(time.perf_counter() - start, 1)}
    result = {**identity, "scores": scores.to_dict() if scores else None, "seconds": seconds, **origin(job)}
    write_json(path, result)
    return result


def _selected(job: Reproduction, models: dict[Training, DeepGradientDescent | None], data: Preset) -> dict[str, Any]:
    """What choosing on test images buys, from its file or measured."""
    path, selection = _path(job, "selection"), Selection.of(job.effort)
    there = {training: model for training, model in models.items() if model is not None}
    identity = identity_of(job, selection, there.values(), data)
    if (found := kept(path, identity)) is not None:
        job.out.note(f"honesty: {path} is there already")
        return found
    start, quality = time.perf_counter(), dict[Training, Tensor]()
    scans = pool_scans(RayTransform(data.geometry, job.device), selection.pool)
    with job.out.progress("honesty: choosing on the test set", len(there)) as step:
        for training, model in there.items():
            quality[training] = quality_by_block(model, scans, selection.draws)
            step(1, f"{training.name} {float(quality[training][-1, :-1].mean()):.2f} dB")
    means = {training.name: [round(float(value), 3) for value in values[:, :-1].mean(1)] for training, values in quality.items()}
    scores = {**selection_scores(quality, selection), "psnr_by_block": means}
    result = {**identity, "scores": scores, "seconds": round(time.perf_counter() - start, 1), **origin(job)}
    write_json(path, result)
    return result
