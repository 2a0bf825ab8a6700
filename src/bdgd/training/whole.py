"""Training of a whole model through the operator: joint fine-tuning of a cascade, direct training of learned primal-dual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from bdgd.checks import InputError, require_positive
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor
from bdgd.training.frontier import BATCH, Frontier, prepared, require_cascade, score
from bdgd.training.loop import Schedule, Trainer
from bdgd.training.objective import CascadeObjective, DirectObjective, Objective
from bdgd.training.run import History, Record, Report, RunFolder, open_run, tell


def finetune_jointly(
    model: DeepGradientDescent,
    scans: Scans,
    *,
    validation: Scans | None = None,
    epochs: int = 10,
    batch: int = 16,
    learning_rate: float = 1e-5,
    last_learning_rate: float = 1e-7,
    kl_weight: float = 1.0,
    generator: torch.Generator | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> History:
    """Train all blocks of a trained cascade together, in place: KL summed over the blocks, the last block's noise level.

    Memory grows with the number of blocks here, since every step differentiates through all of them and the operator. A cascade that
    is good already is finely tuned: Adam's first steps change every weight by the learning rate, and 1e-4 costs it several dB, which
    a long training must first win back. One that is far from good gains from as much as 3e-4.

    The noise levels of the blocks before the last are no part of what is minimised. They are set afterwards to the root mean square
    error behind each block on the validation scans (else on the training scans), as is the last block's where it is not trained.
    """
    require_cascade(model)
    kl_weight = require_positive(kl_weight, "kl_weight")
    schedule = Schedule(epochs=epochs, batch=batch, learning_rate=learning_rate, last_learning_rate=last_learning_rate)
    seed = seed_from(generator)
    held_out = validation if validation is not None else scans  # prepared where it is used
    prepared(model, held_out)  # what is wrong with them is said before any work
    train = prepared(model, scans)
    trainer = _trainer(model, CascadeObjective(model, train, _starts(model, train), kl_weight), schedule, seed, report)
    folder = open_run(run, model, train, validation, {"seed": seed, "kl_weight": kl_weight, **asdict(schedule)}, resume)
    model.forget_error_bars()  # nothing changes before all that can be refused has been
    _revive(model, scans, seed)

    def scored() -> Record:
        frontier, record = Frontier.at_start(model, held_out), Record()
        for k, block in enumerate(model.blocks):
            frontier.move(frontier.behind(model, block, keyed_generator(seed, "joint", "validation", k)))
            record = frontier.score(block, estimated=block is not model.blocks[-1])
        return record

    return _train("joint", model, trainer, folder, scored)


def _revive(model: DeepGradientDescent, scans: Scans, seed: int) -> None:
    """Replace the dead channels of every block: their weights, free to be anything, would drown the image if training woke them."""
    frontier = Frontier.at_start(model, scans[:BATCH])
    for k, block in enumerate(model.blocks):
        block.revive(frontier.state.x, frontier.state.gradient, keyed_generator(seed, "joint", "revive", k))
        frontier.move(frontier.behind(model, block, keyed_generator(seed, "joint", "start", k)))


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
    """Train learned primal-dual end to end, in place; its noise level is estimated on the validation scans (else on the training scans).

    As its authors do, Adam forgets the size of gradients sooner (beta_2 = 0.99) and gradients are no longer than 1: one that has
    grown on its way through ten updates and twenty operators can undo all that was learned. Now and then one does all the same: after
    good epochs the loss explodes within one. Such an epoch, one whose loss is twice the smallest so far, is repeated from its start at
    half the learning rate, which stays halved (`Guard`); its record says "undone".
    """
    if not isinstance(model, LearnedPrimalDual):
        raise InputError(f"train_directly is for LearnedPrimalDual, got {type(model).__name__}; a cascade has bdgd.train_greedily")
    rates = {"learning_rate": learning_rate, "last_learning_rate": last_learning_rate, "weight_decay": weight_decay}
    schedule = Schedule(epochs=epochs, batch=batch, second_moment=0.99, gradient_norm=1.0, undo=2.0, **rates)
    seed = seed_from(generator)
    scans = prepared(model, scans)
    held_out = prepared(model, validation) if validation is not None else scans
    trainer = _trainer(model, DirectObjective(model, scans, _starts(model, scans)), schedule, seed, report)
    folder = open_run(run, model, scans, validation, {"seed": seed, **asdict(schedule)}, resume)
    model.forget_error_bars()
    return _train("direct", model, trainer, folder, lambda: _score(model, held_out))


@torch.no_grad()
def _starts(model: DeepGradientDescent | LearnedPrimalDual, scans: Scans) -> torch.Tensor:
    """Where the model starts from for every scan (N, 1, H, W)."""
    return torch.cat([model.start(part) for part in scans.sinograms.split(BATCH)])


def _trainer(model: Reconstructor, objective: Objective, schedule: Schedule, seed: int, report: Report | None) -> Trainer:
    """A trainer that captures its step where the operator, through which every step goes, can be captured."""
    _require_gradients(model)
    return Trainer(objective, schedule, seed=seed, report=report, capture=getattr(model.A, "capturable", False))


def _require_gradients(model: Reconstructor) -> None:
    """Raise where nothing flows back to the input of the operator or of its transpose; to weights of its own it may all the same."""
    A = model.A
    for apply, shape in ((A, A.domain_shape), (A.T, A.range_shape)):
        with torch.enable_grad():
            v = torch.zeros(1, *shape, dtype=torch.float32, device=model.device, requires_grad=True)
            total = apply(v).sum()
        if not total.requires_grad or torch.autograd.grad(total, v, allow_unused=True)[0] is None:
            raise InputError(f"training goes through {A}, which gives no gradients; make it a bdgd.LinearOperator, which has them")


def _train(stage: str, model: Reconstructor, trainer: Trainer, folder: RunFolder | None, scored: Callable[[], Record]) -> History:
    """One stage for the whole model, and its scores."""
    weights = folder.finished(stage) if folder else None
    if weights is not None:
        model.load_state_dict(weights)
    else:
        trainer.fit(stage, folder)
    record = {"stage": stage} | scored()
    if weights is None and folder:
        folder.finish(stage, model.state_dict(), record)
    tell(trainer.report, record)
    return History([record])


@torch.no_grad()
def _score(model: LearnedPrimalDual, scans: Scans) -> Record:
    """PSNR and NLL per pixel; sets the noise level."""
    assert scans.images is not None
    images = torch.cat([model(part) for part in scans.sinograms.split(BATCH)])
    return score(images, scans.images, model.log_noise, model.value_scale, estimated=True)
