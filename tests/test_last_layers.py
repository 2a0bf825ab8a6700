"""The contract of every last layer: a new member of LAST_LAYERS is tested by being there."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence
from toys import KINDS, RANDOM_KINDS, fill, seeded, stated_moments

from bdgd.checks import InputError
from bdgd.models import LAST_LAYERS
from bdgd.models.last_layers import LOG_STD_INIT, MEAN_INIT, PointLayer, make_last_layer

C = 2  # features: 18 weights, so that a covariance of them needs few draws
DRAWS = 20_000
FAR = 4.5  # standard errors: a few hundred right values stay below, a variance that is 5 % off does not


def layer_of(kind: str, features: int = C) -> PointLayer:
    return fill(make_last_layer(kind, features))


def some_features(batch: int = 1, size: tuple[int, int] = (4, 5)) -> Tensor:
    return torch.randn(batch, C, *size, generator=seeded(7))


def assert_moments(samples: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Sample mean and covariance of samples (S, n) within Monte-Carlo standard errors of the stated ones."""
    centred = samples.double() - mean.double()
    products = centred[:, :, None] * centred[:, None]
    for found, stated in ((samples.double(), mean.double()), (products, covariance.double())):
        error = found.mean(0) - stated
        standard_error = found.std(0) / math.sqrt(len(samples))
        assert (error.abs() <= FAR * standard_error + 1e-6).all(), (error / standard_error).abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind: str, device: torch.device) -> None:
    layer = layer_of(kind).to(device)
    features = some_features(3).to(device)
    noise = layer.local_noise(3, (4, 5), torch.Generator(device).manual_seed(0))
    assert noise.device.type == device.type
    assert noise.ndim == 4 and noise.shape[0] == 3 and noise.shape[2:] == (4, 5)
    output = layer(features, noise)
    assert output.shape == (3, 1, 4, 5) and output.device.type == device.type
    for generator in (seeded(), torch.Generator(device).manual_seed(0)):  # a CPU generator gives the same draws on every device
        weights = layer.draw(6, generator)
        assert weights.shape == (6, C, 3, 3) and weights.dtype == layer.weight.dtype and weights.device.type == device.type
    assert layer.kl().shape == ()
    assert layer.convolve(features, layer.draw(1, seeded())).shape == (3, 1, 4, 5)
    assert layer.convolve(features, layer.draw(3, seeded())).shape == (3, 1, 4, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_stated_moments(kind: str) -> None:
    layer = layer_of(kind)
    with torch.no_grad():
        samples = layer.draw(DRAWS, seeded()).flatten(1)
    assert_moments(samples, *stated_moments(kind, layer))


@pytest.mark.parametrize("kind", KINDS)
def test_local_noise_and_drawn_weights_agree_in_every_pixel(kind: str) -> None:
    """Both have the mean and the variance that the stated moments give; drawn weights also their covariance between pixels."""
    layer, features = layer_of(kind), some_features(size=(3, 3))
    mean, covariance = stated_moments(kind, layer)
    patches = F.unfold(features, 3, padding=1)[0]  # (9 C, P): what each pixel's output is linear in
    expected = patches.T @ mean + layer.bias.detach()
    between_pixels = patches.T @ covariance @ patches
    many = features.expand(DRAWS, -1, -1, -1)
    with torch.no_grad():
        drawn = layer.convolve(many, layer.draw(DRAWS, seeded(1))).flatten(1)
        local = layer(many, layer.local_noise(DRAWS, (3, 3), seeded(2))).flatten(1)
    assert_moments(drawn, expected, between_pixels)
    for pixel in range(9):
        assert_moments(local[:, [pixel]], expected[[pixel]], between_pixels[[pixel]][:, [pixel]])


@pytest.mark.parametrize("kind", ["mean_field", "full_covariance"])
def test_gaussian_local_noise_is_independent_between_pixels(kind: str) -> None:
    layer, features = layer_of(kind), some_features(size=(2, 2))
    with torch.no_grad():
        local = layer(features.expand(DRAWS, -1, -1, -1), layer.local_noise(DRAWS, (2, 2), seeded())).flatten(1)
    correlation = torch.corrcoef(local.T) - torch.eye(4)
    assert correlation.abs().max() < FAR / math.sqrt(DRAWS)


def reference_kl(kind: str, layer: PointLayer) -> Tensor | None:
    mean, covariance = stated_moments(kind, layer)
    if kind == "point":
        return torch.zeros((), dtype=mean.dtype)
    if kind == "mean_field":
        q, p = Normal(mean, covariance.diagonal().sqrt()), Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return kl_divergence(Independent(q, 1), Independent(p, 1))
    if kind == "full_covariance":
        return kl_divergence(
            MultivariateNormal(mean, covariance), MultivariateNormal(torch.zeros_like(mean), torch.eye(len(mean)).to(mean))
        )
    if kind == "dropout":
        # The entropy of two narrow spikes does not depend on where they are, so what is left is E_q[-log p] = E_q |w|^2 / 2.
        return (mean.square() + covariance.diagonal()).sum() / 2
    raise AssertionError(f"last layer {kind!r} is new: write its KL from N(0, 1) here")


@pytest.mark.parametrize("kind", KINDS)
def test_kl(kind: str) -> None:
    layer = layer_of(kind).double()
    torch.testing.assert_close(layer.kl().detach(), reference_kl(kind, layer), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["mean_field", "full_covariance"])
def test_kl_is_zero_at_the_prior(kind: str) -> None:
    layer = make_last_layer(kind, C)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()  # mean 0, log std 0, nothing below the diagonal
    assert layer.kl() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_convolve_is_a_convolution_for_each_image(kind: str) -> None:
    layer = layer_of(kind).double()
    features = some_features(3, (5, 7)).double()
    weights = torch.randn(3, C, 3, 3, dtype=torch.float64, generator=seeded())
    each = torch.cat([F.conv2d(features[[b]], weights[[b]], layer.bias, padding=1) for b in range(3)])
    torch.testing.assert_close(layer.convolve(features, weights), each)
    torch.testing.assert_close(layer.convolve(features, weights[:1]), F.conv2d(features, weights[:1], layer.bias, padding=1))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    layer, features = layer_of(kind), some_features(2)
    outputs = {
        "local noise": layer(features, layer.local_noise(2, (4, 5), seeded())),
        "drawn weights": layer.convolve(features, layer.draw(2, seeded())),
    }
    for name, output in outputs.items():
        layer.zero_grad()
        output.square().sum().backward()
        for parameter, tensor in layer.named_parameters():
            assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.any(), (name, parameter)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stay_finite_where_there_are_no_features(kind: str) -> None:
    layer = layer_of(kind)
    noise = layer.local_noise(1, (4, 5), seeded())
    features = torch.zeros(1, C, 4, 5, requires_grad=True)
    (layer(features, noise).square().sum() + layer.kl()).backward()
    assert features.grad is not None and features.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_randomness_comes_from_the_generator_alone(kind: str) -> None:
    layer, before = layer_of(kind), torch.get_rng_state()
    again = make_last_layer(kind, C)
    for one in (layer, again):
        one.reset(seeded(3))
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), again.parameters(), strict=True))
    assert torch.equal(layer.draw(4, seeded(1)), layer.draw(4, seeded(1)))
    assert torch.equal(layer.local_noise(2, (3, 3), seeded(1)), layer.local_noise(2, (3, 3), seeded(1)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_draws_differ_where_the_layer_says_so(kind: str) -> None:
    layer = layer_of(kind)
    first, second = layer.draw(2, seeded())
    other_seed = layer.draw(2, seeded(1))[0]
    assert (kind in RANDOM_KINDS) == LAST_LAYERS[kind].random == layer.random
    assert torch.equal(first, second) is not layer.random
    assert torch.equal(first, other_seed) is not layer.random


def test_mean_field_is_full_covariance_with_a_diagonal_factor() -> None:
    mean_field, full = layer_of("mean_field"), layer_of("full_covariance")
    with torch.no_grad():
        full.weight.copy_(mean_field.weight)
        full.bias.copy_(mean_field.bias)
        full.log_diagonal.copy_(mean_field.log_std.flatten())
        full.below_diagonal.zero_()
    features = some_features(2)
    noise = mean_field.local_noise(2, (4, 5), seeded())
    torch.testing.assert_close(full.local_variance(features), mean_field.local_variance(features))
    torch.testing.assert_close(full(features, noise), mean_field(features, noise))
    torch.testing.assert_close(full.kl(), mean_field.kl())


@pytest.mark.parametrize("kind", ["mean_field", "full_covariance"])
def test_the_spread_of_the_output_is_not_rounded_under_autocast(kind: str) -> None:
    layer, features = fill(make_last_layer(kind, 2)), some_features(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.local_variance(features)  # type: ignore[operator]
    assert torch.equal(found, layer.local_variance(features))  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values_are_the_papers(kind: str) -> None:
    layer = make_last_layer(kind, 16)
    layer.reset(seeded())
    assert float(layer.weight.detach().std()) == pytest.approx(MEAN_INIT, rel=0.2) and MEAN_INIT == 0.05
    assert not layer.bias.any()
    if kind in ("mean_field", "full_covariance"):
        covariance = stated_moments(kind, layer)[1]
        torch.testing.assert_close(covariance, math.exp(2 * LOG_STD_INIT) * torch.eye(144))
        assert LOG_STD_INIT == -9


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"last_layer must be one of 'point', 'mean_field', .*, got 'bayes'"):
        make_last_layer("bayes")
