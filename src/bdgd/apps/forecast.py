"""What a training will take, before it starts: memory from the sizes of what is kept, time from a few real steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bdgd.apps.presets import Preset
from bdgd.checks import InputError
from bdgd.evaluation.timing import seconds_of
from bdgd.models import DeepGradientDescent
from bdgd.operators import symmetries
from bdgd.operators.joseph import most_entries
from bdgd.operators.ray_transform import machine_memory
from bdgd.training.frontier import BATCH, Frontier
from bdgd.training.loop import Schedule, Trainer
from bdgd.training.objective import BlockObjective

#: Copies of the images and of the sinograms of a set that exist together at most: the truth and what was simulated, the images and
#: gradients of a block, and those of the next while they are made.
IMAGES, SINOGRAMS = 8, 3
#: Values per pixel that one image needs in a training step, forward and back, and on its way through a trained block.
STEP, PUSH = 420, 200
#: Bytes of libraries and workspaces.
BASE = 1.0e9
#: Images that are simulated or filtered together.
_TOGETHER = 256


def memory_needed(preset: Preset, device: torch.device) -> float:
    """Bytes that training a cascade takes on the device at its peak, rather too many than too few."""
    geometry = preset.geometry
    pixels, rays = math.prod(geometry.image_size), geometry.views * geometry.detectors
    images, batch = preset.train + preset.validation, int(preset.argument("training", "batch"))
    kept = 4.0 * images * (IMAGES * pixels + SINOGRAMS * rays)
    passing = 4.0 * pixels * max(STEP * min(batch, preset.train), PUSH * min(BATCH, preset.train))
    together = 4.0 * 3 * min(_TOGETHER, preset.train) * (pixels + rays)
    matrix = 2 * 0.7 * most_entries(geometry, geometry.views) * 8.0
    return BASE + kept + max(passing, together) + min(matrix, memory_there(device)[1] / 3)


def memory_there(device: torch.device) -> tuple[float, float]:
    """Bytes that are free and bytes in all: of the GPU, or of this machine and what this process may use of it."""
    if device.type == "cuda":
        on_gpu: tuple[int, int] = torch.cuda.mem_get_info(device)
        return float(on_gpu[0]), float(on_gpu[1])
    total = machine_memory()
    free = _first_number("/proc/meminfo", "MemAvailable:", 1024.0, total)
    limit = _first_number("/sys/fs/cgroup/memory.max", "", 1.0, total)
    used = _first_number("/sys/fs/cgroup/memory.current", "", 1.0, 0.0) if limit < total else 0.0
    return min(free, max(limit - used, 0.0)), min(total, limit)


def _first_number(path: str, word: str, factor: float, otherwise: float) -> float:
    """The number behind `word` at the start of a line of a file of the system."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(word):
                return factor * float(line.removeprefix(word).split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return otherwise


def require_memory(preset: Preset, device: torch.device) -> str:
    """How much memory the training takes and how much there is, in words; InputError where it does not fit."""
    needed, (free, _) = memory_needed(preset, device), memory_there(device)
    kind = "GPU memory" if device.type == "cuda" else "memory"
    if needed <= free:
        return f"about {needed / 1e9:.3g} GB of {kind} ({free / 1e9:.3g} GB are free)"
    side, remedies = preset.geometry.image_size[0], []
    for name, smaller in (("--images", preset.train // 2), ("--size", side // 2)):
        if smaller >= 16:
            remedies.append(f"{name} {smaller}")
    raise InputError(
        f"training {preset.name} needs about {needed / 1e9:.3g} GB of {kind}, and {free / 1e9:.3g} GB are free: {preset.train} images of"
        f" {side} x {side} pixels and {preset.geometry.views} views; try {' or '.join(remedies) or 'another device'}"
    )


def require_memory_for_several(presets: list[Preset], at_once: int, device: torch.device) -> None:
    """Raise where so many of these trainings do not fit beside each other; of cascades only, as above."""
    cascades = [preset for preset in presets if preset.kind == "cascade"]
    if not cascades:
        return
    largest = max(cascades, key=lambda preset: memory_needed(preset, device))
    require_memory(largest, device)
    needed, (free, _) = sorted((memory_needed(preset, device) for preset in cascades), reverse=True), memory_there(device)
    fit = next(n for n in range(min(at_once, len(needed)), 0, -1) if n == 1 or sum(needed[:n]) <= free)
    if fit < min(at_once, len(needed)):
        kind = "GPU memory" if device.type == "cuda" else "memory"
        total = sum(needed[:at_once])
        raise InputError(
            f"{min(at_once, len(needed))} trainings at once need about {total / 1e9:.3g} GB of {kind}, and {free / 1e9:.3g} GB are free;"
            f" try --at-once {fit}"
        )


@dataclass(frozen=True)
class Pace:
    """Seconds of one training step, and of one image on its way through a trained block."""

    step: float
    push: float

    def total(self, preset: Preset) -> float:
        """Seconds for the whole training of a cascade; joint fine-tuning goes through the operator forth and back."""
        blocks = int(preset.argument("model", "blocks"))
        alone = _steps(preset, "training") * self.step + (preset.train + 2 * preset.validation) * self.push
        jointly = _steps(preset, "finetuning") * self.step + 2 * preset.epochs("finetuning") * preset.train * self.push
        return blocks * (alone + jointly)


def _steps(preset: Preset, section: str) -> float:
    """Steps of "training", for each block, or of "finetuning"; 0 where the preset has no such section."""
    return preset.epochs(section) * preset.train / min(int(preset.argument(section, "batch")), preset.train)


def rehearse(model: DeepGradientDescent, batch: int) -> Pace:
    """The pace of this model on its device, from a few steps on images of nothing in particular, after as many that do not count."""
    device, (_, height, width) = model.device, model.A.domain_shape
    steps = 1 if device.type == "cpu" else 32
    x = torch.rand(steps * batch, 1, height, width, generator=torch.Generator().manual_seed(0)).to(device)
    block = copy.deepcopy(model.blocks[0])
    trainer = Trainer(BlockObjective(block, x, x - 0.5, x.clone(), 1.0, symmetries(None)), Schedule(epochs=1, batch=batch), seed=0)
    step = _seconds(lambda: trainer.fit("rehearsal"), device) / steps

    few = x[: min(batch, len(x))]
    with torch.no_grad():
        y = model.A(few)
        frontier = Frontier(y, few, model.begin(y))
        push = _seconds(lambda: frontier.behind(model, block, torch.Generator().manual_seed(0)), device)
    return Pace(step, push / len(few))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes the second time."""
    work()
    return seconds_of(work, device)


def in_words(seconds: float) -> str:
    """A time as a person would say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
