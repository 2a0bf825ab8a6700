"""`bdgd reproduce epistemic`: the models of the table trained where they are missing, each row measured once and kept as JSON."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bdgd.apps.cells import Job
from bdgd.apps.costs import GPU, training_seconds
from bdgd.apps.options import make_folder
from bdgd.apps.own_scan import preset_text
from bdgd.apps.presets import Preset, parse_preset, read_preset
from bdgd.apps.provenance import provenance
from bdgd.apps.training import make_scans, train_preset
from bdgd.checks import InputError
from bdgd.data import named_generator
from bdgd.evaluation.epistemic import BLOCKS, PRESET, ROWS, SCHEDULE, SETTING, Row, Training, measure, posterior_function
from bdgd.evaluation.epistemic_table import chosen, markdown
from bdgd.evaluation.tables import insert
from bdgd.models import DeepGradientDescent, Reconstructor, load
from bdgd.operators import RayTransform
from bdgd.storage import replacing, write_json
from bdgd.training import laplace


def make_epistemic(job: Job, page: Path | None = None, images: int | None = None) -> None:
    """Row by row: train what is missing, measure what is not there, write epistemic.json and epistemic.md; fill the page at the end.

    images: training images instead of the preset's.
    """
    presets = {training: preset_of(training, images) for row in ROWS for training in row.trainings}
    _tell_cost(job, presets)
    models: dict[Training, DeepGradientDescent] = {}
    results: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        for training in row.trainings:
            if training not in models:
                models[training] = _trained(job, presets[training], data=next(iter(presets.values())))
        results[row.key] = _measured(job, row, models, presets)
        text = _write(job, results)  # so that what is there can be read however the run ends
    if page is not None:
        insert(page, "epistemic", text)
    job.out.say(text)


def _write(job: Job, results: dict[str, dict[str, Any]]) -> str:
    """The table of these rows, as it was written."""
    text, choice = markdown(results, job.effort.note()), chosen(results)
    write_json(job.folder / "epistemic.json", {"chosen": choice.key if choice else None, "rows": results, **_origin(job)})
    with replacing(job.folder / "epistemic.md") as temporary:
        temporary.write_text(text + "\n")
    return text


def preset_of(training: Training, images: int | None = None) -> Preset:
    """The preset of one training: that of the setting with the short schedule, its last layer, kl_weight and seed."""
    values = tomllib.loads(read_preset(PRESET).text)
    values["seed"] = training.seed
    values["data"]["train"] = images or values["data"]["train"]
    values["model"] |= {"blocks": BLOCKS, "last_layer": training.last_layer}
    values["training"] |= {**SCHEDULE, "kl_weight": training.kl_weight}
    return parse_preset(preset_text(values, f"Written by bdgd reproduce epistemic, from the preset {PRESET}."), training.name)


def _tell_cost(job: Job, presets: dict[Training, Preset]) -> None:
    missing = [preset for preset in presets.values() if not _file(job, preset).is_file()]
    if missing:
        seconds = sum(training_seconds(preset) for preset in missing)
        job.out.note(f"epistemic: training {len(missing)} models into {job.runs}, about {float(f'{seconds:.2g}'):.0f} s on {GPU}")


def _file(job: Job, preset: Preset) -> Path:
    return job.runs / preset.name / "model.safetensors"


def _trained(job: Job, preset: Preset, data: Preset) -> DeepGradientDescent:
    """The model of a preset from its run folder, trained there first, or further where that was interrupted.

    data: the preset whose images all trainings see, so that members of an ensemble differ in their start and the order of images alone.
    """
    if not _file(job, preset).is_file():
        with job.out.progress(preset.name, BLOCKS * int(SCHEDULE["epochs"])) as step:

            def report(record: dict[str, Any]) -> None:
                if "loss" in record:  # a block that is trained again was not counted on
                    step(0 if "-again-" in record["stage"] else 1, f"{record['stage']} loss {record['loss']:.4f}")

            train_preset(preset, _file(job, preset).parent, job.device, resume=True, report=report, data=data)
    model = load(_file(job, preset), device=job.device)
    made = parse_preset(str(model.provenance.get("preset_text", preset.text)), preset.name)
    if not isinstance(model, DeepGradientDescent) or replace(made, text="") != replace(preset, text=""):
        raise InputError(f"{_file(job, preset)} was trained by another recipe, see its preset.toml; choose another folder with --runs")
    return model


def _measured(job: Job, row: Row, models: dict[Training, DeepGradientDescent], presets: dict[Training, Preset]) -> dict[str, Any]:
    """The row's file, made again where its models, its recipe or the effort are not what it was made with."""
    path = make_folder(job.folder / "epistemic") / f"{row.key}.json"
    members = [models[training] for training in row.trainings]
    identity = {
        "row": json.loads(json.dumps(asdict(row))),
        "weights": [model.fingerprint() for model in members],
        "training_images": presets[row.trainings[0]].train,
        "effort": asdict(job.effort),
    }
    if (kept := _read(path)) is not None and all(kept.get(key) == value for key, value in identity.items()):
        job.out.note(f"epistemic: {path} is there already")
        return kept
    with job.out.waiting(f"epistemic: {row.name}"):
        start = time.perf_counter()
        used = _with_closed_form(job, row, members, presets)
        seconds = sum(float(model.provenance["seconds"]) for model in members) + time.perf_counter() - start
        A = RayTransform(presets[row.trainings[0]].geometry, job.device)
        scores = measure(posterior_function(used, row.draw, job.effort.draws), A, job.effort, round(seconds, 1))
    result = {**identity, "scores": scores.to_dict(), **_origin(job)}
    write_json(path, result)
    job.out.note(f"epistemic: {row.name}: {scores.psnr:.2f} dB, NLL {scores.nll:.3f}, text AUROC {scores.text_auroc:.3f}")
    return result


def _with_closed_form(job: Job, row: Row, members: list[DeepGradientDescent], presets: dict[Training, Preset]) -> list[Reconstructor]:
    """The models of a row, with their last layers' closed-form posterior where the row asks for it."""
    if row.laplace is None:
        return list(members)
    preset = presets[row.trainings[0]]
    scans = make_scans(preset, RayTransform(preset.geometry, device=job.device), "train")
    return [laplace(model, scans, kl_weight=row.laplace, generator=named_generator("training", preset.seed)) for model in members]


def _read(path: Path) -> dict[str, Any] | None:
    """What a row's file holds; None where it is not there or not whole."""
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and "scores" in kept else None


def _origin(job: Job) -> dict[str, Any]:
    return {"setting": SETTING, "note": job.effort.note(), "provenance": provenance(0, job.device)}
