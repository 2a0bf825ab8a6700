"""Bayesian deep gradient descent: K blocks that each turn the current image and the data-misfit gradient into a better image.

    x_0 = initial(A, y),    x_k = relu(x_{k-1} + f_k(x_{k-1}, gradient of D(y, A x_{k-1}))),    k = 1 ... K

The last convolution of f_k is Bayesian (`last_layers`); everything before it has point weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdgd.checks import InputError, require_count
from bdgd.classical import fbp
from bdgd.keyed import keyed_generator, own_random_state
from bdgd.models import fused
from bdgd.models.last_layers import fresh_parameters, make_last_layer, reset_convolution
from bdgd.models.misfit import make_misfit
from bdgd.models.reconstructor import Reconstructor
from bdgd.models.scale_head import joined_clues
from bdgd.operators import LinearOperator

Initial = Callable[[LinearOperator, Tensor], Tensor]
#: Logarithm of the noise level of a block that nothing is known of; it moves only about the learning rate per step of training.
LOG_NOISE_INIT = -3.0
#: A block's update is undone for an image whose residual norm it raises to more than this times the least so far. Residuals shrink
#: from block to block and then stay level within a few percent; where one grows, the image has left what the block was trained on.
MOST_GROWTH = 2.0


#: Which hidden layer of a block reads the output of hidden layer n, and from which of its channels on; the last layer reads the sixth.
LISTENERS = {0: (1, 0), 1: (4, 0), 2: (3, 0), 3: (4, 32), 4: (5, 0)}


class State(NamedTuple):
    """Images on their way through the cascade: x and the misfit's gradient there (B, 1, H, W), the least residual norm so far (B,)."""

    x: Tensor
    gradient: Tensor
    residual_norm: Tensor


class GradientBlock(nn.Module):
    """One update (paper, Fig. 1): two branches 1-16-32 for image and gradient, merged 64-32-16, last layer 16-1; 3 x 3 throughout.

    `log_noise` is log sigma_k of the likelihood N(x_k, sigma_k^2): a parameter where the last layer trains it,
    else a buffer that is NaN until it has been estimated.
    """

    log_noise: Tensor

    def __init__(self, last_layer: str = "mean_field"):
        super().__init__()
        with own_random_state():
            self.image_branch = nn.ModuleList((nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)))
            self.gradient_branch = nn.ModuleList((nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)))
            self.merge = nn.ModuleList((nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)))
        self.last = make_last_layer(last_layer, 16)
        if self.last.trains_noise_level:
            self.log_noise = nn.Parameter(torch.tensor(LOG_NOISE_INIT))
        else:
            self.register_buffer("log_noise", torch.tensor(float("nan")))

    def reset(self, generator: torch.Generator) -> None:
        """Initial values, drawn from a CPU generator so that they are the same on every device."""
        for layer in self.hidden:
            reset_convolution(layer, generator)
        self.last.reset(generator)
        with torch.no_grad():
            self.log_noise.fill_(LOG_NOISE_INIT if self.last.trains_noise_level else float("nan"))

    @property
    def hidden(self) -> tuple[nn.Conv2d, ...]:
        """The six layers before the last: two of the image branch, two of the gradient branch, two that merge them."""
        return (*self.image_branch, *self.gradient_branch, *self.merge)

    def features(self, x: Tensor, gradient: Tensor) -> Tensor:
        """What the last layer sees: (B, 16, H, W) from the image and the gradient (B, 1, H, W)."""
        if fused.usable(x):
            return fused.features(x, gradient, [parameter for layer in self.hidden for parameter in layer.parameters()])
        for output in self.activations(x, gradient):
            last = output  # the one before is dropped, and its memory used again
        return last

    def activations(self, x: Tensor, gradient: Tensor) -> Iterator[Tensor]:
        """The outputs of the hidden layers one after the other, each (B, C, H, W).

        Autocast leaves the first layers alone: an image with the 8 bits of bfloat16 has rounding in it that differs from draw to draw,
        and would count as uncertainty. ReLUs work in place: every tensor less is memory that need not be fetched.
        """
        branches = []
        for branch, signal in ((self.image_branch, x), (self.gradient_branch, gradient)):
            with torch.autocast(x.device.type, enabled=False):
                signal = F.relu_(branch[0](signal))
            yield signal
            branches.append(F.relu_(branch[1](signal)))
            yield branches[-1]
        signal = torch.cat(branches, 1)
        branches.clear()
        for layer in self.merge:
            signal = F.relu_(layer(signal))
            yield signal

    @torch.no_grad()
    def revive(self, x: Tensor, gradient: Tensor, generator: torch.Generator) -> int:
        """Replace channels that are zero everywhere in these images by fresh ones that nothing listens to yet; how many there were.

        The block computes the same as before, but can use all its channels again. It also forgets the weights of dead
        features: their posterior has gone back to the prior, whose draws would drown the image if such a feature woke up.
        """
        count = 0
        for n, output in enumerate(list(self.activations(x, gradient))):
            dead = (output.amax((0, 2, 3)) <= 0).nonzero()[:, 0]
            for parameter, fresh in zip(self.hidden[n].parameters(), fresh_parameters(self.hidden[n], generator), strict=True):
                parameter[dead] = fresh.to(parameter.device)[dead]
            if n in LISTENERS:
                listener, first = LISTENERS[n]
                self.hidden[listener].weight[:, first + dead] = 0
            else:
                self.last.forget(dead)
            count += len(dead)
        return count

    def forward(self, x: Tensor, gradient: Tensor, noise: Tensor) -> Tensor:
        """The next image (B, 1, H, W) with local noise, as in training."""
        return F.relu(x + self.last(self.features(x, gradient), noise))

    def update(self, x: Tensor, features: Tensor, weights: Tensor) -> Tensor:
        """The next image with drawn weights (1, 16, 3, 3), or (B, 16, 3, 3) for each image its own."""
        return F.relu(x + self.last.convolve(features, weights))


class DeepGradientDescent(Reconstructor):
    """A cascade of `blocks` gradient blocks on the operator `A`.

    last_layer: "point" (DGD), "mean_field", "dropout" or "full_covariance". initial: x_0 from (A, y). gradient_scale: see
    `misfit`. `A` may be any object with domain_shape, range_shape, A(x) and A.T(y); it works on the model's device.
    The weights start from `seed`. value_scale: the image value that is 1 inside, see `Reconstructor`; `start`, `begin`, `settle`
    and `forward` are inside. attenuation belongs to sinograms as they come in.
    """

    def __init__(
        self,
        A: LinearOperator,
        blocks: int = 10,
        last_layer: str = "mean_field",
        *,
        initial: Initial = fbp,
        gradient_scale: float = 80.0,
        misfit: str = "gaussian",
        attenuation: float = 1.0,
        value_scale: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(A, value_scale=value_scale)
        if not callable(initial):
            raise InputError(f"initial must be a function of (A, y) that gives x_0, such as bdgd.fbp, got {initial!r}")
        self.initial, self.last_layer = initial, last_layer
        if misfit == "gaussian" and attenuation != 1.0:
            raise InputError(f"attenuation is for misfit='poisson', got attenuation={attenuation:g} with 'gaussian'; leave one of them out")
        self.misfit = make_misfit(A, misfit, gradient_scale, attenuation * self.value_scale)
        modules = nn.ModuleList(GradientBlock(last_layer).float() for _ in range(require_count(blocks, "blocks")))
        self.blocks = cast(Sequence[GradientBlock], modules)  # what type checkers should see in it
        for k, block in enumerate(self.blocks):
            block.reset(keyed_generator(seed, "block", k))
        self.to(getattr(A, "device", "cpu"), torch.float32)

    def _use_operator(self, A: LinearOperator) -> None:
        super()._use_operator(A)
        self.misfit = replace(self.misfit, A=A)

    @property
    def random(self) -> bool:
        """Whether two draws differ."""
        return self.blocks[0].last.random

    @property
    def noise_level(self) -> Tensor:
        """sigma_K of the last block; NaN before training."""
        return self.noise_level_after(len(self.blocks))

    def noise_level_after(self, block: int) -> Tensor:
        """sigma_k of a block, counted from 1, in the unit of the images."""
        return self.value_scale * self.blocks[block - 1].log_noise.detach().exp()

    def start(self, y: Tensor) -> Tensor:
        """x_0 (B, 1, H, W) of sinograms y (B, 1, V, D)."""
        with torch.autocast(y.device.type, enabled=False):  # see `misfit`
            return self.initial(self.A, y)

    def begin(self, y: Tensor) -> State:
        """The state at x_0."""
        return self._look(self.start(y), y)

    def settle(self, state: State, proposed: Tensor, y: Tensor) -> State:
        """The state at the images that a block proposes, except where these fit the data worse: there it stays as it was.

        The residual is needed for the next gradient anyway, so this guard against divergence costs nothing.
        """
        new = self._look(proposed, y)
        keep = new.residual_norm <= MOST_GROWTH * state.residual_norm  # (B,), false where it is NaN
        pixels = keep[:, None, None, None]
        return State(
            torch.where(pixels, new.x, state.x),
            torch.where(pixels, new.gradient, state.gradient),
            torch.where(keep, torch.minimum(new.residual_norm, state.residual_norm), state.residual_norm),
        )

    def _look(self, x: Tensor, y: Tensor) -> State:
        residual = self.misfit.residual(x, y)
        return State(x, self.misfit.gradient_of(residual), residual.flatten(1).norm(dim=1))

    def forward(self, y: Tensor, x: Tensor, noise: list[Tensor]) -> Tensor:
        """x_K from x_0 with local noise per block: what joint fine-tuning differentiates."""
        for block, local in zip(self.blocks, noise, strict=True):
            x = block(x, self.misfit.gradient(x, y), local).to(y.dtype)
        return x

    def clues(self, y: Tensor, mean: Tensor, epistemic: Tensor) -> Tensor:
        """What the scale head sees (B, C, H, W): the mean of the draws, their variance, x_0, gradient and last features at the mean."""
        residual = self.misfit.residual(mean, y)
        gradient = self.misfit.gradient_of(residual)
        level = residual.flatten(1).square().mean(1).sqrt() / self.misfit.norm
        return joined_clues(mean, self.start(y), gradient, epistemic, level, self.blocks[-1].features(mean, gradient))

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments beside the operator, as plain values."""
        misfit = self.misfit.to_dict()
        return {
            "blocks": len(self.blocks),
            "last_layer": self.last_layer,
            "gradient_scale": misfit["scale"],
            "misfit": misfit["kind"],
            "attenuation": misfit["attenuation"] / self.value_scale if "attenuation" in misfit else 1.0,
            "value_scale": self.value_scale,
        }
