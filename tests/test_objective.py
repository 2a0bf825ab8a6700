"""The objective is the formula of the paper, term by term, and the authors' code minimises the same with kl_weight = P."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.models import LAST_LAYERS, DeepGradientDescent, LearnedPrimalDual
from bdgd.models.last_layers import FullCovarianceLayer, MeanFieldLayer, make_last_layer
from bdgd.operators import ParallelBeam, RayTransform, Symmetry
from bdgd.training.objective import BlockObjective, CascadeObjective, DirectObjective, Objective, log_likelihood, negative_elbo

N, M, SIZE = 10, 4, 6
LOG_NOISE = torch.tensor(-0.7, dtype=torch.float64)
GEOMETRY = ParallelBeam.sparse(image_size=16, views=6)
every_layer = pytest.mark.parametrize("kind", LAST_LAYERS)


@pytest.fixture
def pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Means and truths (M, 1, H, W) of one batch."""
    mean, truth = torch.randn(2, M, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    return mean, truth


def spread_out(layer: nn.Module, generator: torch.Generator) -> None:
    """Parameters far from their initial values, so that no term of the KL is negligible."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))


def model_and_scans(kind: str, generator: torch.Generator) -> tuple[DeepGradientDescent, object]:
    A = RayTransform(GEOMETRY)
    scans = simulate(A, random_ellipses(N, 16, generator=generator), GaussianNoise(0.01), generator=generator)
    return DeepGradientDescent(A, blocks=2, last_layer=kind, gradient_scale=30.0), scans


# --- the formula ---------------------------------------------------------------------------------------------------


def test_log_likelihood_is_that_of_independent_normal_pixels(pair: tuple[Tensor, Tensor]) -> None:
    mean, truth = pair
    expected = Normal(mean, LOG_NOISE.exp()).log_prob(truth).sum()
    torch.testing.assert_close(log_likelihood(mean, truth, LOG_NOISE), expected)


def test_negative_elbo_scales_the_batch_to_the_set_and_weighs_the_kl(pair: tuple[Tensor, Tensor]) -> None:
    mean, truth = pair
    kl = torch.tensor(13.0, dtype=torch.float64)
    per_image = Normal(mean, LOG_NOISE.exp()).log_prob(truth).flatten(1).sum(1)
    for kl_weight in (1.0, 16384.0):
        expected = -(N / M) * per_image.sum() + kl_weight * kl
        torch.testing.assert_close(negative_elbo(mean, truth, LOG_NOISE, kl, N, kl_weight), expected)


def test_mean_over_disjoint_batches_is_the_objective_of_the_whole_set(generator: torch.Generator) -> None:
    mean, truth = torch.randn(2, N, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    kl = torch.tensor(13.0, dtype=torch.float64)
    parts = [negative_elbo(m, t, LOG_NOISE, kl, N, 2.0) for m, t in zip(mean.split(5), truth.split(5), strict=True)]
    torch.testing.assert_close(torch.stack(parts).mean(), negative_elbo(mean, truth, LOG_NOISE, kl, N, 2.0))


def test_kl_of_the_mean_field_layer(generator: torch.Generator) -> None:
    layer = MeanFieldLayer(features=2).double()
    spread_out(layer, generator)
    expected = kl_divergence(Normal(layer.weight, layer.log_std.exp()), Normal(torch.zeros_like(layer.weight), 1.0)).sum()
    torch.testing.assert_close(layer.kl(), expected)


def test_kl_of_the_full_covariance_layer(generator: torch.Generator) -> None:
    layer = FullCovarianceLayer(features=2).double()
    spread_out(layer, generator)
    mean = layer.weight.flatten()
    prior = MultivariateNormal(torch.zeros_like(mean), torch.eye(len(mean), dtype=torch.float64))
    expected = kl_divergence(MultivariateNormal(mean, scale_tril=layer.cholesky()), prior)
    torch.testing.assert_close(layer.kl(), expected)


def test_the_released_code_minimises_the_same_with_kl_weight_p(generator: torch.Generator) -> None:
    """findings.md, point 1. The released loss counts log sigma^2 once per image:

        R(sigma) = (N/M) sum_i [ |x_i - mean_i|^2 / (2 sigma^2) + log(sigma^2) / 2 ] + KL.

    With its noise level sigma = sqrt(P) tau it is, times P, the exact objective at tau with kl_weight = P, but for the constant
    (N P / 2) (log P - log 2 pi), whatever the weights, the noise level and the batch.
    """
    P = SIZE * SIZE
    constant = 0.5 * N * P * (math.log(P) - math.log(2 * math.pi))
    for tau in (0.007, 0.3, 2.0):
        mean, truth = torch.randn(2, M, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
        kl = 100 * torch.rand((), generator=generator, dtype=torch.float64)
        variance = P * tau**2
        squares = ((truth - mean) ** 2).flatten(1).sum(1)
        released = (N / M) * (squares / (2 * variance) + 0.5 * math.log(variance)).sum() + kl
        exact = negative_elbo(mean, truth, torch.tensor(tau, dtype=torch.float64).log(), kl, images=N, kl_weight=P)
        torch.testing.assert_close(P * released, exact + constant, rtol=1e-12, atol=0)


# --- the objectives that training uses -----------------------------------------------------------------------------


@every_layer
def test_block_objective_is_the_formula_per_pixel(kind: str, generator: torch.Generator) -> None:
    model, _ = model_and_scans(kind, generator)
    block = model.blocks[0]
    spread_out(block.last, generator)
    x, gradient, truth = torch.rand(3, N, 1, 16, 16, generator=generator)
    objective = BlockObjective(block, x, gradient, truth, 3.0, [Symmetry()])
    index, noise = torch.tensor([7, 1, 4]), objective.draw_noise(3, generator)
    mean = block(x[index], gradient[index], noise[0])
    level = block.log_noise.exp() if block.last.trains_noise_level else torch.tensor(1.0)
    expected = -(N / 3) * Normal(mean, level).log_prob(truth[index]).sum() + 3.0 * block.last.kl()
    torch.testing.assert_close(objective(index, noise), expected / truth.numel())


def test_with_symmetries_an_epoch_shows_all_images_under_one_of_them(generator: torch.Generator) -> None:
    model, _ = model_and_scans("point", generator)
    x, gradient, truth = torch.rand(3, N, 1, 16, 16, generator=generator)
    choices = [Symmetry(), Symmetry(flip_x=True), Symmetry(transpose=True)]
    objective = BlockObjective(model.blocks[0], x, gradient, truth, 1.0, choices)
    places = [t.data_ptr() for t in (objective.x, objective.gradient, objective.truth)]
    seen = set()
    for epoch in range(20):
        objective.begin_epoch(torch.Generator().manual_seed(epoch))
        same = [s for s in choices if torch.equal(objective.x, s(x))]
        assert len(same) == 1 and torch.equal(objective.gradient, same[0](gradient)) and torch.equal(objective.truth, same[0](truth))
        seen.add(same[0])
    assert seen == set(choices)
    assert places == [t.data_ptr() for t in (objective.x, objective.gradient, objective.truth)]  # a captured step reads them there


@every_layer
def test_cascade_objective_sums_the_kl_and_uses_the_last_noise_level(kind: str, generator: torch.Generator) -> None:
    model, scans = model_and_scans(kind, generator)
    for block in model.blocks:
        spread_out(block.last, generator)
    start = model.start(scans.sinograms)
    objective = CascadeObjective(model, scans, start, 2.0)
    index, noise = torch.tensor([2, 9]), objective.draw_noise(2, generator)
    assert len(noise) == 2
    mean = model(scans.sinograms[index], start[index], noise)
    last = model.blocks[-1]
    level = last.log_noise.exp() if last.last.trains_noise_level else torch.tensor(1.0)
    kl = model.blocks[0].last.kl() + last.last.kl()
    expected = -(N / 2) * Normal(mean, level).log_prob(scans.images[index]).sum() + 2.0 * kl
    torch.testing.assert_close(objective(index, noise), expected / scans.images.numel())


def test_direct_objective_is_half_the_mean_squared_error(generator: torch.Generator) -> None:
    _, scans = model_and_scans("point", generator)
    model = LearnedPrimalDual(RayTransform(GEOMETRY), iterations=1, start="fbp")
    objective = DirectObjective(model, scans, model.start(scans.sinograms))
    index = torch.tensor([3, 0])
    expected = nn.functional.mse_loss(model(scans.sinograms[index]), scans.images[index]) / 2
    torch.testing.assert_close(objective(index, objective.draw_noise(2, generator)), expected)


def test_an_objective_must_say_what_its_loss_is() -> None:
    with pytest.raises(NotImplementedError):
        Objective(images=3)(torch.tensor([0]), [])


#: what weight decay must leave alone, beside every other parameter of the block, which it applies to
INFERRED = {
    "point": set(),
    "dropout": {"last.weight"},
    "mean_field": {"last.weight", "last.log_std", "log_noise"},
    "full_covariance": {"last.weight", "last.log_diagonal", "last.below_diagonal", "log_noise"},
}


@every_layer
def test_weight_decay_spares_what_has_a_prior(kind: str, generator: torch.Generator) -> None:
    model, _ = model_and_scans(kind, generator)
    block = model.blocks[0]
    image = torch.rand(N, 1, 16, 16, generator=generator)
    spared = set(BlockObjective(block, image, image, image, 1.0, [Symmetry()]).inferred())
    assert {name for name, parameter in block.named_parameters() if parameter in spared} == INFERRED[kind]
    assert make_last_layer(kind).kl().requires_grad == bool(INFERRED[kind])  # a prior is what the KL is taken from
