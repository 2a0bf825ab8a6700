"""The gradient of the data misfit is that of automatic differentiation, for normal noise and for photons."""

from __future__ import annotations

import pytest
import torch
from toys import DenseOperator, dense

from bdgd.models import GaussianMisfit, PoissonMisfit
from bdgd.models.misfit import make_misfit
from bdgd.operators import ParallelBeam, RayTransform, operator_norm


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
