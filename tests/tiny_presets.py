"""Presets that train in a moment, one of each way to train, and what two trainings must have in common."""

from __future__ import annotations

from pathlib import Path

import torch

from bdgd.apps.presets import Preset, parse_preset
from bdgd.models import read_tensors

CPU = torch.device("cpu")
TINY = """
seed = 3
[geometry]
beam = "sparse"
image_size = 16
views = 5
[data]
train = 24
validation = 3
noise = { kind = "gaussian", relative = 0.02 }
[model]
blocks = 2
last_layer = "mean_field"
gradient_scale = 30.0
[training]
epochs = 2
batch = 4
"""
PRIMAL_DUAL = TINY.replace('blocks = 2\nlast_layer = "mean_field"\ngradient_scale = 30.0', 'kind = "primal-dual"\niterations = 2')
JOINT = TINY.replace("mean_field", "dropout") + "[finetuning]\nepochs = 1\nbatch = 4\n"
TEXTS = {"tiny": TINY, "direct": PRIMAL_DUAL, "joint": JOINT}


def presets() -> list[Preset]:
    return [parse_preset(text, name) for name, text in TEXTS.items()]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


def assert_same_weights(one: Path, other: Path) -> None:
    ours, theirs = weights_of(one), weights_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
