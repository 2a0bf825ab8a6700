"""One tiny training of each way, the same every time, and all that two runs of it must have in common."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from toys import small_transform

from bdgd.data import GaussianNoise, Scans, ellipse_images, simulate
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor
from bdgd.training import finetune_jointly, train_directly, train_greedily

WAYS = ("greedy", "joint", "direct")


def scans_of(A: Any, which: str, count: int, noise: float = 0.01) -> Scans:
    images = ellipse_images(which, count, A.domain_shape[-1])
    return simulate(A, images, GaussianNoise(noise), generator=torch.Generator().manual_seed(count))


def train(run: Path | None, how: str = "greedy", *, resume: bool = True, report: Any = None, **changes: Any) -> tuple[Reconstructor, Any]:
    """One tiny training of each way, the same every time; `changes` are to its arguments."""
    A = small_transform(size=changes.pop("size", 8), views=4, pixel_size=changes.pop("pixel_size", 1.0))
    scans = scans_of(A, changes.pop("set", "train"), changes.pop("images", 6), changes.pop("noise", 0.01))
    validation = scans_of(A, "validation", count) if (count := changes.pop("validation", 2)) else None
    generator = torch.Generator().manual_seed(changes.pop("seed", 1))
    shared = {"epochs": 2, "batch": 4, "validation": validation, "generator": generator, "run": run, "resume": resume, "report": report}
    arguments = shared | changes
    if how == "direct":
        model: Reconstructor = LearnedPrimalDual(A, iterations=arguments.pop("iterations", 1))
        return model, train_directly(model, scans, **arguments)
    blocks, last_layer, weights = (arguments.pop(*option) for option in (("blocks", 2), ("last_layer", "mean_field"), ("weights", 0)))
    model = DeepGradientDescent(A, blocks=blocks, last_layer=last_layer, gradient_scale=30.0, seed=weights)
    function = train_greedily if how == "greedy" else finetune_jointly
    return model, function(model, scans, **arguments)


def outcome(run: Path, model: Reconstructor | None = None) -> dict[str, Any]:
    """All that two runs must have in common: weights, bit for bit, and the lines of metrics."""
    files = {path.name: path.read_bytes() for path in run.iterdir() if path.name not in ("settings.json", "progress.safetensors")}
    weights = {name: value.numpy().tobytes() for name, value in model.state_dict().items()} if model else {}
    return files | weights


@cache
def uninterrupted(how: str) -> dict[str, Any]:
    """The outcome of a training of this way that is left in peace."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        return outcome(run, train(run, how, resume=False)[0])
