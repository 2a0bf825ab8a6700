"""What `bdgd reproduce` was asked for, which all that it makes shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from bdgd.apps.console import Output
from bdgd.evaluation import SETTINGS, Effort
from bdgd.evaluation.lab import Lab
from bdgd.evaluation.pages import has_place, insert
from bdgd.models import geometry_of, pretrained
from bdgd.storage import write_text


def scored_models() -> list[str]:
    """The shipped models that there is a test set for; sparse view first, which is quicker."""
    return [name for name in reversed(pretrained()) if geometry_of(name) in SETTINGS.values()]


@dataclass(frozen=True)
class Reproduction:
    """Where to write and compute, with how much effort, how many seeds, where trainings of one's own are, and for which methods only."""

    out: Output
    folder: Path
    device: torch.device
    effort: Effort
    seeds: int = 1
    runs: Path = Path("runs")
    only: tuple[str, ...] = ()

    def wants(self, method: str) -> bool:
        """Whether the method, or model, is to be scored: all are unless some were named."""
        return not self.only or method in self.only

    def lab(self, what: str) -> Lab:
        """A lab for one result, which tells of its progress."""
        return Lab(self.device, self.effort, folder=self.folder, say=lambda text: self.out.note(f"{what}: {text}"))

    def trained(self, model: str, seed: int) -> str | None:
        """The model for a seed: one of one's own runs for that seed, else the shipped one; None where there is neither."""
        own = self.runs / f"{model}-seed{seed}" / "model.safetensors"
        if own.is_file():
            return str(own)
        return model if model in pretrained() else None

    def publish(self, name: str, text: str, page: Path | None, *, say: bool = True) -> None:
        """Write NAME.md, put the text into its place of the page where one is given and has it, and print it unless that is done."""
        write_text(self.folder / f"{name}.md", text + "\n")
        if page is not None and has_place(page, name):
            insert(page, name, text)
        if say:
            self.out.say(text)
