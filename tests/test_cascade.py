"""The cascade: block after block, on any operator, in any unit of length."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toys import KINDS, MODELS, MODES, DenseOperator, dense, no_update_undone, same_posterior, small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.inference import Posterior, reconstruct
from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent, GradientBlock, LearnedPrimalDual, ScaleHead, load, save
from bdgd.models.cascade import MOST_GROWTH
from bdgd.operators import ParallelBeam, RayTransform, operator_norm


def half_back_projection(A: Any, y: Tensor) -> Tensor:
    """A start that needs no geometry."""
    return 0.05 * A.T(y)


def misfit_of(kind: str, attenuation: float) -> dict[str, Any]:
    """The arguments of that misfit; only photons are attenuated."""
    return {"misfit": kind} | ({"attenuation": attenuation} if kind == "poisson" else {})


def noise_for(model: DeepGradientDescent, batch: int, seed: int = 0) -> list[Tensor]:
    size = model.A.domain_shape[1:]
    return [block.last.local_noise(batch, (size[0], size[1]), keyed_generator(seed, k)) for k, block in enumerate(model.blocks)]


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
    models = [DeepGradientDescent(B, blocks=2, initial=half_back_projection, **misfit_of(misfit, 0.1)) for B in (A, dense(A))]
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
    one = DeepGradientDescent(A, blocks=3, **misfit_of(misfit, 0.05))
    other = DeepGradientDescent(B, blocks=3, **misfit_of(misfit, 0.05 / unit))
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
    torch.testing.assert_close(state.residual_norm, residual.flatten(1).norm(dim=1))
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
    smallest = torch.tensor([0, 1, 1, 1, 0.5]) * state.residual_norm  # so that growing a little in every block does not add up
    torch.testing.assert_close(settled.residual_norm, smallest, rtol=1e-3, atol=1e-4)


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


def test_models_and_their_draws_are_the_same_whatever_the_default_precision_is() -> None:
    A = small_transform()
    y, models = some_sinograms(A), [small_model(kind) for kind in MODELS]

    def made() -> tuple[list[dict[str, Tensor]], list[Posterior]]:
        fresh = [*(DeepGradientDescent(A, 1, kind) for kind in KINDS), LearnedPrimalDual(A, 1), ScaleHead(3)]
        draws = [reconstruct(model, y, draws=2, draw=mode) for model in models for mode in MODES]
        return [module.state_dict() for module in fresh], draws

    expected, before = made(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = made()
    finally:
        torch.set_default_dtype(before)
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert all(same_posterior(*pair) for pair in zip(found[1], expected[1], strict=True))


def test_attenuation_belongs_to_photons() -> None:
    with pytest.raises(InputError, match=r"attenuation is for misfit='poisson', got attenuation=0\.02 with 'gaussian'"):
        DeepGradientDescent(small_transform(), 1, attenuation=0.02)


def test_making_models_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    for kind in MODELS:
        save(small_model(kind), tmp_path / "model.safetensors")
        load(tmp_path / "model.safetensors")
    GradientBlock()
    ScaleHead(3)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("device", ["bogus", "meta", 3.5])
def test_operators_are_on_devices_that_compute(device: Any) -> None:
    with pytest.raises(InputError, match="device must be one"):
        RayTransform(small_transform().geometry, device=device)
