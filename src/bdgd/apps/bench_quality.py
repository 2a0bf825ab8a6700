"""The time to the paper's quality: a whole training, in a fresh process with an empty compile cache, then in another with a full one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bdgd.apps.presets import Preset, read_preset
from bdgd.apps.training import make_model, make_scans
from bdgd.checks import InputError
from bdgd.data import Scans, named_generator
from bdgd.evaluation import table_scans
from bdgd.evaluation.timing import synchronise
from bdgd.inference import reconstruct
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent
from bdgd.operators import RayTransform
from bdgd.training import train_greedily

#: Our preset, shortened until it just reaches the paper's quality.
PRESET, FASTER = "sparse30-mfvi", {"epochs": 8, "learning_rate": 2e-3}
DRAWS = 20


def measure_quality(where: torch.device) -> dict[str, Any]:
    """Seconds cold and warm, and PSNR on the validation images and, once, on the scans of the tables."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _in_a_process(where, Path(cache), test=False)
        warm = _in_a_process(where, Path(cache), test=True)
    recipe = f"{PRESET}, " + ", ".join(f"{name} {value:g}" for name, value in FASTER.items())
    return {"recipe": recipe, "cold": cold["seconds"], **warm, "warm": warm["seconds"]}


def train_shortened(preset: Preset, where: torch.device, *, test: bool) -> dict[str, float]:
    """Seconds from making the data to the last block, and the quality that is reached. The device is awake before the clock starts."""
    torch.zeros(1, device=where)
    start = time.perf_counter()
    A = RayTransform(preset.geometry, where)
    model, validation = make_model(preset, A), make_scans(preset, A, "validation")
    assert isinstance(model, DeepGradientDescent)
    generator = named_generator("training", preset.seed)
    train_greedily(model, make_scans(preset, A, "train"), validation=validation, **preset.training, generator=generator)
    synchronise(where)
    found = {"seconds": time.perf_counter() - start, "validation_psnr": sum(_psnr(model, validation)) / len(validation)}
    if test:
        *ellipses, head = _psnr(model, table_scans(A))
        found |= {"ellipses_psnr": sum(ellipses) / len(ellipses), "shepp_logan_psnr": head}
    return found


def _psnr(model: DeepGradientDescent, scans: Scans) -> list[float]:
    assert scans.images is not None
    return psnr(reconstruct(model, scans.sinograms, DRAWS).mean, scans.images).tolist()


def _in_a_process(where: torch.device, cache: Path, *, test: bool) -> dict[str, float]:
    """`train_shortened` in a process of its own that compiles into the folder `cache`."""
    result = cache / "result.json"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    command = [sys.executable, "-m", __name__, str(where), str(result), *(["test"] if test else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"the training for the paper's quality failed: {last}; run {' '.join(command)} to see more")
    found: dict[str, float] = json.loads(result.read_text())
    return found


def _main(device: str, result: str, *test: str) -> None:
    preset = read_preset(PRESET)
    preset = replace(preset, training={**preset.training, **FASTER})
    Path(result).write_text(json.dumps(train_shortened(preset, torch.device(device), test=bool(test))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
