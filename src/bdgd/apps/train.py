"""`bdgd train`: a preset trained into a run folder, on one device or, under torchrun, on several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from bdgd.apps.console import Output
from bdgd.apps.options import Device, choose_device, make_folder
from bdgd.apps.presets import Preset, preset_names, read_preset, with_seed
from bdgd.apps.training import train_preset
from bdgd.models import Reconstructor


def train(
    out: Output,
    preset: Annotated[str, typer.Argument(help=f"A TOML file, or a preset by name: {', '.join(preset_names())}.")],
    run: Annotated[Path, typer.Option("-o", "--run", help="The folder that the training writes.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted in that folder.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the preset's; fixes all that is random.")] = None,
    device: Device = "auto",
) -> None:
    """Train the model of a preset.

    Writes RUN/model.safetensors at the end, and one file per finished block on the way: a training that was killed goes
    on with --resume and ends with the same weights. Several GPUs: torchrun --nproc-per-node=N -m bdgd train ...
    """
    wanted = read_preset(preset)
    wanted = wanted if seed is None else with_seed(wanted, seed)
    with _processes(device) as where:
        make_folder(run)
        first = not dist.is_initialized() or dist.get_rank() == 0
        if first:
            out.note(f"{wanted.name}: {wanted.train} images, {wanted.geometry.views} views, on {where}")
        with out.progress(wanted.name, _epochs(wanted)) as step:
            model = train_preset(wanted, run, where, resume=resume, report=_Live(step))
    if first:
        _summarise(out, model, run)


class _Live:
    """Moves the bar by one per epoch and shows the loss and the last validation PSNR."""

    def __init__(self, step: Any):
        self.step, self.quality = step, ""

    def __call__(self, record: dict[str, Any]) -> None:
        if "validation_psnr" in record:
            self.quality = f"validation {record['validation_psnr']:.2f} dB"
        else:
            self.step(1, f"{record['stage']} loss {record['loss']:.4f} {self.quality}".rstrip())


def _epochs(preset: Preset) -> int:
    stages = int(preset.model.get("blocks", 10)) if preset.kind == "cascade" else 1
    return stages * int(preset.training.get("epochs", 20)) + int((preset.finetuning or {}).get("epochs", 0))


def _summarise(out: Output, model: Reconstructor, run: Path) -> None:
    rows = [
        [stage["stage"], f"{stage['validation_psnr']:.2f}", f"{stage['validation_nll']:.3f}", f"{stage['noise_level']:.4f}"]
        for stage in model.provenance["stages"]
    ]
    columns = ["stage", "validation PSNR (dB)", "NLL per pixel", "noise level"]
    out.table(columns, rows, title=f"{model.provenance['preset']}, trained in {model.provenance['seconds']:.0f} s", right=columns[1:])
    out.say(f"wrote {run / 'model.safetensors'}")
    out.say(f"next: bdgd evaluate {run / 'model.safetensors'}")


@contextmanager
def _processes(device: str) -> Iterator[torch.device]:
    """This process's device; under torchrun, inside the process group."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield choose_device(device)
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    where = choose_device(f"cuda:{local}" if device in ("auto", "cuda") and torch.cuda.is_available() else device)
    if where.type == "cuda":
        torch.cuda.set_device(where)  # where the processes wait for each other
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield where
    finally:
        dist.destroy_process_group()
