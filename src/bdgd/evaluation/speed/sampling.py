"""Sampling: draws of whole images through an untrained cascade of the paper's size, whose time does not depend on its weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.evaluation.speed.measuring import Row, peak_memory, timed
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent
from bdgd.operators import ParallelBeam, RayTransform


def sampling_row(device: torch.device, images: int, draws: int = 100, blocks: int = 10, size: int = 128) -> Row:
    """Seconds for so many draws of so many images, and the bytes at the peak beyond the sinograms and the model."""
    model, y = cascade(device, images, blocks, size)
    job = partial(reconstruct, model, y, draws)
    seconds = timed(job, device, seconds=1.0, most=3)
    with peak_memory(device) as peak:
        if device.type == "cuda":  # a CPU does not tell, so it need not work again
            job()
    return {"images": images, "draws": draws, "blocks": blocks, "size": size, "seconds": seconds, "memory": peak.bytes}


def cascade(device: torch.device, images: int, blocks: int, size: int = 128) -> tuple[DeepGradientDescent, Tensor]:
    """A fresh cascade and sinograms of ellipse images to feed it with."""
    A = RayTransform(ParallelBeam.sparse(image_size=size), device)
    x = random_ellipses(images, size, generator=keyed_generator(0, "bench images"), device=device)
    y = simulate(A, x, GaussianNoise(0.01), generator=keyed_generator(0, "bench noise")).sinograms
    return DeepGradientDescent(A, blocks), y
