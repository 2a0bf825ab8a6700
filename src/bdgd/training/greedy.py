"""Greedy training of the cascade (Algorithm 1 of the paper): one block after the other, earlier blocks frozen.

For block k the inputs (x_{k-1}, gradient) of all training images are built once, the block is trained on them, and the
images are pushed through with one draw of its weights per image. So memory does not grow with the number of blocks.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_choice, require_positive
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, GradientBlock, Reconstructor
from bdgd.operators import symmetries
from bdgd.training.loop import Report, Schedule, Trainer
from bdgd.training.objective import BlockObjective, log_likelihood
from bdgd.training.run import Record, RunFolder, rank

#: Images that are pushed through a block together.
BATCH = 128


@dataclass(frozen=True)
class History:
    """What a training measured: one record per finished stage (a block, or the whole model)."""

    stages: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """One column of the records: `history["validation_psnr"]`."""
        return [record.get(name) for record in self.stages]


@dataclass
class Frontier:
    """Images on their way through the cascade: x = x_k and the gradient there, for sinograms y of known truth."""

    y: Tensor
    truth: Tensor
    x: Tensor
    gradient: Tensor

    @classmethod
    def at_start(cls, model: DeepGradientDescent, scans: Scans) -> Frontier:
        """x_0 of the scans and its gradient, on the model's device."""
        scans = prepared(model, scans)
        assert scans.images is not None
        x = torch.cat([model.start(part) for part in scans.sinograms.split(BATCH)])
        frontier = cls(scans.sinograms, scans.images, x, torch.empty_like(x))
        frontier.update_gradient(model)
        return frontier

    @torch.no_grad()
    def push(self, model: DeepGradientDescent, block: GradientBlock, generator: torch.Generator) -> None:
        """x_k and its gradient in place of x_{k-1}, with one draw of the weights per image."""
        weights = block.last.draw(len(self.x), generator)
        for first in range(0, len(self.x), BATCH):
            part = slice(first, first + BATCH)
            features = block.features(self.x[part], self.gradient[part])
            self.x[part] = block.update(self.x[part], features, weights[part])
        self.update_gradient(model)

    @torch.no_grad()
    def update_gradient(self, model: DeepGradientDescent) -> None:
        for first in range(0, len(self.x), BATCH):
            part = slice(first, first + BATCH)
            self.gradient[part] = model.misfit.gradient(self.x[part], self.y[part])


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
    generator: torch.Generator | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> History:
    """Train every block of the model in turn, in place; PSNR and NLL per pixel on the validation scans after each block.

    initialise: "previous" starts each block from all weights of the block before it, "fresh" (the paper) from its own.
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
    settings = {"seed": seed, "kl_weight": kl_weight, "initialise": initialise, "augment": augment, **asdict(schedule)}

    train = Frontier.at_start(model, scans)
    held_out = Frontier.at_start(model, validation) if validation is not None else None
    # One block is trained over and over and copied out: its memory stays where a captured step expects it.
    trainee = copy.deepcopy(model.blocks[0])
    flips = symmetries(getattr(model.A, "geometry", None) if augment else None)
    objective = BlockObjective(trainee, train.x, train.gradient, train.truth, kl_weight, flips)
    folder = open_run(run, model, scans, validation, settings, resume)
    trainer = Trainer(objective, schedule, seed=seed, run=folder, report=report)
    stages: list[Record] = []
    for k, block in enumerate(model.blocks):
        stage = f"block-{k + 1:02d}"
        weights = folder.finished(stage) if folder else None
        if weights is not None:
            trainee.load_state_dict(weights)
        else:
            if k == 0 or initialise == "fresh":
                trainee.load_state_dict(block.state_dict())
            trainer.fit(stage)
        train.push(model, trainee, keyed_generator(seed, stage, "push"))
        if held_out is not None:
            held_out.push(model, trainee, keyed_generator(seed, stage, "validation"))
        record = {"stage": stage} | score(trainee, held_out if held_out is not None else train)
        if weights is None and folder:
            folder.finish(stage, trainee.state_dict(), record)
        block.load_state_dict(trainee.state_dict())
        stages.append(record)
        if report and rank() == 0:
            report(record)
    return History(stages)


@torch.no_grad()
def score(block: GradientBlock, frontier: Frontier) -> Record:
    """PSNR and NLL per pixel of one draw per image; sets the noise level where the block does not train it."""
    if not block.last.trains_noise_level:
        block.log_noise.copy_(((frontier.x - frontier.truth) ** 2).mean().sqrt().log())
    nll = -log_likelihood(frontier.x, frontier.truth, block.log_noise) / frontier.truth.numel()
    return {
        "validation_psnr": float(psnr(frontier.x, frontier.truth).mean()),
        "validation_nll": float(nll),
        "noise_level": float(block.log_noise.exp()),
    }


def prepared(model: Reconstructor, scans: Scans) -> Scans:
    """The scans on the model's device, once they are known to fit it and to have images."""
    if scans.images is None:
        raise InputError("training needs scans with their true images; these have none: simulate them with bdgd.simulate")
    scans = scans.to(model.device)
    model.check(scans.sinograms)
    assert scans.images is not None
    require_batch(scans.images, model.A.domain_shape, "the true image")
    geometry = getattr(model.A, "geometry", None)
    if scans.geometry is not None and geometry is not None and scans.geometry != geometry:
        raise InputError("the scans were made with another geometry than the model's; build the model on RayTransform(scans.geometry)")
    return scans


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
