"""Training of a whole model through the operator: joint fine-tuning of a cascade, direct training of learned primal-dual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from bdgd.checks import require_positive
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor
from bdgd.training.greedy import BATCH, History, open_run, prepared
from bdgd.training.loop import Report, Schedule, Trainer
from bdgd.training.objective import CascadeObjective, DirectObjective, log_likelihood
from bdgd.training.run import Record, rank


def finetune_jointly(
    model: DeepGradientDescent,
    scans: Scans,
    *,
    validation: Scans | None = None,
    epochs: int = 10,
    batch: int = 16,
    learning_rate: float = 1e-4,
    last_learning_rate: float = 1e-6,
    kl_weight: float = 1.0,
    generator: torch.Generator | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> History:
    """Train all blocks of a trained cascade together, in place: KL summed over the blocks, the last block's noise level.

    Memory grows with the number of blocks here, since every step differentiates through all of them and the operator.
    """
    kl_weight = require_positive(kl_weight, "kl_weight")
    schedule = Schedule(epochs=epochs, batch=batch, learning_rate=learning_rate, last_learning_rate=last_learning_rate)
    seed = seed_from(generator)
    scans = prepared(model, scans)
    held_out = prepared(model, validation) if validation is not None else scans
    start = torch.cat([model.start(part) for part in scans.sinograms.split(BATCH)])
    objective = CascadeObjective(model, scans, start, kl_weight)

    def one_draw(y: Tensor) -> Tensor:
        noise = objective.draw_noise(len(y), keyed_generator(seed, "joint", "validation", device=model.device))
        images: Tensor = model(y, model.start(y), noise)
        return images

    folder = open_run(run, model, scans, validation, {"seed": seed, "kl_weight": kl_weight, **asdict(schedule)}, resume)
    trainer = Trainer(objective, schedule, seed=seed, run=folder, report=report, capture=False)
    return _train("joint", model, trainer, one_draw, model.blocks[-1].log_noise, held_out)


def train_directly(
    model: LearnedPrimalDual,
    scans: Scans,
    *,
    validation: Scans | None = None,
    epochs: int = 50,
    batch: int = 16,
    learning_rate: float = 1e-3,
    last_learning_rate: float = 1e-6,
    weight_decay: float = 0.0,
    generator: torch.Generator | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> History:
    """Train learned primal-dual end to end, in place; its noise level is estimated on the validation scans (else on the training scans)."""
    schedule = Schedule(
        epochs=epochs, batch=batch, learning_rate=learning_rate, last_learning_rate=last_learning_rate, weight_decay=weight_decay
    )
    seed = seed_from(generator)
    scans = prepared(model, scans)
    held_out = prepared(model, validation) if validation is not None else scans
    folder = open_run(run, model, scans, validation, {"seed": seed, **asdict(schedule)}, resume)
    trainer = Trainer(DirectObjective(model, scans), schedule, seed=seed, run=folder, report=report, capture=False)
    return _train("direct", model, trainer, model, model.log_noise, held_out)


def _train(
    stage: str, model: Reconstructor, trainer: Trainer, one_draw: Callable[[Tensor], Tensor], log_noise: Tensor, held_out: Scans
) -> History:
    """One stage of the trainer, scored on the held-out scans; `one_draw` maps sinograms to images, `log_noise` is their noise level."""
    folder = trainer.run
    weights = folder.finished(stage) if folder else None
    if weights is not None:
        model.load_state_dict(weights)
    else:
        trainer.fit(stage)
    record = {"stage": stage} | _score(one_draw, log_noise, held_out)
    if weights is None and folder:
        folder.finish(stage, model.state_dict(), record)
    if trainer.report and rank() == 0:
        trainer.report(record)
    return History([record])


@torch.no_grad()
def _score(one_draw: Callable[[Tensor], Tensor], log_noise: Tensor, scans: Scans) -> Record:
    """PSNR and NLL per pixel of one draw per image; sets the noise level where it is not trained."""
    assert scans.images is not None
    images = torch.cat([one_draw(part) for part in scans.sinograms.split(BATCH)])
    if not isinstance(log_noise, nn.Parameter):
        log_noise.copy_(((images - scans.images) ** 2).mean().sqrt().log())
    return {
        "validation_psnr": float(psnr(images, scans.images).mean()),
        "validation_nll": float(-log_likelihood(images, scans.images, log_noise) / scans.images.numel()),
        "noise_level": float(log_noise.exp()),
    }
