"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer

from bdgd.checks import InputError
from bdgd.models import Reconstructor

Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1, ..., or auto for a GPU if there is one.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Fixes all that is random.")]


def choose_device(name: str) -> torch.device:
    """The device of that name, once it is there; "auto" is the GPU if PyTorch sees one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"--device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; use --device cpu")
    return device


def wrong_draws(model: Reconstructor, draws: int) -> str | None:
    """Why the model's intervals are not calibrated with so many draws; None where they are, or never were."""
    made = draws if model.random else 1
    if model.calibration is None or made == model.calibration.draws:
        return None
    right = model.calibration.draws
    return f"the intervals are not calibrated: the calibration holds for {right} draws, not {made}; take --draws {right}"


def make_folder(path: Path) -> Path:
    """The folder, made if it is not there, once a file can be written to it."""
    if path.exists() and not path.is_dir():
        raise InputError(f"cannot write to {path}: it is a file, not a folder; choose another name with -o")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise InputError(f"cannot write to the folder {path}: {error.strerror}; choose another one with -o") from None


def require_writable(path: Path) -> Path:
    """The path of a file to write, once its folder is there and can be written to: better now than after the work."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give the name of a file in it")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a folder that exists and can be written to") from None
