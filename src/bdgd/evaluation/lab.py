"""Where figures and claims get their reconstructions: shipped models on one device, with one noise and one seed of the draws.

A lab remembers which models were used and which were asked for and are not there, so that a result can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from bdgd.data import named_generator, simulate
from bdgd.evaluation.benchmark import FULL, NOISE, Effort, images_at_once
from bdgd.evaluation.tables import read_cell
from bdgd.inference import Posterior, reconstruct_blocks
from bdgd.inference.sampling import last_block
from bdgd.metrics import psnr, ssim
from bdgd.models import Reconstructor, load, pretrained

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Look:
    """A reconstruction on the CPU: mean and epistemic variance, each (B, 1, H, W)."""

    mean: Tensor
    epistemic: Tensor


@dataclass(eq=False)
class Lab:
    """Reconstructs with shipped models.

    folder: where the cells of the tables are kept. say: called now and then with what goes on. used: the provenance of every model
    that was asked for; missing: the names of those that are not shipped; cells: the results in tables that were looked for.
    """

    device: torch.device
    effort: Effort = FULL
    seed: int = 0
    folder: Path = Path("results")
    say: Callable[[str], None] = lambda text: None
    used: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    cells: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _kept: dict[Any, Any] = field(default_factory=dict)

    def model(self, name: str) -> Reconstructor | None:
        """The shipped model, or None where there is none yet."""
        if name not in pretrained():
            if name not in self.missing:
                self.missing.append(name)
            return None
        model = load(name, device=self.device)
        known = ("preset", "seed", "commit", "date", "hardware", "seconds")
        self.used[name] = {key: model.provenance.get(key) for key in known}
        return model

    def models(self, names: Sequence[str]) -> dict[str, Reconstructor]:
        """Those of the models that are there."""
        found = {name: self.model(name) for name in names}
        return {name: model for name, model in found.items() if model is not None}

    def cell(self, setting: str, method: str) -> list[dict[str, Any]]:
        """What the table of a setting keeps of a method, one result per seed."""
        found = read_cell(self.folder, setting, method)
        self.cells[f"{setting} {method}"] = found  # none is remembered too: once there is one, what was judged without it is old
        return found

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` makes, made once: several claims look at one measurement."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: T = self._kept[key]
        return kept

    def title(self, shows: str) -> str:
        """What a figure shows, with what must be said about the effort."""
        return f"{shows}\n{note}" if (note := self.effort.note()) else shows

    def sinograms(self, model: Reconstructor, x: Tensor) -> Tensor:
        """Noisy sinograms of the images x, on the lab's device; the same for every model of a geometry."""
        return simulate(model.A, x, NOISE, generator=named_generator("figure noise", self.seed)).sinograms.to(self.device)

    def look(self, model: Reconstructor, y: Tensor) -> Look:
        """The reconstruction from the sinograms y (B, 1, V, D) by the whole model."""
        last = last_block(model)
        return self.look_after(model, y, (last,))[last]

    def look_after(self, model: Reconstructor, y: Tensor, blocks: Sequence[int], name: str = "") -> dict[int, Look]:
        """The reconstructions after some of the blocks, from the same draws; told as work on `name`, where it is given."""
        size = images_at_once(self.device)
        parts: list[dict[int, Posterior]] = []
        for first in range(0, len(y), size):
            generator = named_generator("draws", self.seed)
            part = y[first : first + size]
            # In float32 everywhere: rounding would count as variance.
            parts.append(reconstruct_blocks(model, part, blocks, self.effort.draws, generator=generator, precision="float32"))
            if name:
                self.say(f"{name}: {min(first + size, len(y))} of {len(y)} images")
        return {
            block: Look(*(torch.cat([getattr(part[block], what).cpu() for part in parts]) for what in ("mean", "epistemic")))
            for block in blocks
        }


def side(model: Reconstructor) -> int:
    """Pixels along the first side of the model's images."""
    return int(model.A.domain_shape[1])


def display_name(model: str) -> str:
    """How figures and claims call a shipped model: sparse30-mfvi-paper is "BDGD-MFVI, paper's recipe"."""
    kind = model.split("-")[1]
    words = {"dgd": "DGD", "mfvi": "BDGD-MFVI", "mcdo": "BDGD-MCDO", "lpd": "LPD", "best": "our best"}.get(kind, kind)
    return f"{words}, paper's recipe" if model.endswith("-paper") else words


def quality(estimate: Tensor, truth: Tensor) -> dict[str, float]:
    """PSNR and SSIM of one image, as plain numbers."""
    return {"psnr": float(psnr(estimate, truth)), "ssim": float(ssim(estimate, truth))}
