"""Means with error bars and their truth, as the metrics see them, shown image by image or all at once."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from bdgd.metrics import Intervals

Case = tuple[Tensor, Tensor, Tensor]


class Gaussian:
    """A posterior as the metrics of one image see one."""

    def __init__(self, mean: Tensor, std: Tensor):
        self.mean, self.std = mean, std

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        half = NormalDist().inv_cdf(0.5 + level / 2) * self.std
        return self.mean - half, self.mean + half


def heavy_case(batch: int = 4, size: int = 60, seed: int = 0) -> Case:
    """Mean, std and truth as reconstructions have them: std over decades, errors with heavy tails, some pixels exact."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, 1, size, size)
    mean = torch.rand(shape, generator=generator)
    std = 10 ** (-4 + 2.5 * torch.rand(shape, generator=generator))
    mixed = std * 10 ** (0.5 * torch.randn(shape, generator=generator))
    truth = mean + mixed * torch.randn(shape, generator=generator)
    exact = torch.rand(shape, generator=generator) < 0.2
    return mean, std, mean.where(exact, truth)


def some_mask(shape: torch.Size | tuple[int, ...], seed: int = 9) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.3


def streamed(metric: Any, case: Case, mask: Tensor | None = None, batches: tuple[int, ...] = (1, 3)) -> Any:
    """The metric after it has seen the images batch by batch."""
    masks = [None] * len(batches) if mask is None else mask.split(batches)
    for mean, std, truth, inside in zip(*(part.split(batches) for part in case), masks, strict=True):
        spread = Gaussian(mean, std).interval(metric.level) if isinstance(metric, Intervals) else std
        metric.add(mean, spread, truth, inside)
    return metric
