"""A few scans and a small cascade, which train in a moment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import small_transform

from bdgd.data import GaussianNoise, Scans, ellipse_images, simulate
from bdgd.models import DeepGradientDescent
from bdgd.operators import LinearOperator
from bdgd.training import History, train_greedily
from bdgd.training.loop import Trainer

COLUMNS = {"stage", "validation_psnr", "validation_nll", "noise_level"}
State = dict[str, Tensor]


def ellipse_scans(A: LinearOperator, which: str, count: int) -> Scans:
    images = ellipse_images(which, count, A.domain_shape[-1])
    return simulate(A, images, GaussianNoise(0.01), generator=torch.Generator().manual_seed(count))


A = small_transform(size=16, views=6)
TRAIN, VALIDATION = ellipse_scans(A, "train", 12), ellipse_scans(A, "validation", 5)


def cascade(last_layer: str = "mean_field", blocks: int = 2, **arguments: Any) -> DeepGradientDescent:
    return DeepGradientDescent(A, blocks=blocks, last_layer=last_layer, gradient_scale=30.0, **arguments)


def quickly(model: DeepGradientDescent, scans: Scans = TRAIN, **arguments: Any) -> History:
    """Greedy training that takes a moment."""
    return train_greedily(model, scans, **{"validation": VALIDATION, "epochs": 2, "batch": 4, **arguments})


def state_of(module: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name].nan_to_num(7), other[name].nan_to_num(7)) for name in one)


class Watch:
    """Notes with what each fit of a block starts: its stage, the block's weights, and the images it is trained on; and its last weights."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.stages: list[str] = []
        self.states: list[State] = []
        self.images: list[Tensor] = []
        self.rates: list[float] = []
        self.ends: list[State] = []
        fit = Trainer.fit

        def noting_fit(trainer: Trainer, stage: str, *arguments: Any, **options: Any) -> None:
            self.stages.append(stage)
            self.states.append(state_of(trainer.objective.block))
            self.images.append(trainer.objective.x.clone())
            fit(trainer, stage, *arguments, **options)
            self.rates.append(trainer.optimiser.param_groups[0]["lr"])
            self.ends.append(state_of(trainer.objective.block))

        patch.setattr(Trainer, "fit", noting_fit)
