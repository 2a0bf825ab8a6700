"""The cascade: the paper's block, the data-misfit gradients, any operator, any unit of length."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import KINDS, DenseOperator, dense, no_update_undone, small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent, GaussianMisfit, GradientBlock, PoissonMisfit
from bdgd.models.cascade import MOST_GROWTH
from bdgd.models.last_layers import MeanFieldLayer
from bdgd.models.misfit import make_misfit
from bdgd.operators import ParallelBeam, RayTransform, operator_norm


def half_back_projection(A: Any, y: Tensor) -> Tensor:
    """A start that needs no geometry."""
    return 0.05 * A.T(y)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def noise_for(model: DeepGradientDescent, batch: int, seed: int = 0) -> list[Tensor]:
    size = model.A.domain_shape[1:]
    return [block.last.local_noise(batch, (size[0], size[1]), keyed_generator(seed, k)) for k, block in enumerate(model.blocks)]


# The block ---------------------------------------------------------------------------------------------------------------


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


# The gradient of the data misfit -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact() -> RayTransform:
    """In float64, to compare with automatic differentiation."""
    return RayTransform(ParallelBeam.sparse(image_size=(7, 8), views=4), dtype=torch.float64)


def test_gaussian_gradient_is_that_of_half_the_squared_residual(exact: RayTransform, generator: torch.Generator) -> None:
    misfit = make_misfit(exact, "gaussian", scale=60)
    assert type(misfit) is GaussianMisfit
    x = torch.rand(2, 1, 7, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.rand(2, *exact.range_shape, dtype=torch.float64, generator=generator)
    (expected,) = torch.autograd.grad((exact(x) - y).square().sum() / 2, x)
    torch.testing.assert_close(misfit.gradient(x, y), 60 / operator_norm(exact) ** 2 * expected)


def test_poisson_gradient_is_that_of_the_negative_log_likelihood(exact: RayTransform, generator: torch.Generator) -> None:
    photons, attenuation, scale = 5000.0, 0.3, 60.0
    misfit = make_misfit(exact, "poisson", scale, attenuation)
    assert type(misfit) is PoissonMisfit
    x = torch.rand(2, 1, 7, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    expected_counts = photons * torch.exp(-attenuation * exact(x))
    counts = torch.poisson(expected_counts.detach(), generator=generator)
    assert (counts > 0).all()
    y = -torch.log(counts / photons) / attenuation
    (expected,) = torch.autograd.grad(-torch.distributions.Poisson(expected_counts).log_prob(counts).sum(), x)
    normalised = scale / operator_norm(exact) ** 2 * expected / (photons * attenuation**2)
    torch.testing.assert_close(misfit.gradient(x, y), normalised)


def test_poisson_gradient_is_the_gaussian_one_for_weak_attenuation(exact: RayTransform, generator: torch.Generator) -> None:
    x = torch.rand(1, 1, 7, 8, dtype=torch.float64, generator=generator)
    y = torch.rand(1, *exact.range_shape, dtype=torch.float64, generator=generator)
    weak = make_misfit(exact, "poisson", attenuation=1e-6).gradient(x, y)
    torch.testing.assert_close(weak, make_misfit(exact, "gaussian").gradient(x, y), rtol=1e-4, atol=1e-6)


def test_scale_one_is_the_gradient_of_a_unit_norm_operator(exact: RayTransform, generator: torch.Generator) -> None:
    """Its norm from the singular values, and the gradient as the paper writes it for A / ||A||, y / ||A||."""
    matrix = dense(exact).matrix
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    misfit = make_misfit(exact, scale=1)
    assert misfit.norm == pytest.approx(norm, rel=1e-5)
    unit = DenseOperator(matrix / norm, exact.domain_shape, exact.range_shape)
    x = torch.rand(1, 1, 7, 8, dtype=torch.float64, generator=generator)
    y = torch.rand(1, *exact.range_shape, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(misfit.gradient(x, y), unit.T(unit(x) - y / norm), rtol=1e-4, atol=1e-8)


# The cascade -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_forward_goes_through_the_blocks(kind: str) -> None:
    model = small_model(kind, blocks=3)
    y = some_sinograms(model.A)
    start, noise = model.start(y), noise_for(model, len(y))
    torch.testing.assert_close(start, fbp(model.A, y))
    x = start
    for block, local in zip(model.blocks, noise, strict=True):
        gradient = 80 / operator_norm(model.A) ** 2 * model.A.T(model.A(x) - y)
        x = block(x, gradient, local)
    output = model(y, start, noise)
    torch.testing.assert_close(output, x)
    assert output.shape == start.shape and not (output < 0).any() and (output > 0).any()
    with pytest.raises(ValueError, match="shorter"):
        model(y, start, noise[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_joint_training_reaches_every_block(kind: str) -> None:
    model = small_model(kind, blocks=2)
    y = some_sinograms(model.A)
    model(y, model.start(y), noise_for(model, len(y))).square().sum().backward()
    for name, parameter in model.named_parameters():
        if "log_noise" not in name:  # which is in the likelihood
            assert parameter.grad is not None and parameter.grad.any() and parameter.grad.isfinite().all(), name


@no_update_undone()
@pytest.mark.parametrize("misfit", ["gaussian", "poisson"])
def test_any_operator_will_do(misfit: str) -> None:
    """A bare one gives what the ray transform with the same matrix gives."""
    A = small_transform(12)
    y = some_sinograms(A)
    models = [DeepGradientDescent(B, blocks=2, initial=half_back_projection, misfit=misfit, attenuation=0.1) for B in (A, dense(A))]
    expected, found = (reconstruct(model, y, draws=5) for model in models)
    assert expected.mean.any()
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-2, atol=1e-9)


def test_range_and_domain_may_have_different_kinds_of_shape(generator: torch.Generator) -> None:
    """Any number of measurements in any arrangement, such as a plain row of them."""
    A = DenseOperator(torch.randn(30, 48, generator=generator) / 10, (1, 6, 8), (30,))
    model = DeepGradientDescent(A, blocks=2, initial=half_back_projection)
    posterior = reconstruct(model, torch.rand(2, 30, generator=generator), draws=3)
    assert posterior.mean.shape == (2, 1, 6, 8)


def test_fbp_is_no_start_for_an_operator_without_geometry() -> None:
    A = dense(small_transform(12))
    with pytest.raises(InputError, match="fbp needs an operator with a geometry"):
        reconstruct(DeepGradientDescent(A, blocks=1), torch.rand(1, *A.range_shape), draws=2)


@no_update_undone()
@pytest.mark.parametrize("misfit", ["gaussian", "poisson"])
def test_nothing_depends_on_the_unit_of_length(misfit: str) -> None:
    unit = 0.3
    A, B = small_transform(), small_transform(pixel_size=unit)
    y = some_sinograms(A)
    one = DeepGradientDescent(A, blocks=3, misfit=misfit, attenuation=0.05)
    other = DeepGradientDescent(B, blocks=3, misfit=misfit, attenuation=0.05 / unit)
    torch.testing.assert_close(
        other.misfit.gradient(other.start(unit * y), unit * y), one.misfit.gradient(one.start(y), y), rtol=1e-4, atol=1e-4
    )
    expected, found = reconstruct(one, y, draws=5), reconstruct(other, unit * y, draws=5)
    assert expected.mean.any()
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-4, atol=1e-6)


@no_update_undone()
def test_measuring_every_view_twice_changes_nothing() -> None:
    angles = np.linspace(0.1, 3.0, 7)
    once, twice = (RayTransform(ParallelBeam(image_size=12, angles=a, detectors=18)) for a in (angles, np.repeat(angles, 2)))
    y = some_sinograms(once)
    expected = reconstruct(DeepGradientDescent(once, blocks=2), y, draws=4)
    found = reconstruct(DeepGradientDescent(twice, blocks=2), y.repeat_interleave(2, dim=2), draws=4)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-5)


def test_an_update_that_fits_the_data_worse_is_undone(generator: torch.Generator) -> None:
    """Image by image: kept where the misfit falls or grows a little, undone where it grows much or is not a number."""
    A = small_transform()
    model = DeepGradientDescent(A, blocks=1)
    truth = torch.rand(5, 1, 16, 16, generator=generator)
    y = A(truth)
    state = model.begin(y)
    residual = A(state.x) - y
    torch.testing.assert_close(state.misfit, residual.flatten(1).norm(dim=1))
    torch.testing.assert_close(state.gradient, model.misfit.gradient(state.x, y))

    def grown(factor: float) -> Tensor:
        """Images whose misfit is that of the state times the factor: along a line from the truth, where it is zero."""
        return truth + factor * (state.x - truth)

    a_little, too_much = (1 + MOST_GROWTH) / 2, 1.05 * MOST_GROWTH
    proposed = torch.stack((truth[0], grown(a_little)[1], grown(too_much)[2], torch.full_like(truth[3], math.nan), grown(0.5)[4]))
    settled = model.settle(state, proposed, y)
    kept = [0, 1, 4]
    assert torch.equal(settled.x[kept], proposed[kept]) and torch.equal(settled.x[[2, 3]], state.x[[2, 3]])
    torch.testing.assert_close(settled.gradient, model.misfit.gradient(settled.x, y), rtol=1e-4, atol=1e-4)
    smallest = torch.tensor([0, 1, 1, 1, 0.5]) * state.misfit  # so that growing a little in every block does not add up
    torch.testing.assert_close(settled.misfit, smallest, rtol=1e-3, atol=1e-4)


class Movable(DenseOperator):
    """Knows where it is and can be moved; the "meta" device stands for a GPU, as it is on every machine."""

    def __init__(self, A: DenseOperator, device: str = "cpu"):
        super().__init__(A.matrix, A.domain_shape, A.range_shape)
        self.original, self.device = A, torch.device(device)

    def to(self, device: torch.device) -> Movable:
        return Movable(self.original, device)


@pytest.mark.parametrize(
    "move", [lambda model: model.to("meta"), lambda model: nn.Sequential(model).to("meta")[0]], ids=["itself", "as a part"]
)
def test_the_operator_moves_with_the_model(move: Any) -> None:
    model = DeepGradientDescent(Movable(dense(small_transform(8))), blocks=1)
    operator = model.A
    model.to("cpu")
    assert model.A is operator
    move(model)
    assert model.device.type == "meta" and model.A.device.type == "meta" and model.misfit.A is model.A


def test_a_snapshot_has_weights_of_its_own_on_the_same_operator() -> None:
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    snapshot = model.snapshot()
    assert snapshot.A is model.A and snapshot.misfit.A is model.A and snapshot.initial is model.initial
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot.state_dict().items())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"blocks": 0}, "blocks must be at least 1, got 0"),
    ({"blocks": 2.5}, r"blocks must be a whole number, got 2\.5"),
    ({"last_layer": "bayes"}, "last_layer must be one of 'point', .*, got 'bayes'"),
    ({"misfit": "laplace"}, "misfit must be 'gaussian' or 'poisson', got 'laplace'"),
    ({"gradient_scale": 0}, "gradient_scale must be above 0, got 0"),
    ({"misfit": "poisson", "attenuation": -1}, "attenuation must be above 0, got -1"),
    ({"A": DenseOperator(torch.ones(3, 32), (2, 4, 4), (3,))}, r"images of shape \(1, H, W\), .* is \(2, 4, 4\)"),
    ({"A": DenseOperator(torch.ones(3, 16), (4, 4), (3,))}, r"images of shape \(1, H, W\), .* is \(4, 4\)"),
    (
        {"A": RayTransform(ParallelBeam.sparse(image_size=8, views=2), dtype=torch.float64)},
        r"works in torch\.float32, .* in torch\.float64",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_built_is_refused_in_a_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        DeepGradientDescent(**{"A": small_transform(8), "blocks": 1, **arguments})
    assert "\n" not in str(refusal.value)


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
        outputs = block.activations(x, gradient)
        after = block.update(x, outputs[-1], block.last.draw(1, keyed_generator(4)))
    assert replaced >= 6
    assert all(float(layer.bias.detach()[channel]) > -100 for layer, channel in zip(block.hidden, (3, 7, 2, 30, 11, 5), strict=True))
    tolerance = 5e-3 if kind in ("mean_field", "full_covariance") else 1e-6  # these features have weights of a tiny random size now
    torch.testing.assert_close(after, before, rtol=0, atol=tolerance)
    if isinstance(block.last, MeanFieldLayer):
        assert float(block.last.log_std[:, 5].detach().max()) < -8
