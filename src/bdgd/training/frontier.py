"""Where the images of a set are on their way through a cascade, and how good they are there: what every training stands on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch
from bdgd.data import Scans
from bdgd.metrics import mean_psnr
from bdgd.models import DeepGradientDescent, GradientBlock, Reconstructor, State
from bdgd.training.objective import log_likelihood
from bdgd.training.run import Record

#: Images that are pushed through a block together.
BATCH = 128


@dataclass(frozen=True)
class Frontier:
    """Where all images of a set are on their way through the cascade, for sinograms y of known truth, all divided by `unit`."""

    y: Tensor
    truth: Tensor
    state: State
    unit: float = 1.0

    @classmethod
    @torch.no_grad()
    def at_start(cls, model: DeepGradientDescent, scans: Scans) -> Frontier:
        """At x_0 of the scans, on the model's device."""
        scans = prepared(model, scans)
        assert scans.images is not None
        states = [model.begin(part) for part in scans.sinograms.split(BATCH)]
        state = State(*(torch.cat(tensors) for tensors in zip(*states, strict=True)))
        return cls(scans.sinograms, scans.images, state, model.value_scale)

    @torch.no_grad()
    def behind(self, model: DeepGradientDescent, block: GradientBlock, generator: torch.Generator) -> State:
        """The state after a block, with one draw of its weights per image."""
        weights = block.last.draw(len(self.y), generator).split(BATCH)
        parts = zip(*(tensor.split(BATCH) for tensor in self.state), self.y.split(BATCH), weights, strict=True)
        states = []
        for x, gradient, residual_norm, y, drawn in parts:
            proposed = block.update(x, block.features(x, gradient), drawn)
            states.append(model.settle(State(x, gradient, residual_norm), proposed, y))
        return State(*(torch.cat(tensors) for tensors in zip(*states, strict=True)))

    def move(self, state: State) -> None:
        """Go there, in the memory where the state is: a captured step reads it in place."""
        for mine, new in zip(self.state, state, strict=True):
            mine.copy_(new)

    def error(self) -> float:
        """Root mean square error over all pixels of all images, in the unit that the network works in."""
        return float(root_mean_square(self.state.x - self.truth))

    def score(self, block: GradientBlock, *, estimated: bool = False) -> Record:
        """PSNR and NLL per pixel behind a block, of one draw per image.

        First sets the noise level to the error here, where the block does not train it, or in any case if `estimated`.
        """
        return score(self.state.x, self.truth, block.log_noise, self.unit, estimated=estimated or not block.last.trains_noise_level)


@torch.no_grad()
def score(images: Tensor, truth: Tensor, log_noise: Tensor, unit: float, *, estimated: bool) -> Record:
    """PSNR and NLL per pixel of images (N, 1, H, W) that were divided by `unit`, and the noise level before that.

    estimated: first set the noise level to their error.
    """
    if estimated:
        log_noise.copy_(root_mean_square(images - truth).log())
    return {
        "validation_psnr": mean_psnr(images, truth),
        "validation_nll": float(-log_likelihood(images, truth, log_noise) / truth.numel()),
        "noise_level": unit * float(log_noise.exp()),
    }


def root_mean_square(errors: Tensor) -> Tensor:
    """Over all pixels of all images (N, 1, H, W), a scalar."""
    return (errors**2).mean().sqrt()


def require_cascade(model: Reconstructor) -> None:
    """Raise for a model without blocks."""
    if not isinstance(model, DeepGradientDescent):
        raise InputError(f"this is for a DeepGradientDescent, got {type(model).__name__}; learned primal-dual has bdgd.train_directly")


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
    geometry = model.geometry
    if scans.geometry is not None and geometry is not None and scans.geometry != geometry:
        raise InputError("the scans were made with another geometry than the model's; build the model on RayTransform(scans.geometry)")
    if model.value_scale == 1.0:
        return scans
    return replace(scans, sinograms=scans.sinograms / model.value_scale, images=scans.images / model.value_scale)
