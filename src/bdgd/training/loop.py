"""The training loop, one for every objective: keyed batches and noise, Adam with a cosine, a checkpoint after every epoch.

Step t of a stage takes the images t*M ... (t+1)*M of an endless row of permutations and noise from a generator keyed by
(seed, stage, step): nothing depends on where a run was interrupted or on how many processes share the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bdgd.checks import InputError, require_count, require_number, require_positive
from bdgd.keyed import keyed_generator
from bdgd.training.guard import Guard
from bdgd.training.objective import Objective
from bdgd.training.run import Report, RunFolder, rank
from bdgd.training.steps import Step, adam, captured_step, plain_step, set_rate, training_tensors
from bdgd.training.turns import meanwhile, rest, turn

#: The part of a stage over which the learning rate rises: Adam's first steps have full size whatever the gradient, and a
#: block that starts from trained weights can lose all its active features to them.
WARM_UP = 0.1


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast one stage is trained; the learning rate falls from the first to the last value along a cosine."""

    epochs: int = 20
    batch: int = 16
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-5
    weight_decay: float = 0.0  # of the deterministic weights only: the others have their prior
    second_moment: float = 0.999  # Adam's beta_2
    gradient_norm: float | None = None  # longer gradients are shortened to it
    undo: float | None = None  # of positive losses: an epoch whose loss grows by more than this is repeated more slowly, see `Guard`

    def __post_init__(self) -> None:
        require_count(self.epochs, "epochs")
        require_count(self.batch, "batch")
        for name in ("learning_rate", "last_learning_rate", "weight_decay"):
            object.__setattr__(self, name, require_number(getattr(self, name), name))
        require_positive(self.learning_rate, "learning_rate")
        if not 0 <= self.last_learning_rate <= self.learning_rate:
            most, got = self.learning_rate, self.last_learning_rate
            raise InputError(f"last_learning_rate must lie between 0 and learning_rate ({most:g}), got {got:g}")
        if self.weight_decay < 0:
            raise InputError(f"weight_decay must be at least 0, got {self.weight_decay:g}")
        if not 0 < self.second_moment < 1:
            raise InputError(f"second_moment must lie between 0 and 1, got {self.second_moment:g}")
        if self.gradient_norm is not None:
            require_positive(self.gradient_norm, "gradient_norm")
        if self.undo is not None and require_number(self.undo, "undo") <= 1:
            raise InputError(f"undo must be above 1, a factor by which the loss may grow, got {self.undo:g}")

    def rate(self, progress: float) -> float:
        """The learning rate after a part `progress` of the steps, from 0 to 1."""
        cosine = self.last_learning_rate + (self.learning_rate - self.last_learning_rate) * (1 + math.cos(math.pi * progress)) / 2
        return cosine * min(1.0, (progress + 1e-3) / WARM_UP)


class Trainer:
    """One objective with its optimiser. A stage resets the optimiser and runs the schedule; on a GPU the step is captured once."""

    def __init__(self, objective: Objective, schedule: Schedule, *, seed: int, report: Report | None = None, capture: bool = True):
        self.objective, self.schedule, self.seed, self.report = objective, schedule, seed, report
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.batch = min(schedule.batch, objective.images)
        if self.batch % self.ranks:
            raise InputError(f"the batch of {self.batch} cannot be shared by {self.ranks} processes; make it a multiple")
        self.device = next(objective.parameters()).device
        objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # what its convolutions are fastest with
        self.optimiser = adam(
            objective, learning_rate=schedule.learning_rate, weight_decay=schedule.weight_decay, second_moment=schedule.second_moment
        )
        self.captures = capture and self.device.type == "cuda" and self.ranks == 1
        self._step: Step | None = None
        self._order: tuple[str, int, Tensor] | None = None

    def fit(self, stage: str, run: RunFolder | None = None, slower: float = 1.0) -> None:
        """Train the stage from its first step, or from where the run folder has got to, at `slower` times the learning rate."""
        tensors, guard = training_tensors(self.optimiser), Guard(self.optimiser, self.schedule.undo, slower)
        for name, tensor in tensors.items():
            if not name.startswith("parameter"):
                tensor.zero_()
        done = run.restore(stage, tensors | guard.tensors) if run else 0
        # An epoch ends before the batch that reaches into the next permutation, so epochs may differ by one step.
        ends = [(epoch + 1) * self.objective.images // self.batch for epoch in range(self.schedule.epochs)]
        with turn():
            if done < ends[-1]:
                self._prepare(*self._batch(stage, done))
            with meanwhile():  # trainings in other threads may prepare theirs
                for epoch, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
                    if end > done:
                        self._run_epoch(stage, epoch, range(first, end), ends[-1], guard, run)

    def _run_epoch(self, stage: str, epoch: int, steps: range, all_steps: int, guard: Guard, run: RunFolder | None) -> None:
        """One epoch, again for as long as the guard undoes it, then its record and progress."""
        undone = 0
        guard.begin_epoch()
        while not guard.accepts(loss := self._take_steps(stage, epoch, steps, all_steps, guard.slower), f"{stage}, epoch {epoch + 1}"):
            undone += 1
        record = {"stage": stage, "epoch": epoch + 1, "step": steps.stop, "loss": loss} | ({"undone": undone} if undone else {})
        if run:
            run.append(record)
            run.save_progress(stage, steps.stop, training_tensors(self.optimiser) | guard.tensors)
        if self.report and rank() == 0:
            self.report(record | {"epochs": self.schedule.epochs})

    def _take_steps(self, stage: str, epoch: int, steps: range, all_steps: int, slower: float) -> float:
        """The steps of one epoch at `slower` times the learning rate; their mean loss over all processes."""
        self.objective.begin_epoch(keyed_generator(self.seed, stage, "symmetry", epoch))
        loss = torch.zeros((), device=self.device)
        for step in steps:
            rest()
            set_rate(self.optimiser, slower * self.schedule.rate(step / all_steps))
            loss += self._take(*self._batch(stage, step))
        loss = loss / len(steps)
        if self.ranks > 1:
            dist.all_reduce(loss)
            loss = loss / self.ranks
        return float(loss)

    def _batch(self, stage: str, step: int) -> tuple[Tensor, list[Tensor]]:
        """This process's share of the step's image numbers and noise."""
        epoch, first = divmod(step * self.batch, self.objective.images)
        index = self._permutation(stage, epoch)[first : first + self.batch]
        if len(index) < self.batch:
            index = torch.cat((index, self._permutation(stage, epoch + 1)[: self.batch - len(index)]))
        noise = self.objective.draw_noise(self.batch, keyed_generator(self.seed, stage, "noise", step, device=self.device))
        share = self.batch // self.ranks
        mine = slice(share * rank(), share * (rank() + 1))
        return index[mine], [local[mine] for local in noise]

    def _permutation(self, stage: str, epoch: int) -> Tensor:
        """The order of the images in an epoch, on the device; the last one asked for is kept."""
        if self._order is None or self._order[:2] != (stage, epoch):
            order = torch.randperm(self.objective.images, generator=keyed_generator(self.seed, stage, "order", epoch))
            self._order = (stage, epoch, order.to(self.device))
        return self._order[2]

    def _take(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        """One optimiser step; the loss before it."""
        return self._prepare(index, noise)(index, noise)

    def _prepare(self, index: Tensor, noise: list[Tensor]) -> Step:
        """The step, made once: where it is captured, with images and noise like these."""
        if self._step is None:
            objective = _shared(self.objective) if self.ranks > 1 else self.objective
            self._step = plain_step(objective, self.optimiser, self.schedule.gradient_norm)
            if self.captures:
                self._step = captured_step(self._step, self.optimiser, index, noise)
        return self._step


def _shared(objective: Objective) -> nn.Module:
    """The objective with its gradients averaged over the processes. Some noise levels get none: fine-tuning uses the last one's only."""
    return nn.parallel.DistributedDataParallel(objective, static_graph=True)
