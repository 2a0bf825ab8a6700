"""The closed-form posterior of the last layers: Bayesian linear regression on the features, and draws that have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_known_posterior import standard_errors
from torch import Tensor
from toys import no_update_undone, small_model, small_transform

from bdgd.checks import InputError
from bdgd.data import Correction, GaussianNoise, Scans, simulate
from bdgd.inference import reconstruct
from bdgd.models import DeepGradientDescent, State, load, save
from bdgd.models.last_layers import FullCovarianceLayer
from bdgd.training.laplace import covariance_factor, gram_matrix, laplace, spread


def design(features: Tensor) -> Tensor:
    """Phi (B P, 9 C) of features (B, C, H, W) by its definition: what each weight is multiplied with in each pixel."""
    basis = torch.eye(9 * features.shape[1], dtype=torch.float64).reshape(-1, features.shape[1], 3, 3)
    return torch.nn.functional.conv2d(features.double(), basis, padding=1).permute(0, 2, 3, 1).reshape(-1, len(basis))


def scans_of(model: DeepGradientDescent, images: int = 20) -> Scans:
    x = torch.rand(images, *model.A.domain_shape, generator=torch.Generator().manual_seed(3))
    return simulate(model.A, x, GaussianNoise(0.01), generator=torch.Generator().manual_seed(4))


def point_model(blocks: int = 2, size: int = 16) -> DeepGradientDescent:
    model = small_model("point", small_transform(size), blocks=blocks)
    assert isinstance(model, DeepGradientDescent)
    return model


def test_the_gram_matrix_of_random_features(generator: torch.Generator) -> None:
    features = torch.randn(7, 3, 6, 5, generator=generator)
    phi = design(features)
    assert torch.allclose(gram_matrix(features.split(2)), phi.T @ phi, rtol=1e-12)


def test_the_factor_is_that_of_the_inverse_also_where_it_is_ill_conditioned(generator: torch.Generator) -> None:
    root = torch.randn(144, 144, generator=generator, dtype=torch.float64) * torch.logspace(0, 5, 144, dtype=torch.float64)
    precision = root.T @ root + torch.eye(144, dtype=torch.float64)
    factor = covariance_factor(precision)
    assert torch.equal(factor, factor.tril()) and bool((factor.diag() > 0).all())
    error = factor.T @ precision @ factor - torch.eye(144, dtype=torch.float64)
    assert float(error.abs().max()) < 1e-6
    exact = torch.linalg.cholesky(torch.linalg.inv(precision))
    assert float((factor - exact).norm() / exact.norm()) < 1e-6


def test_on_fixed_features_the_layer_has_the_posterior_of_linear_regression(generator: torch.Generator) -> None:
    features, sigma, layer = torch.randn(5, 2, 8, 8, generator=generator), 6.0, FullCovarianceLayer(2)
    layer.reset(generator)
    mean = layer.weight.detach().clone()
    spread(layer, gram_matrix([features]) / sigma**2)
    phi = design(features)
    exact = torch.linalg.inv(phi.T @ phi / sigma**2 + torch.eye(18, dtype=torch.float64))
    factor = layer.cholesky().detach().double()
    assert float((factor @ factor.T - exact).norm() / exact.norm()) < 1e-6
    assert torch.equal(layer.weight, mean)
    draws = layer.draw(20_000, generator).detach().flatten(1)
    assert max(standard_errors(draws, mean.double().flatten(), exact)) < 3


@pytest.mark.parametrize("kl_weight", [1.0, 50.0])
@torch.no_grad()
def test_the_first_block_of_a_cascade(kl_weight: float) -> None:
    model = point_model(blocks=1)
    scans = scans_of(model)
    made = laplace(model, scans, kl_weight=kl_weight)
    state = model.begin(scans.sinograms)
    phi = design(model.blocks[0].features(state.x, state.gradient))
    precision = phi.T @ phi / (kl_weight * float(model.noise_level) ** 2) + torch.eye(144, dtype=torch.float64)
    factor = made.blocks[0].last.cholesky().double()
    exact = torch.linalg.inv(precision)
    assert float((factor @ factor.T - exact).norm() / exact.norm()) < 1e-4  # features and factor in float32
    images = torch.stack(list(reconstruct(made, scans.sinograms[:1], 4).draws()))
    assert float(images.var(0).mean()) > 0


@torch.no_grad()
def test_a_later_block_sees_the_images_behind_the_new_one() -> None:
    """The second posterior follows from images that went through the first block, and that model is otherwise as it was."""
    model = point_model()
    scans = scans_of(model)
    with no_update_undone():
        made = laplace(model, scans)
        state = model.begin(scans.sinograms)
        block = model.blocks[0]
        behind = model.settle(state, block.update(state.x, block.features(state.x, state.gradient), block.last.weight), scans.sinograms)
    factor = made.blocks[1].last.cholesky().double()

    def distance(images: State) -> float:
        """From the posterior that features of these images would give."""
        phi = design(model.blocks[1].features(images.x, images.gradient))
        exact = torch.linalg.inv(phi.T @ phi / float(model.noise_level) ** 2 + torch.eye(144, dtype=torch.float64))
        return float((factor @ factor.T - exact).norm() / exact.norm())

    assert distance(behind) < 0.1 < distance(state)  # the images were pushed through with drawn weights, here with their mean
    for old, new in zip(model.blocks, made.blocks, strict=True):
        assert torch.equal(old.last.weight, new.last.weight) and torch.equal(old.last.bias, new.last.bias)
        assert torch.equal(old.merge[1].weight, new.merge[1].weight) and torch.equal(old.log_noise, new.log_noise)
    assert model.last_layer == "point" and made.last_layer == "full_covariance" and made.random


def test_more_images_make_it_surer_and_a_larger_kl_weight_less() -> None:
    model = point_model(blocks=1)
    scans = scans_of(model)

    def log_determinant(made: DeepGradientDescent) -> float:
        return float(made.blocks[0].last.log_diagonal.detach().sum())

    all_of_them = log_determinant(laplace(model, scans))
    assert all_of_them < log_determinant(laplace(model, scans[:5])) < 0
    assert all_of_them < log_determinant(laplace(model, scans, kl_weight=100.0)) < 0


def test_the_result_is_a_model_like_any_other(tmp_path: Path) -> None:
    model = point_model()
    made, twin = (laplace(model, scans_of(model), generator=torch.Generator().manual_seed(1)) for _ in range(2))
    save(made, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.fingerprint() == made.fingerprint() == twin.fingerprint()
    assert again.provenance["laplace"]["images"] == 20


def test_an_untrained_model_is_refused() -> None:
    model = DeepGradientDescent(small_transform(), blocks=1, last_layer="point")
    with pytest.raises(InputError, match="noise level"):
        laplace(model, scans_of(model))


def test_the_correction_of_scans_stays() -> None:
    model = point_model()
    model.correction = Correction(air=True, hardening=0.2)
    assert laplace(model, scans_of(model)).correction == model.correction
