"""The last convolution of a block, whose weights carry the posterior: one small class per kind.

All share a 3 x 3 convolution from C features to one image with mean weights, and a bias that is not random. They answer:

    local_noise(batch, size, generator)   the noise of one training step, independent in every pixel
    forward(features, noise)              the output under that noise
    draw(count, generator)                weights (S, C, 3, 3) of S Monte-Carlo draws
    kl()                                  KL(q || p) of the weights from their prior N(0, 1)

Training needs only the right distribution in every pixel by itself, since the log-likelihood is a sum over pixels: drawing
the output instead of the weights (the local reparametrisation trick) has the same expectation and far less variance.
A posterior draw is one set of weights for the whole image, which keeps the correlation between pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdgd.checks import require_choice
from bdgd.models import fused

#: Standard deviation of the initial mean weights, and logarithm of the initial posterior standard deviations.
MEAN_INIT, LOG_STD_INIT = 0.05, -9.0
#: Keeps the gradient of the square root finite where all features are zero.
TINY = 1e-16


class PointLayer(nn.Module):
    """Plain weights: deep gradient descent without uncertainty. Also the base of the others."""

    #: whether the noise level sigma_k is a parameter of the block's likelihood, or estimated after training
    trains_noise_level = False
    #: whether draws differ from each other
    random = False

    def __init__(self, features: int = 16):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, features, 3, 3))
        self.bias = nn.Parameter(torch.empty(1))

    def reset(self, generator: torch.Generator) -> None:
        """Initial values, drawn from `generator`."""
        with torch.no_grad():
            self.weight.normal_(0, MEAN_INIT, generator=generator)
            self.bias.zero_()

    @torch.no_grad()
    def forget(self, channels: Tensor) -> None:
        """Ignore these features, as sure of it as at the beginning."""
        self.weight[:, channels] = 0

    def local_noise(self, batch: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Standard noise (B, n, H, W) for `forward`, on the generator's device."""
        return torch.empty(batch, 0, *size, device=generator.device)

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1, H, W)."""
        return self.convolve(features, self.weight)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return self.weight.expand(count, -1, -1, -1)

    def kl(self) -> Tensor:
        return self.weight.new_zeros(())

    def convolve(self, features: Tensor, weights: Tensor) -> Tensor:
        """Features (B, C, H, W) with weights (1, C, 3, 3) for all images, or (B, C, 3, 3) for each its own."""
        if fused.usable(features):
            return fused.convolve_to_one(features, weights) + self.bias
        with torch.autocast(features.device.type, enabled=False):  # the image that comes out has more than 8 bits
            features = features.to(weights.dtype)
            if len(weights) == 1:
                return F.conv2d(features, weights, self.bias, padding=1)
            taps = torch.einsum("bckl,bchw->bklhw", weights, F.pad(features, (1, 1, 1, 1)))
            height, width = features.shape[-2:]
            output = sum((taps[:, k, m, k : k + height, m : m + width] for k in range(3) for m in range(3)), start=self.bias)
            return output[:, None]


class GaussianLayer(PointLayer):
    """q(w) Gaussian, so that the output in every pixel is too; a subclass gives its variance there, its draws and its KL."""

    trains_noise_level = True
    random = True

    def local_noise(self, batch: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        return _standard(torch.randn, batch, 1, *size, generator=generator)

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        return super().forward(features, noise) + (self.local_variance(features) + TINY).sqrt() * noise

    def local_variance(self, features: Tensor) -> Tensor:
        """Var[w * h] in every pixel, (B, 1, H, W)."""
        raise NotImplementedError


class MeanFieldLayer(GaussianLayer):
    """q(w) = product of N(mean_d, std_d^2): mean-field variational inference."""

    def __init__(self, features: int = 16):
        super().__init__(features)
        self.log_std = nn.Parameter(torch.empty_like(self.weight))

    def reset(self, generator: torch.Generator) -> None:
        super().reset(generator)
        with torch.no_grad():
            self.log_std.fill_(LOG_STD_INIT)

    @torch.no_grad()
    def forget(self, channels: Tensor) -> None:
        super().forget(channels)
        self.log_std[:, channels] = LOG_STD_INIT

    def local_variance(self, features: Tensor) -> Tensor:
        """The squared features convolved with the variances."""
        variances = (2 * self.log_std).exp()
        if fused.usable(features):
            return fused.convolve_to_one(features, variances, squared=True)
        with torch.autocast(features.device.type, enabled=False):
            return F.conv2d(features.to(variances.dtype) ** 2, variances, padding=1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        normal = _standard(torch.randn, count, *self.weight.shape[1:], generator=generator).to(self.weight)
        return self.weight + self.log_std.exp() * normal

    def kl(self) -> Tensor:
        """sum of (std^2 + mean^2 - 1) / 2 - log std."""
        return ((2 * self.log_std).exp() + self.weight**2 - 1).sum() / 2 - self.log_std.sum()


class FullCovarianceLayer(GaussianLayer):
    """q(w) = N(mean, L L') with a lower triangular L: correlations between the weights of the layer too."""

    _below: Tensor

    def __init__(self, features: int = 16):
        super().__init__(features)
        count = self.weight.numel()
        self.log_diagonal = nn.Parameter(torch.empty(count))
        self.below_diagonal = nn.Parameter(torch.empty(count * (count - 1) // 2))
        self.register_buffer("_below", torch.tril_indices(count, count, -1), persistent=False)

    def reset(self, generator: torch.Generator) -> None:
        super().reset(generator)
        with torch.no_grad():
            self.log_diagonal.fill_(LOG_STD_INIT)
            self.below_diagonal.zero_()

    @torch.no_grad()
    def forget(self, channels: Tensor) -> None:
        super().forget(channels)
        chosen = torch.zeros(self.weight.shape[1:], dtype=torch.bool, device=self.weight.device)
        chosen[channels] = True
        chosen = chosen.flatten()
        self.log_diagonal[chosen] = LOG_STD_INIT
        self.below_diagonal[chosen[self._below[0]] | chosen[self._below[1]]] = 0

    def cholesky(self) -> Tensor:
        """L (n, n), n = 9 C."""
        factor = torch.diag(self.log_diagonal.exp())
        return factor.index_put((self._below[0], self._below[1]), self.below_diagonal)

    def local_variance(self, features: Tensor) -> Tensor:
        """h' L L' h in every pixel: the columns of L as convolutions, squared and summed."""
        columns = self.cholesky().T.reshape(-1, *self.weight.shape[1:])
        with torch.autocast(features.device.type, enabled=False):
            return F.conv2d(features.to(columns.dtype), columns, padding=1).square().sum(1, keepdim=True)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        normal = _standard(torch.randn, count, self.weight.numel(), generator=generator).to(self.weight)
        return self.weight + (normal @ self.cholesky().T).reshape(count, *self.weight.shape[1:])

    def kl(self) -> Tensor:
        """(trace(L L') + |mean|^2 - n) / 2 - log det L."""
        return (self.cholesky().square().sum() + self.weight.square().sum() - self.weight.numel()) / 2 - self.log_diagonal.sum()


class DropoutLayer(PointLayer):
    """Monte-Carlo dropout: q(w) sets weights to zero with probability `rate` and scales the others by 1 / (1 - rate)."""

    random = True

    def __init__(self, features: int = 16, rate: float = 0.1):
        super().__init__(features)
        self.rate = rate

    def local_noise(self, batch: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """The features that are kept, each divided by the probability to be kept."""
        uniform = _standard(torch.rand, batch, self.weight.shape[1], *size, generator=generator)
        return (uniform >= self.rate).to(uniform.dtype) / (1 - self.rate)

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        return self.convolve(features * noise, self.weight)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        uniform = _standard(torch.rand, count, *self.weight.shape[1:], generator=generator).to(self.weight)
        return self.weight * (uniform >= self.rate) / (1 - self.rate)

    def kl(self) -> Tensor:
        """Of a mixture of two narrow Gaussians, at 0 and at w / (1 - rate), from N(0, 1), up to a constant (Gal and Ghahramani 2016)."""
        return self.weight.square().sum() / (2 * (1 - self.rate))


LAST_LAYERS: dict[str, type[PointLayer]] = {
    "point": PointLayer,
    "mean_field": MeanFieldLayer,
    "dropout": DropoutLayer,
    "full_covariance": FullCovarianceLayer,
}


def _standard(law: Callable[..., Tensor], *shape: int, generator: torch.Generator) -> Tensor:
    """Random numbers where the generator is, in float32 whatever PyTorch's default is: in float64 they would be others."""
    return law(shape, generator=generator, device=generator.device, dtype=torch.float32)


def make_last_layer(kind: str, features: int = 16) -> PointLayer:
    """The last layer of that kind."""
    return LAST_LAYERS[require_choice(kind, tuple(LAST_LAYERS), "last_layer")](features)


def fresh_parameters(layer: nn.Conv2d, generator: torch.Generator) -> list[Tensor]:
    """New weight and bias by PyTorch's default initialisation (uniform with bound 1 / sqrt(fan in)), from a CPU generator of one's own."""
    bound = 1 / math.sqrt(layer.weight[0].numel())
    new = (torch.empty(parameter.shape, dtype=parameter.dtype) for parameter in layer.parameters())
    return [parameter.uniform_(-bound, bound, generator=generator) for parameter in new]


@torch.no_grad()
def reset_convolution(layer: nn.Conv2d, generator: torch.Generator) -> None:
    """Fresh parameters for the whole layer."""
    for parameter, fresh in zip(layer.parameters(), fresh_parameters(layer, generator), strict=True):
        parameter.copy_(fresh)
