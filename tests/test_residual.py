"""What an image leaves of its scan, against noise that is known or estimated."""

from __future__ import annotations

import math

import pytest
import torch
from toys import small_transform

from bdgd.data import GaussianNoise, PoissonNoise, simulate
from bdgd.data.estimates import noise_of_one_size
from bdgd.inference.residual import residual


def test_the_residual_of_the_truth_is_the_noise() -> None:
    A = small_transform(size=48, views=20)
    x = torch.rand(1, *A.domain_shape, generator=torch.Generator().manual_seed(0))
    for noise in (GaussianNoise(0.02), PoissonNoise(1e4, attenuation=0.05)):
        y = simulate(A, x, noise, generator=torch.Generator().manual_seed(1)).sinograms
        found = residual(A, x, y, noise)
        assert found.ratio == pytest.approx(1, abs=0.06) and not found.estimated and "within its noise" in found.verdict()
        assert residual(A, 0.5 * x, y, noise).ratio > 2


def test_unknown_noise_is_estimated_from_the_sinogram() -> None:
    positions = torch.linspace(-1, 1, 200)
    smooth = (1 - positions**2).clamp(min=0).expand(1, 1, 60, 200)
    noise = torch.randn(smooth.shape, generator=torch.Generator().manual_seed(0))
    assert noise_of_one_size(smooth + 0.03 * noise) == pytest.approx(0.03, rel=0.03)
    padded = torch.nn.functional.pad((smooth + 0.03 * noise)[0], (80, 80), mode="replicate")  # as by a wider detector of a model
    assert noise_of_one_size(padded) == pytest.approx(0.03, rel=0.05) and math.isnan(noise_of_one_size(torch.ones(1, 1, 5, 9)))
    A = small_transform()
    x = torch.rand(1, *A.domain_shape)
    found = residual(A, x, A(x), None)
    assert found.estimated and found.ratio < 0.9 and "So far" in found.verdict(), "rough rays count as noise, which proves nothing"
    assert math.isnan(noise_of_one_size(torch.rand(1, 1, 5, 3)))
