"""How fast the inner loops are, each beside what others offer, in one run: times in seconds, the median of several repeats.

A peer that is not installed is said to be missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent, GradientBlock
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.training.loop import Schedule, Trainer
from bdgd.training.objective import BlockObjective, negative_elbo


@dataclass(frozen=True)
class Timing:
    """One measurement: what was done by whom, how often per second, and how many times faster than the named reference."""

    what: str
    by: str
    per_second: float | None  # images; None where the peer is missing
    ratio: float | None = None
    against: str = ""


def timed(job: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    """The median time of a job after one run that does not count."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        job()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def projector_timings(device: torch.device, cases: list[tuple[int, int, int]]) -> Iterator[Timing]:
    """Forward and adjoint of every strategy for (pixels on a side, views, images), beside ASTRA and scikit-image on the CPU."""
    for size, views, batch in cases:
        geometry = ParallelBeam.sparse(image_size=size, views=views)
        case = f"{size}², {views} views, {batch} images"
        peers = _astra(geometry, size), _skimage(geometry, size)
        for strategy in ("matrix", "matrix-free"):
            A = RayTransform(geometry, device, strategy=strategy)
            x = torch.rand(batch, *A.domain_shape, device=device)
            y = A(x)
            for direction, job in (("forward", partial(A, x)), ("adjoint", partial(A.T, y))):
                rate = batch / timed(job, device, 3)
                reference = peers[0][direction] if peers[0] else None
                yield Timing(f"{direction}, {case}", f"bdgd {strategy}", rate, rate / reference if reference else None, "ASTRA on the CPU")
        for name, peer in zip(("ASTRA linear, CPU", "scikit-image radon, CPU"), peers, strict=True):
            for direction in ("forward", "adjoint"):
                yield Timing(f"{direction}, {case}", name, peer.get(direction) if peer else None)


def training_timings(device: torch.device, batches: list[int], images: int = 512, size: int = 128) -> Iterator[Timing]:
    """Images per second of a training step, beside a plain eager loop as the authors' code writes it, on the same data."""
    for batch in batches:
        generator = torch.Generator(device).manual_seed(0)
        x, gradient, truth = (torch.rand(images, 1, size, size, device=device, generator=generator) for _ in range(3))
        plain = images / timed(partial(_plain_epoch, x, gradient, truth, batch), device, 2)
        objective = BlockObjective(_fresh_block(device), x, gradient, truth, 1.0, [])
        trainer = Trainer(objective, Schedule(epochs=1, batch=batch), seed=0)
        ours = images / timed(partial(trainer.fit, "bench"), device, 2)
        yield Timing(f"training step, batch {batch}", "plain eager loop", plain)
        yield Timing(f"training step, batch {batch}", "bdgd", ours, ours / plain, "the plain loop")


def sampling_timings(device: torch.device, images: int, draws: int = 100, blocks: int = 10) -> Iterator[Timing]:
    """Draws of whole images per second through an untrained cascade of the paper's size."""
    A = RayTransform(ParallelBeam.sparse(), device)
    x = random_ellipses(images, 128, generator=torch.Generator().manual_seed(0)).to(device)
    y = simulate(A, x, GaussianNoise(0.01), generator=torch.Generator().manual_seed(0)).sinograms
    model = DeepGradientDescent(A, blocks)
    for count in (draws // 4, draws):
        seconds = timed(partial(reconstruct, model, y, count), device, 1)
        yield Timing(f"{count} draws x {blocks} blocks, {images} images ({seconds:.2f} s)", "bdgd", images * count / seconds)


def _fresh_block(device: torch.device) -> GradientBlock:
    block = GradientBlock("mean_field")
    block.reset(keyed_generator(0))
    return block.to(device)


def _plain_epoch(x: Tensor, gradient: Tensor, truth: Tensor, batch: int) -> None:
    """The same objective, one eager float32 step after the other: the baseline, and no part of the product."""
    block = _fresh_block(x.device)
    optimiser = torch.optim.Adam(block.parameters(), lr=1e-3)
    for index in torch.randperm(len(x)).split(batch):
        noise = torch.randn(len(index), 1, *x.shape[2:], device=x.device)
        mean = block(x[index], gradient[index], noise)
        loss = negative_elbo(mean, truth[index], block.log_noise, block.last.kl(), len(x), 1.0) / truth.numel()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _astra(geometry: ParallelBeam, size: int) -> dict[str, float] | None:
    """ASTRA's 'linear' projector on the CPU, image by image, as its own interface offers it."""
    try:
        import astra
    except ImportError:
        return None
    projection = astra.create_proj_geom("parallel", geometry.detector_spacing, geometry.detectors, np.array(geometry.angles))
    projector = astra.create_projector("linear", projection, astra.create_vol_geom(size, size))
    image = np.random.default_rng(0).random((size, size), np.float32)
    number, sinogram = astra.create_sino(image, projector)
    astra.data2d.delete(number)

    def forward() -> None:
        astra.data2d.delete(astra.create_sino(image, projector)[0])

    def adjoint() -> None:
        astra.data2d.delete(astra.create_backprojection(sinogram, projector)[0])

    cpu = torch.device("cpu")
    return {"forward": 1 / timed(forward, cpu, 2), "adjoint": 1 / timed(adjoint, cpu, 2)}


def _skimage(geometry: ParallelBeam, size: int) -> dict[str, float] | None:
    try:
        from skimage.transform import iradon, radon
    except ImportError:
        return None
    degrees, image = np.rad2deg(geometry.angles), np.random.default_rng(0).random((size, size))
    sinogram, cpu = radon(image, degrees, circle=False), torch.device("cpu")
    return {
        "forward": 1 / timed(lambda: radon(image, degrees, circle=False), cpu, 1),
        "adjoint": 1 / timed(lambda: iradon(sinogram, degrees, filter_name=None, circle=False), cpu, 1),
    }
