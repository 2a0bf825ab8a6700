"""What training minimises, in one visible formula, and the three objectives that use it.

    L = -(N / M) sum_i log p(x_i | y_i, w) + kl_weight * KL(q(w) || p(w)),    w ~ q

over a mini-batch of M of N images, with log p summed over all P pixels. `kl_weight` 1 is the paper's formula; the authors'
released code counts log sigma^2 once per image instead of once per pixel, which is the same objective with kl_weight = P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bdgd.backends import fast_convolutions
from bdgd.data import Scans
from bdgd.models import DeepGradientDescent, GradientBlock, LearnedPrimalDual
from bdgd.operators import Symmetry


def log_likelihood(mean: Tensor, truth: Tensor, log_noise: Tensor) -> Tensor:
    """log N(truth; mean, sigma^2 I) summed over everything, sigma = exp(log_noise)."""
    squares = ((truth - mean) ** 2).sum() * torch.exp(-2 * log_noise)
    return -0.5 * squares - truth.numel() * (log_noise + 0.5 * math.log(2 * math.pi))


def negative_elbo(mean: Tensor, truth: Tensor, log_noise: Tensor, kl: Tensor, images: int, kl_weight: float) -> Tensor:
    """L of the module's docstring for a batch (M, 1, H, W) out of `images` = N."""
    return -(images / len(truth)) * log_likelihood(mean, truth, log_noise) + kl_weight * kl


class Objective(nn.Module):
    """What the loop needs: the loss of some of the N training images under given noise, and that noise."""

    def __init__(self, images: int):
        super().__init__()
        self.images = images

    def begin_epoch(self, generator: torch.Generator) -> None:
        """What changes from epoch to epoch; here, nothing."""

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        """The noise of one step, each tensor with one row per image of the batch; here, none."""
        return []

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        """The loss of the images with the numbers `index` (M,), a scalar."""
        raise NotImplementedError

    def inferred(self) -> Iterator[nn.Parameter]:
        """The parameters that describe a posterior or the noise: they have their prior, so weight decay leaves them alone."""
        for block in self.modules():
            if isinstance(block, GradientBlock):
                if block.last.random:
                    yield from (parameter for name, parameter in block.last.named_parameters() if name != "bias")
                if isinstance(block.log_noise, nn.Parameter):
                    yield block.log_noise


class BlockObjective(Objective):
    """One block of the cascade: `x` and `gradient` (N, 1, H, W) are its inputs for all training images, held on the device.

    The loss is divided by N * P, so that learning rates and printed values do not depend on the size of the set. With more
    than one of the geometry's `symmetries`, each epoch sees all images under one of them.
    """

    def __init__(self, block: GradientBlock, x: Tensor, gradient: Tensor, truth: Tensor, kl_weight: float, symmetries: list[Symmetry]):
        super().__init__(len(truth))
        self.block, self.kl_weight = block, kl_weight
        self.symmetries, self.originals = symmetries, (x, gradient, truth)
        # A captured step reads these three where they are, so they are filled and never replaced.
        self.x, self.gradient, self.truth = (t.clone() for t in self.originals) if len(symmetries) > 1 else self.originals

    def begin_epoch(self, generator: torch.Generator) -> None:
        """Choose the symmetry of this epoch."""
        if len(self.symmetries) > 1:
            symmetry = self.symmetries[int(torch.randint(len(self.symmetries), (), generator=generator))]
            for shown, original in zip((self.x, self.gradient, self.truth), self.originals, strict=True):
                shown.copy_(symmetry(original))

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        with fast_convolutions(self.truth.device):
            mean = self.block(self.x[index], self.gradient[index], noise[0])
        loss = negative_elbo(mean.float(), self.truth[index], _noise_level(self.block), self.block.last.kl(), self.images, self.kl_weight)
        return loss / self.truth.numel()

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        height, width = self.truth.shape[-2:]
        return [self.block.last.local_noise(batch, (height, width), generator)]


class CascadeObjective(Objective):
    """The whole cascade through the operator: KL summed over the blocks, the last block's noise level."""

    def __init__(self, model: DeepGradientDescent, scans: Scans, start: Tensor, kl_weight: float):
        super().__init__(len(scans))
        assert scans.images is not None
        self.model, self.kl_weight = model, kl_weight
        self.start, self.sinograms, self.truth = start, scans.sinograms, scans.images

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        with fast_convolutions(self.truth.device):
            mean = self.model(self.sinograms[index], self.start[index], noise)
        blocks = self.model.blocks
        kl = torch.stack([block.last.kl() for block in blocks]).sum()
        loss = negative_elbo(mean.float(), self.truth[index], _noise_level(blocks[-1]), kl, self.images, self.kl_weight)
        return loss / self.truth.numel()

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        height, width = self.truth.shape[-2:]
        return [block.last.local_noise(batch, (height, width), generator) for block in self.model.blocks]


class DirectObjective(Objective):
    """A model with point weights and one output, such as learned primal-dual: half the mean squared error."""

    def __init__(self, model: LearnedPrimalDual, scans: Scans, start: Tensor):
        super().__init__(len(scans))
        assert scans.images is not None
        self.model = model
        self.start, self.sinograms, self.truth = start, scans.sinograms, scans.images

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        with fast_convolutions(self.truth.device, round_images=True):
            mean = self.model(self.sinograms[index], self.start[index])
        return 0.5 * ((mean.float() - self.truth[index]) ** 2).mean()


def _noise_level(block: GradientBlock) -> Tensor:
    """log sigma_k where it is trained, else 0: with sigma fixed at 1 the likelihood is the squared error."""
    return block.log_noise if block.last.trains_noise_level else block.log_noise.new_zeros(())
