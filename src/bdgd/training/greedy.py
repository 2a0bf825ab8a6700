"""Greedy training of the cascade (Algorithm 1 of the paper): one block after the other, earlier blocks frozen.

For block k the inputs (x_{k-1}, gradient) of all training images are built once, the block is trained on them, and the
images are pushed through with one draw of its weights per image. So memory does not grow with the number of blocks.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from bdgd.checks import require_choice, require_positive
from bdgd.data import Scans
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, GradientBlock
from bdgd.operators import symmetries
from bdgd.training.frontier import BATCH, Frontier, require_cascade
from bdgd.training.loop import Schedule, Trainer
from bdgd.training.objective import BlockObjective
from bdgd.training.run import History, Record, Report, RunFolder, open_run, tell

#: A block that gains less than this part of what the block before it gained is trained again, so often at most.
LEAST_GAIN, ATTEMPTS = 0.1, 3
LEFT_ALONE = (
    "block 1 leaves every image as it was: what it proposes is undone, since it fits the data more than twice as badly as the start;"
    " train it longer or with another gradient_scale, or, where the start fits the data exactly, give the model another `initial`"
)


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
    first_noise_level: float | None = None,
    augment: bool = False,
    revive: bool = False,
    generator: torch.Generator | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> History:
    """Train every block of the model in turn, in place; PSNR and NLL per pixel on the validation scans after each block.

    Both are those of images divided by the model's value_scale, noise levels are in the unit of the images.

    initialise: "previous" starts each block from all weights of the block before it, "fresh" (the paper) from its own.
    first_noise_level: sigma_k, in the unit of the images, at the start of a block that starts from no other, where it is trained. Unless
    given, that is the root mean square error of x_0 on the training scans for the first block, and exp(-3) for the others.
    revive: replace the channels of such a start that have died, see `GradientBlock.revive`.
    augment: show the training images flipped and turned in every way that the geometry cannot tell (`bdgd.operators.symmetries`).
    Where the last layer does not train a noise level, it is estimated on the validation scans (else on the training scans).
    run: a folder to write, from which a killed training resumes with the same result. report: called after every epoch.
    """
    require_cascade(model)
    require_choice(initialise, ("previous", "fresh"), "initialise")
    kl_weight = require_positive(kl_weight, "kl_weight")
    schedule = Schedule(
        epochs=epochs, batch=batch, learning_rate=learning_rate, last_learning_rate=last_learning_rate, weight_decay=weight_decay
    )
    seed = seed_from(generator)
    settings = {"seed": seed, "kl_weight": kl_weight, "initialise": initialise, "augment": augment, "revive": revive, **asdict(schedule)}
    if first_noise_level is not None:
        settings["first_noise_level"] = require_positive(first_noise_level, "first_noise_level")
    level = None if first_noise_level is None else first_noise_level / model.value_scale
    train = Frontier.at_start(model, scans)
    held_out = Frontier.at_start(model, validation) if validation is not None else None
    # One block is trained over and over and copied out: its memory stays where a captured step expects it.
    trainee = copy.deepcopy(model.blocks[0])
    flips = symmetries(model.geometry if augment else None)
    objective = BlockObjective(trainee, train.state.x, train.state.gradient, train.truth, kl_weight, flips)
    trainer = Trainer(objective, schedule, seed=seed, report=report)
    folder = open_run(run, model, scans, validation, settings, resume)  # once nothing else is wrong
    model.forget_error_bars()
    judge = held_out if held_out is not None else train
    stages, gain = list[Record](), -math.inf  # the gain is that of the block before
    for k, block in enumerate(model.blocks):
        stage = f"block-{k + 1:02d}"
        gained = partial(_gain, judge, model, trainee, seed, stage)
        weights = folder.finished(stage) if folder else None
        if weights is not None:
            trainee.load_state_dict(weights)
        else:
            if k == 0 or initialise == "fresh":
                _start_afresh(trainee, block, level or (train.error() if k == 0 else None))
            elif revive:
                trainee.revive(train.state.x[:BATCH], train.state.gradient[:BATCH], keyed_generator(seed, stage, "revive"))
            _fit_block(trainer, stage, folder, gained, LEAST_GAIN * gain if initialise == "previous" else -math.inf)
        gain = gained()
        if k == 0 and gain == 0:  # to the last bit
            warnings.warn(LEFT_ALONE, stacklevel=2)
        _push(model, trainee, {"push": train, "validation": held_out}, seed, stage)
        record = {"stage": stage} | judge.score(trainee)
        if weights is None and folder:
            folder.finish(stage, trainee.state_dict(), record)
        block.load_state_dict(trainee.state_dict())
        stages.append(record)
        tell(report, record)
    return History(stages)


def _start_afresh(trainee: GradientBlock, block: GradientBlock, noise_level: float | None) -> None:
    """Give the trainee the block's own weights, and this noise level where one is given and trained.

    It moves by no more than the learning rate per step, so a start that is far off is felt for long.
    """
    trainee.load_state_dict(block.state_dict())
    if noise_level and trainee.last.trains_noise_level:  # images without any error give 0, which has no logarithm
        trainee.log_noise.detach().fill_(math.log(noise_level))


def _push(model: DeepGradientDescent, block: GradientBlock, frontiers: dict[str, Frontier | None], seed: int, stage: str) -> None:
    """Push all images through the block, one draw of its weights each; every set of images has draws of its own."""
    for key, frontier in frontiers.items():
        if frontier is not None:
            frontier.move(frontier.behind(model, block, keyed_generator(seed, stage, key)))


def _gain(judge: Frontier, model: DeepGradientDescent, block: GradientBlock, seed: int, stage: str) -> float:
    """How many dB of mean PSNR the block gains on the judged images; validation images have the draws that they will be pushed with.

    An image that is exact before or behind the block, as an empty one is, tells no gain.
    """
    images = judge.behind(model, block, keyed_generator(seed, stage, "validation")).x
    gains = psnr(images, judge.truth) - psnr(judge.state.x, judge.truth)
    told = gains[gains.isfinite()]
    return float(told.mean()) if len(told) else 0.0


def _fit_block(trainer: Trainer, stage: str, folder: RunFolder | None, gained: Callable[[], float], least: float) -> None:
    """Train one block; if it then gains less than `least` dB, train it again from the same start at half the learning rate.

    A learning rate that suits most blocks can cost one its active features: it then changes nothing, and so would all blocks
    that start from it. Where no attempt gains enough, the one that gained most stands. A run folder has the progress of the attempt
    under way only, so a resumed run repeats those before it, and knows their gains and weights again.
    """
    objective, most = trainer.objective, -math.inf
    start = best = copy.deepcopy(objective.state_dict())
    for attempt in range(ATTEMPTS):
        objective.load_state_dict(start)
        trainer.fit(stage if attempt == 0 else f"{stage}-again-{attempt}", folder, slower=0.5**attempt)
        gain = gained()
        if gain >= least:
            return
        if gain > most:
            most, best = gain, copy.deepcopy(objective.state_dict())
    objective.load_state_dict(best)
