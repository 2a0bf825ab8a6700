"""Greedy training of the cascade (Algorithm 1 of the paper): one block after the other, earlier blocks frozen.

For block k the inputs (x_{k-1}, gradient) of all training images are built once, the block is trained on them, and the
images are pushed through with one draw of its weights per image. So memory does not grow with the number of blocks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_choice, require_positive
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, GradientBlock, Reconstructor, State
from bdgd.operators import symmetries
from bdgd.training.loop import Report, Schedule, Trainer
from bdgd.training.objective import BlockObjective, log_likelihood
from bdgd.training.run import Record, RunFolder, rank

#: Images that are pushed through a block together.
BATCH = 128
#: A block that gains less than this part of what the block before it gained is trained again, so often at most.
LEAST_GAIN, ATTEMPTS = 0.1, 3


@dataclass(frozen=True)
class History:
    """What a training measured: one record per finished stage (a block, or the whole model)."""

    stages: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """One column of the records: `history["validation_psnr"]`."""
        return [record.get(name) for record in self.stages]


@dataclass(frozen=True)
class Frontier:
    """Where all images of a set are on their way through the cascade, for sinograms y of known truth."""

    y: Tensor
    truth: Tensor
    state: State

    @classmethod
    def at_start(cls, model: DeepGradientDescent, scans: Scans) -> Frontier:
        """At x_0 of the scans, on the model's device."""
        scans = prepared(model, scans)
        assert scans.images is not None
        states = [model.begin(part) for part in scans.sinograms.split(BATCH)]
        return cls(scans.sinograms, scans.images, State(*(torch.cat(tensors) for tensors in zip(*states, strict=True))))

    @torch.no_grad()
    def behind(self, model: DeepGradientDescent, block: GradientBlock, generator: torch.Generator) -> State:
        """The state after a block, with one draw of its weights per image."""
        weights = block.last.draw(len(self.y), generator).split(BATCH)
        parts = zip(*(tensor.split(BATCH) for tensor in self.state), self.y.split(BATCH), weights, strict=True)
        states = []
        for x, gradient, misfit, y, drawn in parts:
            proposed = block.update(x, block.features(x, gradient), drawn)
            states.append(model.settle(State(x, gradient, misfit), proposed, y))
        return State(*(torch.cat(tensors) for tensors in zip(*states, strict=True)))

    def move(self, state: State) -> None:
        """Go there, in the memory where the state is: a captured step reads it in place."""
        for mine, new in zip(self.state, state, strict=True):
            mine.copy_(new)

    def quality(self) -> float:
        """Mean PSNR."""
        return float(psnr(self.state.x, self.truth).mean())


def train_greedily(
    model: DeepGradientDescent,
    scans: Scans,
    *,
    validation: Scans | None = None,
    epochs: int = 20,
    batch: int = 16,
    learning_rate: float = 1e-3,
    last_learning_rate: float = 1e-5,
    weight_decay: float = 0.0,
    kl_weight: float = 1.0,
    initialise: str = "previous",
    augment: bool = False,
    revive: bool = False,
    generator: torch.Generator | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> History:
    """Train every block of the model in turn, in place; PSNR and NLL per pixel on the validation scans after each block.

    initialise: "previous" starts each block from all weights of the block before it, "fresh" (the paper) from its own.
    revive: replace the channels of such a start that have died, see `GradientBlock.revive`.
    augment: show the training images flipped and turned in every way that the geometry cannot tell (`bdgd.operators.symmetries`).
    Where the last layer does not train a noise level, it is estimated on the validation scans (else on the training scans).
    run: a folder to write, from which a killed training resumes with the same result. report: called after every epoch.
    """
    require_choice(initialise, ("previous", "fresh"), "initialise")
    kl_weight = require_positive(kl_weight, "kl_weight")
    schedule = Schedule(
        epochs=epochs, batch=batch, learning_rate=learning_rate, last_learning_rate=last_learning_rate, weight_decay=weight_decay
    )
    seed = seed_from(generator)
    settings = {"seed": seed, "kl_weight": kl_weight, "initialise": initialise, "augment": augment, "revive": revive, **asdict(schedule)}

    model.forget_error_bars()
    train = Frontier.at_start(model, scans)
    held_out = Frontier.at_start(model, validation) if validation is not None else None
    # One block is trained over and over and copied out: its memory stays where a captured step expects it.
    trainee = copy.deepcopy(model.blocks[0])
    flips = symmetries(getattr(model.A, "geometry", None) if augment else None)
    objective = BlockObjective(trainee, train.state.x, train.state.gradient, train.truth, kl_weight, flips)
    trainer = Trainer(objective, schedule, seed=seed, report=report)
    folder = open_run(run, model, scans, validation, settings, resume)  # last, once nothing else is wrong
    judge = held_out if held_out is not None else train
    stages: list[Record] = []
    gain = -math.inf  # what the block before gained
    for k, block in enumerate(model.blocks):
        stage = f"block-{k + 1:02d}"
        gained = partial(_gain, judge, model, trainee, seed, stage)
        weights = folder.finished(stage) if folder else None
        if weights is not None:
            trainee.load_state_dict(weights)
        else:
            if k == 0 or initialise == "fresh":
                trainee.load_state_dict(block.state_dict())
            elif revive:
                trainee.revive(train.state.x[:BATCH], train.state.gradient[:BATCH], keyed_generator(seed, stage, "revive"))
            _fit_block(trainer, stage, folder, gained, LEAST_GAIN * gain if initialise == "previous" else -math.inf)
        gain = gained()
        train.move(train.behind(model, trainee, keyed_generator(seed, stage, "push")))
        if held_out is not None:
            held_out.move(held_out.behind(model, trainee, keyed_generator(seed, stage, "validation")))
        record = {"stage": stage} | score(trainee, judge)
        if weights is None and folder:
            folder.finish(stage, trainee.state_dict(), record)
        block.load_state_dict(trainee.state_dict())
        stages.append(record)
        _tell(report, record)
    return History(stages)


def _tell(report: Report | None, record: Record) -> None:
    if report and rank() == 0:  # one process speaks for all
        report(record)


def _gain(judge: Frontier, model: DeepGradientDescent, block: GradientBlock, seed: int, stage: str) -> float:
    """How many dB of mean PSNR the block gains on the images that are judged, with the draws that they will be pushed with."""
    images = judge.behind(model, block, keyed_generator(seed, stage, "validation")).x
    return float(psnr(images, judge.truth).mean()) - judge.quality()


def _fit_block(trainer: Trainer, stage: str, folder: RunFolder | None, gained: Callable[[], float], least: float) -> None:
    """Train one block; if it then gains less than `least` dB, train it again from the same start at half the learning rate.

    A learning rate that suits most blocks can cost one its active features: it then changes nothing, and so would all blocks
    that start from it.
    """
    start = copy.deepcopy(trainer.objective.state_dict())
    for attempt in range(ATTEMPTS):
        trainer.objective.load_state_dict(start)
        trainer.fit(stage if attempt == 0 else f"{stage}-again-{attempt}", folder, slower=0.5**attempt)
        if gained() >= least:
            return


@torch.no_grad()
def score(block: GradientBlock, frontier: Frontier) -> Record:
    """PSNR and NLL per pixel of one draw per image; sets the noise level where the block does not train it."""
    if not block.last.trains_noise_level:
        block.log_noise.copy_(((frontier.state.x - frontier.truth) ** 2).mean().sqrt().log())
    nll = -log_likelihood(frontier.state.x, frontier.truth, block.log_noise) / frontier.truth.numel()
    return {
        "validation_psnr": frontier.quality(),
        "validation_nll": float(nll),
        "noise_level": float(block.log_noise.exp()),
    }


def prepared(model: Reconstructor, scans: Scans) -> Scans:
    """The scans on the model's device, divided by its value_scale, once they are known to fit it and to have images."""
    if not isinstance(scans, Scans):
        raise InputError(f"training needs Scans, images with their sinograms, got {type(scans).__name__}; make them with bdgd.simulate")
    if scans.images is None:
        raise InputError("training needs scans with their true images; these have none: simulate them with bdgd.simulate")
    scans = scans.to(model.device)
    model.check(scans.sinograms)
    assert scans.images is not None
    require_batch(scans.images, model.A.domain_shape, "the true image")
    geometry = getattr(model.A, "geometry", None)
    if scans.geometry is not None and geometry is not None and scans.geometry != geometry:
        raise InputError("the scans were made with another geometry than the model's; build the model on RayTransform(scans.geometry)")
    if model.value_scale == 1.0:
        return scans
    return replace(scans, sinograms=scans.sinograms / model.value_scale, images=scans.images / model.value_scale)


def open_run(
    run: str | Path | None, model: Reconstructor, scans: Scans, validation: Scans | None, settings: dict[str, Any], resume: bool
) -> RunFolder | None:
    """The run folder, with the model and the scans added to what must agree on resuming."""
    if run is None:
        return None
    geometry = getattr(model.A, "geometry", None)
    described = {
        "model": type(model).__name__,
        "arguments": model.arguments(),
        "geometry": geometry.to_dict() if geometry is not None else None,
        "images": len(scans),
        "validation_images": len(validation) if validation is not None else None,
        "noise": scans.noise.to_dict() if scans.noise is not None else None,
    }
    return RunFolder(run, settings | described, resume=resume)
