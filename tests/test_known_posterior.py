"""The real training loop finds the posterior where it is known in closed form.

On fixed features, without the final ReLU and with a known noise level, a block is Bayesian linear regression: truth = Phi w + noise
with w ~ N(0, I), whose posterior is Gaussian with precision Phi'Phi / sigma^2 + I. The variational optimum is that posterior for
`full_covariance`; for `mean_field` it has the same mean and variances 1 / diagonal of the precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.models.last_layers import FullCovarianceLayer, GaussianLayer, MeanFieldLayer
from bdgd.training import Schedule
from bdgd.training.loop import Trainer
from bdgd.training.objective import Objective, negative_elbo

IMAGES, SIZE, FEATURES, SIGMA = 32, 12, 1, 6.0  # 9 weights
WEIGHTS = 9 * FEATURES


class FixedFeatures(Objective):
    """A last layer on features (N, C, H, W) that do not change, with a noise level that is known."""

    def __init__(self, last: GaussianLayer, features: Tensor, truth: Tensor):
        super().__init__(len(truth))
        self.last, self.features, self.truth = last, features, truth
        self.log_noise = torch.tensor(math.log(SIGMA))

    def forward(self, index: Tensor, noise: list[Tensor]) -> Tensor:
        mean = self.last(self.features[index], noise[0])
        return negative_elbo(mean, self.truth[index], self.log_noise, self.last.kl(), self.images, kl_weight=1.0) / self.truth.numel()

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        return [self.last.local_noise(batch, (SIZE, SIZE), generator)]


@dataclass(frozen=True)
class Regression:
    """One problem with its exact posterior: mean (n,) and precision (n, n), n weights."""

    features: Tensor
    truth: Tensor
    mean: Tensor
    precision: Tensor


@pytest.fixture(scope="module")
def regression() -> Regression:
    """Smooth features, so that the posterior is correlated. The posterior's precision does not depend on the noise that is really in the
    truth; little of it makes the steps less noisy."""
    generator = torch.Generator().manual_seed(1)
    rough = torch.randn(IMAGES, FEATURES, SIZE + 1, SIZE + 1, generator=generator)
    features = F.avg_pool2d(rough, 2, stride=1) + 0.4 * torch.randn(IMAGES, FEATURES, SIZE, SIZE, generator=generator)
    weights = 0.3 * torch.randn(1, FEATURES, 3, 3, generator=generator)
    truth = F.conv2d(features, weights, padding=1) + 0.3 * torch.randn(IMAGES, 1, SIZE, SIZE, generator=generator)
    phi = F.unfold(features.double(), 3, padding=1).transpose(1, 2).reshape(-1, WEIGHTS)  # (N P, n)
    precision = phi.T @ phi / SIGMA**2 + torch.eye(WEIGHTS, dtype=torch.float64)
    mean = torch.linalg.solve(precision, phi.T @ truth.double().flatten() / SIGMA**2)
    return Regression(features, truth, mean, precision)


def trained(last: GaussianLayer, regression: Regression) -> GaussianLayer:
    """The layer after the real loop, in batches of half the images."""
    last.reset(torch.Generator().manual_seed(2))
    last.bias.requires_grad_(False)  # it has no prior, so it is no part of the posterior
    spread = last.log_std if isinstance(last, MeanFieldLayer) else last.log_diagonal
    with torch.no_grad():
        spread.fill_(-3.0)  # the cascade's start, -9, is a long way from here
    schedule = Schedule(epochs=500, batch=IMAGES // 2, learning_rate=1e-2, last_learning_rate=1e-5)
    Trainer(FixedFeatures(last, regression.features, regression.truth), schedule, seed=3).fit("known")
    return last


@pytest.fixture(scope="module")
def full(regression: Regression) -> FullCovarianceLayer:
    return trained(FullCovarianceLayer(FEATURES), regression)


@pytest.fixture(scope="module")
def mean_field(regression: Regression) -> MeanFieldLayer:
    return trained(MeanFieldLayer(FEATURES), regression)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """In the Frobenius norm."""
    return float((actual.detach().double() - expected).norm() / expected.norm())


def standard_errors(draws: Tensor, mean: Tensor, covariance: Tensor) -> tuple[float, float]:
    """By how many standard errors the mean and the covariance of draws (S, n) are farther from the given ones than they should be.

    Whitened by the given moments, the squared distances are chi-squared: with n degrees of freedom for the mean, n (n + 1) / 2
    for the covariance, whose entries have variance 1 / S off the diagonal and 2 / S on it.
    """
    count, n = draws.shape
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (draws.double() - mean).T, upper=False).T  # (S, n)
    of_mean = float(count * white.mean(0).square().sum())
    excess = torch.cov(white.T) - torch.eye(n, dtype=torch.float64)
    of_covariance = float(count * (torch.tril(excess, -1).square().sum() + excess.diag().square().sum() / 2))
    pairs = n * (n + 1) // 2
    return (of_mean - n) / math.sqrt(2 * n), (of_covariance - pairs) / math.sqrt(2 * pairs)


def test_the_problem_tells_the_two_layers_apart(regression: Regression) -> None:
    covariance = torch.linalg.inv(regression.precision)
    assert relative_error(torch.diag(covariance.diag()), covariance) > 0.3
    assert relative_error(1 / regression.precision.diag(), covariance.diag()) > 0.15
    assert 0.05 < float(covariance.diag().sqrt().mean()) < 0.5  # neither the prior nor a point


def test_full_covariance_recovers_the_posterior(full: FullCovarianceLayer, regression: Regression) -> None:
    factor = full.cholesky()
    assert relative_error(full.weight.flatten(), regression.mean) < 0.02
    assert relative_error(factor @ factor.T, torch.linalg.inv(regression.precision)) < 0.02


def test_mean_field_recovers_the_mean_and_the_diagonal_of_the_precision(mean_field: MeanFieldLayer, regression: Regression) -> None:
    assert relative_error(mean_field.weight.flatten(), regression.mean) < 0.02
    assert relative_error((-2 * mean_field.log_std).exp().flatten(), regression.precision.diag()) < 0.02


@pytest.mark.parametrize("count", [500, 20_000])
def test_draws_have_the_moments_of_the_posterior(
    full: FullCovarianceLayer, mean_field: MeanFieldLayer, regression: Regression, generator: torch.Generator, count: int
) -> None:
    """Few draws against the exact posterior, which they cannot tell from the trained one; many against the layer's own moments."""
    factor = full.cholesky().detach().double()
    own = {full: (factor @ factor.T), mean_field: torch.diag((2 * mean_field.log_std.detach().double()).exp().flatten())}
    exact = {full: torch.linalg.inv(regression.precision), mean_field: torch.diag(1 / regression.precision.diag())}
    for layer in (full, mean_field):
        draws = layer.draw(count, generator).detach().flatten(1)
        mean, covariance = (regression.mean, exact[layer]) if count < 1000 else (layer.weight.detach().double().flatten(), own[layer])
        assert max(standard_errors(draws, mean, covariance)) < 3


def test_the_standard_errors_see_wrong_draws(full: FullCovarianceLayer, generator: torch.Generator) -> None:
    factor = full.cholesky().detach().double()
    mean = full.weight.detach().double().flatten()
    draws = full.draw(20_000, generator).detach().flatten(1)
    assert standard_errors(draws + 0.05 * factor.diag().float(), mean, factor @ factor.T)[0] > 3
    assert standard_errors(mean + 1.03 * (draws - mean), mean, factor @ factor.T)[1] > 3


def test_drawn_images_vary_as_much_as_in_training(full: FullCovarianceLayer, regression: Regression, generator: torch.Generator) -> None:
    """Draws of weights and noise in every pixel agree pixel by pixel: both are the posterior of the image."""
    features, count = regression.features[:1], 20_000
    with torch.no_grad():
        images = full.convolve(features.expand(count, -1, -1, -1), full.draw(count, generator))
        expected = full.local_variance(features)[0]
    ratio = images.var(0) / expected
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / count)  # the largest of 144 pixels
