"""Models that are trained by one short schedule to be compared: their presets, what they cost, their run folders, results that are kept."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bdgd.apps.costs import GPU, training_seconds
from bdgd.apps.presets import Preset, parse_preset, preset_text, read_preset
from bdgd.apps.provenance import provenance
from bdgd.apps.reproduction import Reproduction
from bdgd.apps.training import train_preset
from bdgd.checks import InputError
from bdgd.evaluation.epistemic import BLOCKS, PRESET, SCHEDULE, SETTING, Training
from bdgd.models import DeepGradientDescent, load
from bdgd.storage import write_json, write_text


def preset_of(training: Training, images: int | None = None) -> Preset:
    """The preset of one training: that of the setting with the short schedule, its seed, and what it changes.

    images: training images instead of the preset's.
    """
    values = tomllib.loads(read_preset(PRESET).text)
    values["seed"] = training.seed
    values["data"]["train"] = images or values["data"]["train"]
    values["model"] |= {"blocks": BLOCKS}
    values["training"] |= SCHEDULE
    for section, changed in training.changes().items():
        values[section] |= changed
    return parse_preset(preset_text(values, f"Written by bdgd reproduce, from the preset {PRESET}."), training.name)


def tell_cost(job: Reproduction, what: str, presets: Iterable[Preset]) -> None:
    """Say, before anything is trained, how many models are missing and about how long they take."""
    missing = [preset for preset in presets if not model_file(job, preset).is_file()]
    if missing:
        seconds = sum(training_seconds(preset) for preset in missing)
        job.out.note(f"{what}: training {len(missing)} models into {job.runs}, about {float(f'{seconds:.2g}'):.0f} s on {GPU}")


def model_file(job: Reproduction, preset: Preset) -> Path:
    return job.runs / preset.name / "model.safetensors"


def trained(job: Reproduction, preset: Preset, data: Preset) -> DeepGradientDescent:
    """The model of a preset from its run folder, trained there first, or further where that was interrupted.

    data: the preset whose images all trainings see, so that members of an ensemble differ in their start and the order of images alone.
    """
    file = model_file(job, preset)
    if not file.is_file():
        with job.out.progress(preset.name, BLOCKS * int(preset.training["epochs"])) as step:

            def report(record: dict[str, Any]) -> None:
                if "loss" in record:  # a block that is trained again was not counted on
                    step(0 if "-again-" in record["stage"] else 1, f"{record['stage']} loss {record['loss']:.4f}")

            train_preset(preset, file.parent, job.device, resume=True, report=report, data=data)
    model = load(file, device=job.device)
    made = parse_preset(str(model.provenance.get("preset_text", preset.text)), preset.name)
    if not isinstance(model, DeepGradientDescent) or replace(made, text="") != replace(preset, text=""):
        raise InputError(f"{file} was trained by another recipe, see its preset.toml; choose another folder with --runs")
    return model


def identity_of(job: Reproduction, row: Any, models: Iterable[DeepGradientDescent], preset: Preset) -> dict[str, Any]:
    """What a measured row stands for; where any of it differs, the row is measured again. row: a dataclass."""
    return {
        "row": json.loads(json.dumps(asdict(row))),
        "weights": [model.fingerprint() for model in models],
        "training_images": preset.train,
        "recipe": {"model": dict(preset.model), "training": dict(preset.training)},
        "effort": asdict(job.effort),
    }


def kept(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a row's file holds; None where it is not there, not whole, or stands for something else."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and "scores" in found
    return found if whole and all(found.get(key) == value for key, value in identity.items()) else None


def measured_before(job: Reproduction, path: Path, row: Any, preset: Preset, needed: Iterable[Preset]) -> dict[str, Any] | None:
    """A row's file where none of its models is there any more to be compared with: nobody trains ten models to measure an eleventh.

    preset: what the row stands for, as in `identity_of`. needed: the presets of its models.
    """
    if any(model_file(job, each).is_file() for each in needed):
        return None
    identity = identity_of(job, row, [], preset)
    del identity["weights"]
    return kept(path, identity)


def origin(job: Reproduction) -> dict[str, Any]:
    """Where a result comes from."""
    return {"setting": SETTING, "note": job.effort.note(), "provenance": provenance(0, job.device)}


def write_results(job: Reproduction, name: str, rows: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any], text: str) -> None:
    """NAME.json with these values, and NAME.md with their table.

    The file says where the last of its rows was measured: to write it again is to measure nothing.
    """
    last = max((row["provenance"] for row in rows.values()), key=lambda made: str(made["date"]))
    write_json(job.folder / f"{name}.json", {**values, **origin(job), "provenance": last})
    write_text(job.folder / f"{name}.md", text + "\n")
