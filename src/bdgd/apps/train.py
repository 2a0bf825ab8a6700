"""`bdgd train`: a preset trained into a run folder, on one device or, under torchrun, on several; or many trainings, some at once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from bdgd.apps.console import Output
from bdgd.apps.forecast import in_words, rehearse, require_memory
from bdgd.apps.options import Device, choose_device, make_folder
from bdgd.apps.own_scan import Wishes, fitted_preset
from bdgd.apps.presets import Preset, preset_names, read_preset, with_seed
from bdgd.apps.several import AT_ONCE_ON_GPU, MOST_AT_ONCE, make_jobs, parse_seeds, train_jobs
from bdgd.apps.training import epochs_of, train_preset
from bdgd.checks import InputError
from bdgd.evaluation import SETTINGS
from bdgd.models import DeepGradientDescent, Reconstructor

Scan = Annotated[
    Path | None,
    typer.Option("--geometry", metavar="SCAN", help="Train for this scanner: a scan file, or a geometry as TOML. Needed by own-scan."),
]
Views = Annotated[int | None, typer.Option("--views", min=1, help="With --geometry: so many of its views, equally far apart.")]
Arc = Annotated[
    float | None, typer.Option("--arc", metavar="DEGREES", help="With --geometry: only the first so many degrees of its views.")
]
Size = Annotated[
    int | None, typer.Option("--size", metavar="PIXELS", help="With --geometry: the image's side; the scan's, or 256 if that is larger.")
]
Phantoms = Annotated[
    str | None, typer.Option("--phantoms", help="What is scanned: ellipses, discs-with-holes, or a folder of PNG, TIFF or npy files.")
]
Noise = Annotated[float | None, typer.Option("--noise", help="Relative to the sinogram's mean; estimated from a scan unless given.")]
Air = Annotated[
    bool, typer.Option("--air", help="With --geometry: set what the outermost detectors read to 0, in training and in every scan.")
]
Hardening = Annotated[
    float | None,
    typer.Option("--hardening", metavar="B", help="With --geometry: undo a beam hardening p + B p^2, in training and in every scan."),
]
Images = Annotated[int | None, typer.Option("--images", min=1, help="Training images instead of the preset's.")]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="N|LIST", help="One training per seed: 5 for seeds 0 to 4, or a list such as 0,3,7 (of one: 4,)."),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once", min=1, max=MOST_AT_ONCE, help=f"Of several trainings, how many at a time; {AT_ONCE_ON_GPU} on a GPU, 1 on a CPU."
    ),
]


def train(
    out: Output,
    presets: Annotated[list[str], typer.Argument(metavar="PRESET", help=f"TOML files, or presets by name: {', '.join(preset_names())}.")],
    run: Annotated[
        Path, typer.Option("-o", "--run", help="The folder that the training writes; of several trainings, the folder of theirs.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted in that folder.")] = False,
    geometry: Scan = None,
    views: Views = None,
    arc: Arc = None,
    size: Size = None,
    phantoms: Phantoms = None,
    noise: Noise = None,
    images: Images = None,
    air: Air = False,
    hardening: Hardening = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the preset's; fixes all that is random.")] = None,
    seeds: Seeds = None,
    at_once: AtOnce = None,
    device: Device = "auto",
) -> None:
    """Train the model of a preset, or those of several presets and seeds.

    Writes RUN/model.safetensors at the end, and one file per finished block on the way: a training that was killed goes
    on with --resume and ends with the same weights. Several GPUs: torchrun --nproc-per-node=N -m bdgd train ...
    A model for one's own scanner: bdgd train own-scan --geometry SCAN -o RUN

    With several presets or --seeds, every training has its folder RUN/PRESET-seedN, as bdgd reproduce --runs RUN wants them. Those
    whose model is there are skipped; those that were interrupted need --resume.
    """
    wishes = Wishes(geometry, views, arc, size, noise, phantoms, images, air, hardening)
    for preset in presets:
        _require_sense(preset, wishes)
    wanted = [read_preset(preset) for preset in presets]
    wanted = wanted if seed is None else [with_seed(preset, seed) for preset in wanted]
    if len(presets) == 1 and seeds is None:
        if at_once is not None:
            raise InputError("--at-once is for several trainings; give several presets or --seeds, or leave it out")
        _train_one(out, wanted[0], run, wishes, device, resume)
        return
    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds exclude each other; leave one out")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("torchrun trains one preset on several devices; start several trainings without it")
    numbers, where = None if seeds is None else parse_seeds(seeds), choose_device(device)
    make_folder(run)
    fitted = [_fitted(out, preset, wishes, where) for preset in wanted]
    train_jobs(out, make_jobs(fitted, numbers, run), where, at_once=at_once, resume=resume)


def _train_one(out: Output, preset: Preset, run: Path, wishes: Wishes, device: str, resume: bool) -> None:
    """One training, in the folder itself, by all processes of torchrun where there are several."""
    with _processes(device) as where:
        make_folder(run)
        first = not dist.is_initialized() or dist.get_rank() == 0
        wanted = _fitted(out if first else None, preset, wishes, where)
        ahead = _look_ahead(out, wanted, where) if first and wanted.kind == "cascade" else None
        with out.progress(wanted.name, epochs_of(wanted)) as step:
            model = train_preset(wanted, run, where, resume=resume, report=_Live(step), before=ahead)
    if first:
        _summarise(out, model, run, wishes.geometry)


def _fitted(out: Output | None, preset: Preset, wishes: Wishes, where: torch.device) -> Preset:
    """The preset with what was wished for, and a note on what will be trained."""
    wanted, found = fitted_preset(preset, wishes, where)
    if out is not None:
        if found:
            out.note(f"{wishes.geometry}: {'; '.join(found)}")
        out.note(f"{wanted.name}: {wanted.train} images, {_in_words(wanted)}, on {where}")
    return wanted


def _require_sense(preset: str, wishes: Wishes) -> None:
    """Raise for a combination of options that means nothing."""
    if wishes.geometry is None:
        if preset == "own-scan":
            raise InputError("own-scan trains for your own scanner; add --geometry SCAN, a scan file or a geometry as TOML")
        for name in ("views", "arc", "size", "air", "hardening"):
            if getattr(wishes, name) not in (None, False):
                raise InputError(f"--{name} says how a scan is used; add --geometry SCAN, or leave it out")


def _in_words(preset: Preset) -> str:
    geometry = preset.geometry
    return f"{geometry.image_size[0]} x {geometry.image_size[1]} pixels, {geometry.views} views of {geometry.detectors} detectors" + (
        f"; of every scan {preset.correction.in_words()}" if preset.correction is not None else ""
    )


def _look_ahead(out: Output, preset: Preset, device: torch.device) -> Callable[[Reconstructor], None]:
    """Checks the memory now; what it returns measures the pace once the model is there, and says how long the training will take."""
    memory = require_memory(preset, device)

    def say(model: Reconstructor) -> None:
        if isinstance(model, DeepGradientDescent) and not dist.is_initialized():
            seconds = rehearse(model, min(int(preset.argument("training", "batch")), preset.train)).total(preset)
            out.note(f"{preset.name}: {memory}, about {in_words(seconds)}")
        else:
            out.note(f"{preset.name}: {memory}")

    return say


class _Live:
    """Moves the bar by one per epoch and shows the loss and the last validation PSNR."""

    def __init__(self, step: Any):
        self.step, self.quality = step, ""

    def __call__(self, record: dict[str, Any]) -> None:
        if "validation_psnr" in record:
            self.quality = f"validation {record['validation_psnr']:.2f} dB"
        else:
            self.step(1, f"{record['stage']} loss {record['loss']:.4f} {self.quality}".rstrip())


def _summarise(out: Output, model: Reconstructor, run: Path, scan: Path | None) -> None:
    rows = [
        [stage["stage"], f"{stage['validation_psnr']:.2f}", f"{stage['validation_nll']:.3f}", f"{stage['noise_level']:.4f}"]
        for stage in model.provenance["stages"]
    ]
    columns = ["stage", "validation PSNR (dB)", "NLL per pixel", "noise level"]
    out.table(columns, rows, title=f"{model.provenance['preset']}, trained in {model.provenance['seconds']:.0f} s", right=columns[1:])
    out.say(f"wrote {run / 'model.safetensors'}")
    trained = shlex.quote(str(run / "model.safetensors"))
    if scan is not None:
        out.say(f"next: bdgd reconstruct {shlex.quote(str(scan))} --model {trained} -o RESULT")
        calibrated = shlex.quote(str(run / "calibrated.safetensors"))
        out.say(f"for intervals that cover what they say, before that: bdgd calibrate {trained} --head 2000 -o {calibrated}")
    elif model.geometry in SETTINGS.values():
        out.say(f"next: bdgd evaluate fbp tv {trained}")


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
