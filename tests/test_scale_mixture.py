"""The scale mixture against closed forms, numerical integrals and its own samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bdgd.models import ScaleMixture

WEIGHTS, STDS = (0.7, 0.25, 0.05), (2e-4, 3e-3, 5e-2)


def mixture(weights: tuple[float, ...] = WEIGHTS, stds: tuple[float, ...] = STDS, size: tuple[int, int] = (1, 1)) -> ScaleMixture:
    """The same mixture in every pixel of one image, in float64."""

    def spread(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[None, :, None, None].expand(1, len(values), *size)

    return ScaleMixture(spread(weights).log(), spread(stds) ** 2)


def test_one_component_is_a_gaussian() -> None:
    std, error = torch.rand(2, 1, 3, 4, dtype=torch.float64) + 0.1, torch.randn(2, 1, 3, 4, dtype=torch.float64)
    gaussian = ScaleMixture.gaussian(std**2)
    torch.testing.assert_close(gaussian.log_density(error), torch.distributions.Normal(0.0, std).log_prob(error))
    torch.testing.assert_close(gaussian.variance(), std**2)
    torch.testing.assert_close(gaussian.z(error), error.abs() / std)
    torch.testing.assert_close(gaussian.half_width(torch.tensor(1.5)), 1.5 * std)


def test_density_and_variance_are_those_of_the_sum() -> None:
    def density(e: float) -> float:
        return float(mixture().log_density(torch.full((1, 1, 1, 1), e, dtype=torch.float64)).exp())

    for e in (0.0, 1e-4, -2e-3, 0.08):
        assert density(e) == pytest.approx(sum(w * stats.norm.pdf(e, scale=s) for w, s in zip(WEIGHTS, STDS, strict=True)))
    points = [-0.01, -1e-3, 0.0, 1e-3, 0.01]
    total, _ = integrate.quad(density, -0.5, 0.5, points=points, limit=400)
    square, _ = integrate.quad(lambda e: e * e * density(e), -0.5, 0.5, points=points, limit=400)
    assert total == pytest.approx(1.0, rel=1e-6)
    assert float(mixture().variance()) == pytest.approx(square, rel=1e-6)


def test_adding_a_variance_is_the_convolution_with_a_gaussian() -> None:
    blur = 2e-3
    blurred = mixture().plus(torch.full((1, 1, 1, 1), blur**2, dtype=torch.float64))

    def convolved(e: float) -> float:
        def integrand(t: float) -> float:
            return stats.norm.pdf(t, scale=blur) * sum(w * stats.norm.pdf(e - t, scale=s) for w, s in zip(WEIGHTS, STDS, strict=True))

        return integrate.quad(integrand, -0.02, 0.02, points=[0.0, e], limit=400)[0]

    for e in (0.0, 1e-3, 6e-3):
        assert float(blurred.log_density(torch.full((1, 1, 1, 1), e, dtype=torch.float64)).exp()) == pytest.approx(convolved(e), rel=1e-6)
    assert float(blurred.variance()) == pytest.approx(float(mixture().variance()) + blur**2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_width_is_the_inverse_of_z(dtype: torch.dtype) -> None:
    m = mixture(size=(6, 6))
    m = ScaleMixture(m.log_weights.to(dtype), m.variances.to(dtype))
    error = torch.logspace(-6, 3, 36).reshape(1, 1, 6, 6).to(dtype)
    z = m.z(error)
    assert bool((z.flatten().diff() > 0).all()) and bool(z.isfinite().all())
    torch.testing.assert_close(m.half_width(z), error, rtol=1e-5, atol=0)


def test_half_width_of_zero_is_zero() -> None:
    assert float(mixture().half_width(torch.tensor(0.0))) == 0.0


def test_z_of_its_own_errors_is_half_normal() -> None:
    rng = np.random.default_rng(0)
    error = rng.normal(size=40_000) * rng.choice(STDS, p=WEIGHTS, size=40_000)
    z = mixture(size=(200, 200)).z(torch.from_numpy(error).reshape(1, 1, 200, 200))
    assert stats.kstest(z.flatten().numpy(), "halfnorm").pvalue > 0.01


def test_the_probability_above() -> None:
    m = mixture()
    for gap in (-0.1, -1e-3, 0.0, 2e-3):
        expected = sum(w * stats.norm.sf(gap, scale=s) for w, s in zip(WEIGHTS, STDS, strict=True))
        assert float(m.above(torch.full((1, 1, 1, 1), gap, dtype=torch.float64))) == pytest.approx(expected, rel=1e-9)


def test_errors_far_out_are_told_apart_and_belong_to_the_widest_component() -> None:
    huge = torch.full((1, 1, 1, 1), 1e3, dtype=torch.float64)
    assert float(mixture().z(huge)) == pytest.approx(1e3 / STDS[-1], rel=1e-6)
    expected = math.log(WEIGHTS[-1]) + stats.norm.logpdf(1e3, scale=STDS[-1])
    assert float(mixture().log_density(huge)) == pytest.approx(expected, rel=1e-12)
