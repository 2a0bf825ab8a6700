"""A training step of one block beside a plain eager loop, written as the authors' code is: rates, memory, and both loss curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.evaluation.speed.measuring import Row, peak_memory, timed
from bdgd.evaluation.timing import Job
from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent, GradientBlock
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.training.loop import Schedule, Trainer
from bdgd.training.objective import BlockObjective, negative_elbo
from bdgd.training.steps import set_rate

SEED = 0
Data = tuple[Tensor, Tensor, Tensor]


def training_data(device: torch.device, images: int, size: int = 128) -> Data:
    """What the first block of the cascade is trained on: FBP of ellipse images, the misfit's gradient there, the truth."""
    A = RayTransform(ParallelBeam.sparse(image_size=size), device)
    truth = random_ellipses(images, size, generator=keyed_generator(SEED, "bench images"), device=device)
    y = simulate(A, truth, GaussianNoise(0.01), generator=keyed_generator(SEED, "bench noise")).sinograms
    state = DeepGradientDescent(A, 1, gradient_scale=61.0).begin(y)
    return state.x.contiguous(), state.gradient.contiguous(), truth


def training_rows(device: torch.device, data: Data, batches: Sequence[int]) -> Iterator[Row]:
    """Images per second and bytes of an epoch, for each batch ours and the plain loop's."""

    def plain(batch: int) -> Job:
        return PlainLoop(data, batch).epoch

    def ours(batch: int) -> Job:
        return partial(_trainer(data, batch, epochs=1).fit, "bench")

    for batch in batches:
        for by, make in (("plain eager loop", plain), ("bdgd", ours)):
            yield {"batch": batch, "by": by} | _epoch(partial(make, batch), device, len(data[0]))
    for count in (2, 3) if device.type == "cuda" else ():  # a CPU is full already
        job = partial(_at_once, data, min(batches), count, device)
        yield {"batch": min(batches), "by": f"bdgd, {count} trainings at once"} | _epoch(job, device, count * len(data[0]))


def loss_curves(data: Data, batch: int, steps: int = 50) -> Row:
    """The losses of both loops from the same weights on the same batches with the same noise, and how far they are apart.

    The difference is the largest of any step, relative to the largest loss in size: bfloat16 has 8 bits, which is 0.4 %.
    """
    ours, plain = _trainer(data, batch, epochs=1), PlainLoop(data, batch)
    curves: dict[str, list[float]] = {"bdgd": [], "plain": []}
    for step in range(steps):
        rate = ours.schedule.rate(step / steps)
        index, noise = ours._batch("curve", step)  # what the step itself would take, for both
        set_rate(ours.optimiser, rate)
        curves["bdgd"].append(float(ours._take(index, noise)))
        plain.optimiser.param_groups[0]["lr"] = rate
        curves["plain"].append(float(plain.step(index, noise[0])))
    apart = max(abs(a - b) for a, b in zip(*curves.values(), strict=True))
    return {"batch": batch, "steps": steps, **curves, "difference": apart / max(map(abs, curves["plain"]))}


class PlainLoop:
    """One eager float32 step after the other (TF32 in a GPU's convolutions, PyTorch's default): the baseline, no part of the product."""

    def __init__(self, data: Data, batch: int):
        (self.x, self.gradient, self.truth), self.batch = data, batch
        self.block = fresh_block(self.x.device)
        self.optimiser = torch.optim.Adam(self.block.parameters(), lr=1e-3)

    def epoch(self) -> None:
        for index in torch.randperm(len(self.x), device=self.x.device).split(self.batch):
            self.step(index, torch.randn(len(index), 1, *self.x.shape[2:], device=self.x.device))

    def step(self, index: Tensor, noise: Tensor) -> Tensor:
        mean = self.block(self.x[index], self.gradient[index], noise)
        kl = self.block.last.kl()
        loss = negative_elbo(mean, self.truth[index], self.block.log_noise, kl, len(self.x), 1.0) / self.truth.numel()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.detach()


def fresh_block(device: torch.device) -> GradientBlock:
    """A mean-field block with the weights that both loops start from."""
    block = GradientBlock("mean_field")
    block.reset(keyed_generator(SEED, "bench block"))
    return block.to(device)


def _trainer(data: Data, batch: int, epochs: int) -> Trainer:
    objective = BlockObjective(fresh_block(data[0].device), *data, 1.0, [])
    return Trainer(objective, Schedule(epochs=epochs, batch=batch), seed=SEED)


def _at_once(data: Data, batch: int, count: int, device: torch.device) -> Job:
    """An epoch of several trainings, each in a thread with a stream of its own."""
    trainers = [_trainer(data, batch, epochs=1) for _ in range(count)]
    streams = [torch.cuda.Stream(device, priority=-1) for _ in range(count)]
    pool = ThreadPoolExecutor(count)

    def train(trainer: Trainer, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            trainer.fit("bench")

    def job() -> None:
        for _ in pool.map(train, trainers, streams):
            pass

    return job


def _epoch(make: Callable[[], Job], device: torch.device, images: int) -> Row:
    """The rate of a job that goes through all images, and its memory beyond the images: that of a captured step is taken at its capture."""
    with peak_memory(device) as peak:
        job = make()
        job()
    return {"rate": images / timed(job, device, seconds=1.0, most=3), "memory": peak.bytes}
