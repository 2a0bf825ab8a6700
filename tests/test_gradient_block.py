"""One block of the cascade: the paper's network, parameter by parameter, its noise level, and channels that died."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import KINDS, small_model, small_transform

from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent, GradientBlock
from bdgd.models.last_layers import MeanFieldLayer


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


PARAMETERS = {"point": 32_833, "dropout": 32_833, "mean_field": 32_978, "full_covariance": 32_833 + 144 * 145 // 2 + 1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_block_has_the_papers_parameters(kind: str) -> None:
    assert parameters(GradientBlock(kind)) == PARAMETERS[kind]
    assert parameters(DeepGradientDescent(small_transform(), blocks=3, last_layer=kind)) == 3 * PARAMETERS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_block_is_the_papers(kind: str) -> None:
    """Two branches, merged, a residual and a projection onto x >= 0, written out."""
    model = small_model(kind)
    block = model.blocks[0]
    x, gradient = torch.randn(2, 2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    noise = block.last.local_noise(2, (16, 16), torch.Generator().manual_seed(1))
    state = block.state_dict()

    def convolve(signal: Tensor, name: str) -> Tensor:
        return F.relu(F.conv2d(signal, state[f"{name}.weight"], state[f"{name}.bias"], padding=1))

    image_features = convolve(convolve(x, "image_branch.0"), "image_branch.1")
    gradient_features = convolve(convolve(gradient, "gradient_branch.0"), "gradient_branch.1")
    features = convolve(convolve(torch.cat((image_features, gradient_features), 1), "merge.0"), "merge.1")
    assert features.shape == (2, 16, 16, 16)
    torch.testing.assert_close(block.features(x, gradient), features)

    output = block(x, gradient, noise)
    torch.testing.assert_close(output, F.relu(x + block.last(features, noise)))
    assert output.shape == x.shape and (output == 0).any() and (output > 0).any() and not (output < 0).any()
    mean = block.update(x, features, block.last.weight)
    torch.testing.assert_close(mean, F.relu(x + F.conv2d(features, state["last.weight"], state["last.bias"], padding=1)))
    assert not (mean < 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_level_is_trained_or_waits_to_be_estimated(kind: str) -> None:
    model = DeepGradientDescent(small_transform(), blocks=2, last_layer=kind)
    trained = "log_noise" in dict(model.blocks[0].named_parameters())
    assert trained == (kind in ("mean_field", "full_covariance"))
    assert float(model.noise_level) == pytest.approx(math.exp(-3)) if trained else model.noise_level.isnan()
    with torch.no_grad():
        model.blocks[0].log_noise.fill_(-7)
        model.blocks[1].log_noise.fill_(-5)
    assert float(model.noise_level) == pytest.approx(math.exp(-5))  # the last block's
    assert "blocks.1.log_noise" in model.state_dict()


def test_weights_come_from_the_seed_and_the_block_number() -> None:
    A = small_transform()
    two, three, other = (
        DeepGradientDescent(A, blocks=2, seed=4),
        DeepGradientDescent(A, blocks=3, seed=4),
        DeepGradientDescent(A, blocks=2, seed=5),
    )
    weight = "blocks.1.image_branch.0.weight"
    assert all(torch.equal(value, three.state_dict()[name]) for name, value in two.state_dict().items())
    assert not torch.equal(two.state_dict()[weight], other.state_dict()[weight])
    assert not torch.equal(two.state_dict()[weight], two.state_dict()["blocks.0.image_branch.0.weight"])


@pytest.mark.parametrize("kind", ["point", "mean_field", "dropout", "full_covariance"])
def test_dead_channels_are_replaced_without_changing_the_block(kind: str) -> None:
    block = GradientBlock(kind)
    block.reset(keyed_generator(3))
    x, gradient = torch.rand(2, 1, 12, 12), torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer, channel in zip(block.hidden, (3, 7, 2, 30, 11, 5), strict=True):
            layer.bias[channel] = -100.0  # never above 0
        if isinstance(block.last, MeanFieldLayer):
            block.last.log_std[:, 5] = 0.0  # where a dead feature's posterior ends up: at the prior
        before = block.update(x, block.features(x, gradient), block.last.draw(1, keyed_generator(4)))
        replaced = block.revive(x, gradient, keyed_generator(5))
        outputs = list(block.activations(x, gradient))
        after = block.update(x, outputs[-1], block.last.draw(1, keyed_generator(4)))
    assert replaced >= 6
    assert all(float(layer.bias.detach()[channel]) > -100 for layer, channel in zip(block.hidden, (3, 7, 2, 30, 11, 5), strict=True))
    tolerance = 5e-3 if kind in ("mean_field", "full_covariance") else 1e-6  # these features have weights of a tiny random size now
    torch.testing.assert_close(after, before, rtol=0, atol=tolerance)
    if isinstance(block.last, MeanFieldLayer):
        assert float(block.last.log_std[:, 5].detach().max()) < -8
