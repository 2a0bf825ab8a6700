"""`bdgd reproduce gains`: every shipped model of the paper's settings on a thousand test images, each beside its FBP."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.provenance import provenance
from bdgd.apps.reproduction import Reproduction, scored_models
from bdgd.evaluation.gains import gains_of, gains_table, measure_gains
from bdgd.evaluation.pages import left_out, noted, origins
from bdgd.models import load, ray_transform
from bdgd.operators import RayTransform
from bdgd.storage import read_kept, write_json

IMAGES = 1000

Cell = dict[str, Any]


def make_gains(job: Reproduction, page: Path | None = None) -> None:
    """Measure the models that were not measured with these weights before; keep every value in gains.json, and write gains.md."""
    path, kept, shown = _path(job.folder), read_gains(job.folder), dict[str, Cell]()
    for name in scored_models():
        model = load(name, device=job.device)
        identity = {"weights": model.fingerprint(), "effort": asdict(job.effort)}
        is_there = identity.items() <= kept.get(name, {}).items()
        if not is_there and not job.wants(name):
            continue
        if not is_there:
            kept[name] = {**identity, **_measured(job, name, ray_transform(model))}
            write_json(path, {"note": job.effort.note(), "models": kept})
        shown[name] = kept[name]
    words = "*The first images of the test set; a model's image is the mean of its draws.*"
    below = [words, *left_out(sorted(set(scored_models()) - set(shown))), origins(shown.values())]
    text = noted(job.effort.note(), gains_table(shown), "\n".join(below))
    job.publish("gains", text, page)


def read_gains(folder: Path) -> dict[str, Cell]:
    """What was measured before, by model; empty where nothing was."""
    return read_kept(_path(folder), "the gains of models", _cells, dict[str, Cell]())


def _path(folder: Path) -> Path:
    return folder / "gains.json"


def _measured(job: Reproduction, name: str, A: RayTransform) -> Cell:
    """The values of one model, and where they come from."""
    images, start = job.effort.ellipses if job.effort.quick else IMAGES, time.perf_counter()
    with job.out.progress(f"gains: {name}", images) as step:
        found = measure_gains(name, A, images, job.effort, lambda done, least: step(done, f"least gain {least:.1f} dB"))
    return {**found, "provenance": {**provenance(0, A.device), "seconds": round(time.perf_counter() - start, 1)}}


def _cells(kept: Any) -> dict[str, Cell]:
    """What was kept, if it has all that is looked at."""
    _ = [(gains_of(cell), cell["weights"], cell["draws"], cell["provenance"]["hardware"]) for cell in kept["models"].values()]
    return dict(kept["models"])
