"""The scale head: a small convolutional net that says, pixel by pixel, how large the error of the posterior mean is likely to be.

It sees what is known at inference - the mean, x_0 and the misfit's gradient against it, the spread of the draws, the last
block's features - and gives a `ScaleMixture` of the error. It is trained after the mean is frozen (`training/scale.py`), on
images that the cascade was not trained on: residuals on the training images are too small to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdgd.checks import require_count
from bdgd.keyed import keyed_generator, own_random_state
from bdgd.models.scale_mixture import ScaleMixture

#: The least standard deviation of a component: the likelihood of a pixel that is exact would be unbounded without it.
FLOOR = 1e-4
#: The largest: an image's values are of order 1.
CEILING = 10.0
#: How far standardised clues may go: what never occurred in training must not drive the head to arbitrary numbers.
MOST = 10.0
#: Spread below which two draws count as equal; its logarithm is where "no spread" lies for the head.
LEAST_SPREAD = 1e-7


class ScaleHead(nn.Module):
    """Clues (B, C, H, W) -> a mixture of M = `components` Gaussians per pixel.

    3 x 3 convolutions of `width` channels with the `dilations`, each added to what it was given; the receptive field is
    3 + 2 * sum(dilations) pixels wide (37 by default), about as far as a streak or a missed edge reaches.
    Halfway the mean over the image is added to every pixel: how hard the image is as a whole says much about each of its errors.
    """

    offset: Tensor
    scale: Tensor

    def __init__(
        self,
        channels: int,
        *,
        width: int = 32,
        components: int = 3,
        dilations: tuple[int, ...] = (1, 2, 4, 8, 2),
        typical: float = 5e-3,
        seed: int = 0,
    ):
        super().__init__()
        self.channels, self.width = require_count(channels, "channels"), require_count(width, "width")
        self.components, self.dilations = require_count(components, "components"), tuple(dilations)
        with own_random_state():
            self.first = nn.Conv2d(channels, width, 3, padding=1)
            layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=d, dilation=d) for d in self.dilations)
            self.overview = nn.Linear(width, width)
            self.last = nn.Conv2d(width, 2 * components, 1)
        self.layers = cast(Sequence[nn.Conv2d], layers)  # what type checkers should see in it
        # The clues differ by decades in size: they are brought to mean 0 and spread 1, by numbers measured once on the training set.
        self.register_buffer("offset", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))
        self.float()  # whatever PyTorch's default is
        self._reset(typical, seed)

    def _reset(self, typical: float, seed: int) -> None:
        """He's initial values; the components start a factor of ten apart around a `typical` standard deviation of the error."""
        generator = keyed_generator(seed, "scale head")
        with torch.no_grad():
            for layer in (self.first, *self.layers):
                fan = layer.weight[0].numel()
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32) * (2 / fan) ** 0.5)
                cast(Tensor, layer.bias).zero_()
            for layer in self.layers:
                layer.weight.mul_(0.5)  # what is added starts small
            for tensor in (self.overview.weight, self.overview.bias, self.last.weight):
                tensor.zero_()
            decades = torch.arange(self.components, dtype=torch.float32) - (self.components - 1) / 2
            spread = torch.log(torch.tensor(typical, dtype=torch.float32)) + 2.3 * decades
            bias = cast(Tensor, self.last.bias)
            bias.copy_(torch.cat((spread, torch.zeros(self.components))))

    def forward(self, clues: Tensor) -> ScaleMixture:
        """The mixture of the error in every pixel, without the epistemic part."""
        standardised = (clues - self.offset[:, None, None]) / self.scale[:, None, None]
        h = F.relu(self.first(standardised.clamp(-MOST, MOST)))
        for number, layer in enumerate(self.layers):
            h = h + F.relu(layer(h))
            if number == len(self.layers) // 2:
                h = h + self.overview(h.mean((2, 3)))[:, :, None, None]
        raw = self.last(h).float()
        std = FLOOR + raw[:, : self.components].clamp(max=4.0).exp().clamp(max=CEILING)
        return ScaleMixture(raw[:, self.components :].log_softmax(1), std**2)

    @torch.no_grad()
    def standardise(self, clues: Tensor) -> None:
        """Measure mean and spread of every channel on clues (N, C, H, W) of the training set."""
        self.offset.copy_(clues.mean((0, 2, 3)))
        spread = clues.std((0, 2, 3))
        # A feature that is dead on the training set may come alive elsewhere: it counts in the unit of the others.
        self.scale.copy_(spread.clamp(min=float(spread.median()) / 10 + 1e-6))

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values."""
        return {"channels": self.channels, "width": self.width, "components": self.components, "dilations": list(self.dilations)}


def steps(x: Tensor) -> Tensor:
    """The largest absolute difference of each pixel of x (B, 1, H, W) to its four neighbours, the border repeated."""
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    neighbours = (padded[..., 2:, 1:-1], padded[..., :-2, 1:-1], padded[..., 1:-1, 2:], padded[..., 1:-1, :-2])
    return torch.stack([(neighbour - x).abs() for neighbour in neighbours]).amax(0)


def joined_clues(mean: Tensor, start: Tensor, gradient: Tensor, epistemic: Tensor, residual: Tensor, features: Tensor) -> Tensor:
    """The head's input (B, 6 + F, H, W): everything about the mean that needs no truth.

    gradient and epistemic span decades: the gradient is compressed by its signed logarithm, the spread by its logarithm.
    residual (B,): the root mean square of the residual for an operator of norm 1, one number per image.
    """
    level = torch.log(residual + 1e-9)[:, None, None, None].expand_as(mean)
    compressed = gradient.sign() * torch.log1p(1e3 * gradient.abs())
    spread = 0.5 * torch.log(epistemic + LEAST_SPREAD**2)
    return torch.cat((mean, start - mean, compressed, spread, torch.log(steps(mean) + FLOOR), level, features), 1)
