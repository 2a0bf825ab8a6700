"""A preset made real: its scans, its model, its training. Used by `bdgd train` and by whoever repeats a shipped model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bdgd.apps.options import make_folder
from bdgd.apps.presets import CALLED, Preset, parse_preset
from bdgd.apps.provenance import provenance
from bdgd.backends import training_precision
from bdgd.checks import InputError
from bdgd.data import Scans, named_generator, phantom_images, simulate
from bdgd.models import Reconstructor, save
from bdgd.operators import RayTransform
from bdgd.storage import write_json, write_text
from bdgd.training import History
from bdgd.training.run import Report, rank


def make_scans(preset: Preset, A: RayTransform, which: str) -> Scans:
    """The training or validation scans of a preset, on the operator's device, corrected as a measured one will be."""
    count = preset.train if which == "train" else preset.validation
    images = phantom_images(preset.phantoms, which, count, preset.geometry, preset.seed, A.device, spread=preset.value_spread)
    images = images if preset.value_scale == 1.0 else images * preset.value_scale
    generator = named_generator(f"{which} noise", preset.seed)
    return simulate(A, images, preset.noise, generator=generator, mismatch=preset.mismatch).corrected(preset.correction)


def make_model(preset: Preset, A: RayTransform) -> Reconstructor:
    """The untrained model of a preset, with the correction of its scans."""
    model: Reconstructor = CALLED[preset.kind]["model"](A, **preset.model, seed=preset.seed)
    model.correction = preset.correction
    return model


def epochs_of(preset: Preset) -> int:
    """Epochs of all stages of a preset, which is what the progress of a training is counted in."""
    stages = int(preset.argument("model", "blocks")) if preset.kind == "cascade" else 1
    return stages * preset.epochs("training") + preset.epochs("finetuning")


def train_preset(
    preset: Preset,
    run: Path,
    device: torch.device,
    *,
    resume: bool = False,
    report: Report | None = None,
    before: Callable[[Reconstructor], None] | None = None,
    data: Preset | None = None,
) -> Reconstructor:
    """Train the preset's model in the run folder and write it there as model.safetensors, with its provenance.

    before: called with the untrained model before any image is made. data: another preset, whose images and noise are trained on;
    so the members of an ensemble differ in their start and in the order of the images alone.
    """
    start = time.perf_counter()
    _keep(preset, run, device, resume)
    A = RayTransform(preset.geometry, device=device)
    model = make_model(preset, A)
    if before is not None:
        before(model)
    source = data or preset
    histories = _train(preset, model, make_scans(source, A, "train"), make_scans(source, A, "validation"), run, resume, report)
    stages = [record for history in histories for record in history.stages]
    model.provenance = {
        "preset": preset.name,
        "preset_text": preset.text,
        "stages": stages,
        **({"data_seed": data.seed} if data is not None else {}),
        "precision": str(training_precision(device, round_images=preset.kind == "primal-dual")).removeprefix("torch."),
        "seconds": round(time.perf_counter() - start, 1),
        **provenance(preset.seed, device),
    }
    if rank() == 0:
        save(model, run / "model.safetensors")
    return model


def _keep(preset: Preset, run: Path, device: torch.device, resume: bool) -> None:
    """Put the preset and the environment into a run folder where no training has begun; one of another preset is refused."""
    make_folder(run)
    require_same_preset(preset, run)
    begun = _has_begun(run)
    if begun and not resume:
        raise InputError(f"{run} already holds a run of this preset; add --resume to go on with it, or choose another folder")
    if rank() == 0 and not begun:
        write_json(run / "environment.json", provenance(preset.seed, device))
        write_text(run / "preset.toml", preset.text)


def require_same_preset(preset: Preset, run: Path) -> None:
    """Raise where the folder holds a run of another preset."""
    kept = run / "preset.toml"
    if not _has_begun(run) or not kept.is_file():
        return
    if replace(parse_preset(kept.read_text(encoding="utf-8"), preset.name), text="") != replace(preset, text=""):
        raise InputError(f"{run} holds a run of another preset than {preset.name}, see {kept}; choose another folder")


def _has_begun(run: Path) -> bool:
    """Whether a training has begun there: its settings are written once every value of its preset was found good."""
    return (run / "settings.json").exists()


def _train(
    preset: Preset, model: Reconstructor, train: Scans, validation: Scans, run: Path, resume: bool, report: Report | None
) -> list[History]:
    """The stages of the preset, each in the run folder."""
    shared: dict[str, Any] = {"validation": validation, "resume": resume, "report": report}

    def stage(section: str, arguments: dict[str, Any], folder: Path) -> History:
        generator = named_generator("training", preset.seed)
        history: History = CALLED[preset.kind][section](model, train, **arguments, generator=generator, run=folder, **shared)
        return history

    histories = [stage("training", preset.training, run)]
    if preset.finetuning is not None:
        histories.append(stage("finetuning", preset.finetuning, run / "joint"))
    return histories
