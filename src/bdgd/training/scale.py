"""Training of the scale head: how large the error of the posterior mean is, pixel by pixel, once the mean is frozen.

The loss is the negative log-likelihood per pixel of the error e = truth - mean under the head's mixture,

    L = - mean of log sum_m w_m N(e; 0, v_m + epistemic),

over scans that the cascade was not trained on, pushed through it once with as many draws as will be used at inference.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import OBJECT
from bdgd.models import DeepGradientDescent
from bdgd.models.scale_head import ScaleHead
from bdgd.training.frontier import BATCH, Frontier
from bdgd.training.loop import Schedule, Trainer
from bdgd.training.objective import Objective
from bdgd.training.run import History, Record, Report, tell


class Residuals(NamedTuple):
    """What the head learns from: clues (N, C, H, W), errors of the mean, variance of the draws and true images (N, 1, H, W)."""

    clues: Tensor
    error: Tensor
    epistemic: Tensor
    truth: Tensor


class ScaleObjective(Objective):
    """L of the module's docstring."""

    def __init__(self, head: ScaleHead, residuals: Residuals):
        super().__init__(len(residuals.error))
        self.head, self.residuals = head, residuals

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        clues, error, epistemic = (tensor[index] for tensor in self.residuals[:3])
        return -self.head(clues).plus(epistemic).log_density(error).mean()


def train_scale_head(
    model: DeepGradientDescent,
    scans: Scans,
    *,
    validation: Scans | None = None,
    draws: int = 100,
    epochs: int = 20,
    batch: int = 16,
    learning_rate: float = 2e-3,
    last_learning_rate: float = 1e-5,
    weight_decay: float = 0.0,
    width: int = 32,
    components: int = 3,
    generator: torch.Generator | None = None,
    report: Report | None = None,
) -> History:
    """Give the trained model a scale head, in place, trained on `scans` that the model was NOT trained on; drops its calibration.

    draws: as many as will be used at inference. The record says what the head gains on the validation scans (else on `scans`).
    report: called after every epoch, and before that, while the scans go through the cascade, after every draw of some of them, with
    how many in "drawn".
    """
    if not isinstance(model, DeepGradientDescent):
        raise InputError(f"a scale head reads the last block of a cascade, {type(model).__name__} has none; train a DeepGradientDescent")
    schedule = Schedule(
        epochs=epochs, batch=batch, learning_rate=learning_rate, last_learning_rate=last_learning_rate, weight_decay=weight_decay
    )
    seed, draws = seed_from(generator), require_count(draws, "draws") if model.random else 1
    residuals = held_out = residuals_of(model, scans, draws, keyed_generator(seed, "scale", "draws"), report)
    if validation is not None:
        held_out = residuals_of(model, validation, draws, keyed_generator(seed, "scale", "validation"), report)
    head = fit_scale_head(residuals, schedule, seed=seed, width=width, components=components, report=report)
    model.forget_error_bars()
    model.scale_head = head.eval()
    record = {"stage": "scale", "draws": draws, **asdict(schedule), **score_scale_head(head, held_out)}
    tell(report, record)
    return History([record])


def fit_scale_head(
    residuals: Residuals, schedule: Schedule, *, seed: int = 0, width: int = 32, components: int = 3, report: Report | None = None
) -> ScaleHead:
    """A head trained on residuals, on their device."""
    typical = float(residuals.error.square().mean().sqrt()) / 2
    head = ScaleHead(residuals.clues.shape[1], width=width, components=components, typical=max(typical, 1e-3), seed=seed)
    head = head.to(residuals.error.device)
    head.standardise(residuals.clues)
    Trainer(ScaleObjective(head, residuals), schedule, seed=seed, report=report).fit("scale")
    return head.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@torch.no_grad()
def residuals_of(
    model: DeepGradientDescent, scans: Scans, draws: int, generator: torch.Generator, report: Report | None = None
) -> Residuals:
    """Push the scans through the frozen cascade `draws` times; every image gets weights of its own in every draw."""
    parts = []
    for first in range(0, len(scans), BATCH):
        start = Frontier.at_start(model, scans[first : first + BATCH])
        mean, squares = torch.zeros_like(start.truth, dtype=torch.float64), torch.zeros_like(start.truth, dtype=torch.float64)
        for s in range(draws):
            frontier = start
            with torch.autocast(start.y.device.type, torch.bfloat16, enabled=start.y.is_cuda):  # as in sampling
                for block in model.blocks:
                    frontier = Frontier(start.y, start.truth, frontier.behind(model, block, generator))
            step = frontier.state.x.clamp(min=0).double() - mean
            mean = mean + step / (s + 1)
            squares = squares + step**2 * (s / (s + 1))  # Welford: (x - old mean)(x - new mean)
            tell(report, {"stage": "scale", "drawn": len(start.truth)})
        image, epistemic = mean.float(), (squares / max(draws - 1, 1)).float()
        clues = model.clues(start.y, image, epistemic)
        parts.append(Residuals(clues, start.truth - image, epistemic, start.truth))
    return Residuals(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


@torch.no_grad()
def score_scale_head(head: ScaleHead, residuals: Residuals) -> Record:
    """NLL per pixel in nats, on the object's and on all pixels, beside that of the best constant-sigma Gaussian on the same pixels."""
    nll = torch.cat(
        [
            -head(clues).plus(epistemic).log_density(error)
            for clues, error, epistemic in zip(*(tensor.split(BATCH) for tensor in residuals[:3]), strict=True)
        ]
    )
    inside = residuals.truth > OBJECT
    record: Record = {}
    for name, pixels in (("object", inside), ("all", torch.ones_like(inside))):
        mean_square = residuals.error[pixels].double().square().mean()
        constant = 0.5 * float(torch.log(2 * torch.pi * mean_square) + 1)
        record[f"validation_nll_{name}"] = float(nll[pixels].double().mean())
        record[f"constant_nll_{name}"] = constant
    return record
