"""The training loop, one for every objective: keyed batches and noise, Adam with a cosine, a checkpoint after every epoch.

Step t of a stage takes the images t*M ... (t+1)*M of an endless row of permutations and noise from a generator keyed by
(seed, stage, step): nothing depends on where a run was interrupted or on how many processes share the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bdgd.checks import Diverged, InputError, require_count, require_number, require_positive
from bdgd.keyed import keyed_generator
from bdgd.training.objective import Objective
from bdgd.training.run import Record, RunFolder, rank
from bdgd.training.turns import alone, meanwhile, rest, turn

#: The part of a stage over which the learning rate rises: Adam's first steps have full size whatever the gradient, and a
#: block that starts from trained weights can lose all its active features to them.
WARM_UP = 0.1

Report = Callable[[Record], None]
Step = Callable[[Tensor, list[Tensor]], Tensor]


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
        if self.device.type == "cuda":
            objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # what its convolutions are fastest with
        self.optimiser = _adam(objective, schedule, self.device)
        self.captures = capture and self.device.type == "cuda" and self.ranks == 1
        self._step: Step | None = None
        self._order: tuple[str, int, Tensor] | None = None

    def fit(self, stage: str, run: RunFolder | None = None, slower: float = 1.0) -> None:
        """Train the stage from its first step, or from where the run folder has got to, at `slower` times the learning rate."""
        tensors = training_tensors(self.optimiser)
        for name, tensor in tensors.items():
            if not name.startswith("parameter"):
                tensor.zero_()
        done = run.restore(stage, tensors) if run else 0
        # An epoch ends before the batch that reaches into the next permutation, so epochs may differ by one step.
        ends = [(epoch + 1) * self.objective.images // self.batch for epoch in range(self.schedule.epochs)]
        with turn():
            if done < ends[-1]:
                self._prepare(*self._batch(stage, done))
            with meanwhile():  # trainings in other threads may prepare theirs
                for epoch, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
                    if end > done:
                        self._run_epoch(stage, epoch, range(first, end), ends[-1], slower, run)

    def _run_epoch(self, stage: str, epoch: int, steps: range, all_steps: int, slower: float, run: RunFolder | None) -> None:
        """The steps of one epoch, then its record and progress."""
        self.objective.begin_epoch(keyed_generator(self.seed, stage, "symmetry", epoch))
        loss = torch.zeros((), device=self.device)
        for step in steps:
            rest()
            self._set_rate(slower * self.schedule.rate(step / all_steps))
            loss += self._take(*self._batch(stage, step))
        record = self._end_epoch(stage, epoch, steps.stop, loss / len(steps))
        if run:
            run.append(record)
            run.save_progress(stage, steps.stop, training_tensors(self.optimiser))
        if self.report and rank() == 0:
            self.report(record | {"epochs": self.schedule.epochs})

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
            self._step = _plain_step(objective, self.optimiser, self.schedule.gradient_norm)
            if self.captures:
                self._step = _captured_step(self._step, self.optimiser, index, noise)
        return self._step

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # the captured step reads this tensor
            else:
                group["lr"] = rate

    def _end_epoch(self, stage: str, epoch: int, step: int, loss: Tensor) -> Record:
        """The record of an epoch with its mean loss over all processes, once it is known to be good."""
        if self.ranks > 1:
            dist.all_reduce(loss)
            loss = loss / self.ranks
        mean = float(loss)
        if not math.isfinite(mean) or not all(bool(parameter.isfinite().all()) for parameter in self.objective.parameters()):
            raise Diverged(
                f"training diverged in {stage}, epoch {epoch + 1}: the loss ({mean:g}) or a weight is not finite; lower the learning rate"
            )
        return {"stage": stage, "epoch": epoch + 1, "step": step, "loss": mean}


def _shared(objective: Objective) -> nn.Module:
    """The objective with its gradients averaged over the processes. Some noise levels get none: fine-tuning uses the last one's only."""
    return nn.parallel.DistributedDataParallel(objective, static_graph=True)


def _adam(objective: Objective, schedule: Schedule, device: torch.device) -> torch.optim.Adam:
    """Adam with its state in place from the start, so that it can be restored and captured."""
    inferred = set(objective.inferred())
    plain = [parameter for parameter in objective.parameters() if parameter not in inferred]
    random = [parameter for parameter in objective.parameters() if parameter in inferred]
    groups = [{"params": plain, "weight_decay": schedule.weight_decay}, {"params": random, "weight_decay": 0.0}]
    on_gpu = device.type == "cuda"
    rate = torch.tensor(schedule.learning_rate, device=device) if on_gpu else schedule.learning_rate
    groups = [group for group in groups if group["params"]]
    optimiser = torch.optim.Adam(groups, rate, (0.9, schedule.second_moment), capturable=on_gpu, fused=on_gpu or None)
    for parameter in plain + random:
        optimiser.state[parameter] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimiser


def training_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything that a step changes, by name: the parameters and the optimiser's state."""
    tensors: dict[str, Tensor] = {}
    for number, parameter in enumerate(p for group in optimiser.param_groups for p in group["params"]):
        tensors[f"parameter.{number}"] = parameter.detach()
        tensors |= {f"{name}.{number}": value for name, value in optimiser.state[parameter].items()}
    return tensors


def _plain_step(objective: nn.Module, optimiser: torch.optim.Optimizer, gradient_norm: float | None) -> Step:
    def step(index: Tensor, noise: list[Tensor]) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = objective(index, noise)
        loss.backward()
        if gradient_norm is not None:
            nn.utils.clip_grad_norm_(objective.parameters(), gradient_norm)
        optimiser.step()
        return loss.detach()

    return step


def _captured_step(step: Step, optimiser: torch.optim.Optimizer, index: Tensor, noise: list[Tensor]) -> Step:
    """The step as one CUDA graph: small batches are bound by the time to launch kernels one by one."""
    index, noise = index.clone(), [local.clone() for local in noise]
    tensors = training_tensors(optimiser)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a few real steps first, as the capture needs them, then back to where we were
        for _ in range(3):
            step(index, noise)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with alone(), torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a capture bears nothing beside it, see `turns`
        loss = step(index, noise)
    for name, tensor in tensors.items():
        tensor.copy_(before[name])

    def replay(new_index: Tensor, new_noise: list[Tensor]) -> Tensor:
        index.copy_(new_index)
        for mine, new in zip(noise, new_noise, strict=True):
            mine.copy_(new)
        graph.replay()
        return loss

    return replay
