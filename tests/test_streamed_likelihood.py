"""Likelihoods of pixels and of patches over a set: those of SciPy and of torch.distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from predictions import Gaussian, heavy_case, streamed
from scipy import stats
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics import PatchCovariance, PatchLikelihood, PixelScore, gaussian_nll, nll, student_t_nll


def test_the_pixel_likelihood_is_the_one_per_image() -> None:
    mean, std, truth = heavy_case()
    found = streamed(PixelScore(gaussian_nll), (mean, std, truth)).result()
    exact = nll(Gaussian(mean, std), truth)
    assert found.per_image == pytest.approx(exact.tolist(), rel=1e-12)
    assert found.pooled == pytest.approx(float(exact.mean()), rel=1e-12) and found.pixels == mean.numel()


def test_a_least_std_keeps_an_exact_pixel_from_outweighing_all_others() -> None:
    zero = torch.zeros(1, 1, 1, 1)
    metric = PixelScore(gaussian_nll, least_std=1e-4)
    metric.add(zero, zero, zero)
    assert metric.result().pooled == pytest.approx(math.log(1e-4) + 0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("degrees", [2.5, 4.0, 30.0])
def test_student_t_is_that_of_scipy_with_the_std_as_its_standard_deviation(degrees: float) -> None:
    mean, std, truth = (tensor.double() for tensor in heavy_case(1, 8))
    scale = (std * math.sqrt((degrees - 2) / degrees)).numpy()
    expected = -stats.t.logpdf(truth.numpy(), degrees, mean.numpy(), scale)
    np.testing.assert_allclose(student_t_nll(degrees)(mean, std, truth).numpy(), expected, rtol=1e-10)
    with pytest.raises(InputError, match="above 2 degrees"):
        student_t_nll(2.0)


def correlated_draws(number: int, batch: int, height: int, width: int) -> Tensor:
    """Draws (S, B, 1, H, W) whose pixels vary together."""
    rough = torch.randn(number, batch, 1, height, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return 0.5 + 0.1 * (rough + rough.roll(1, -1) + rough.roll(1, -2))


@pytest.mark.parametrize("side", [1, 2, 4, 8])
@pytest.mark.parametrize("number", [1, 5, 200])
def test_the_patch_likelihood_is_that_of_torch_distributions(side: int, number: int) -> None:
    """Fewer draws than pixels and more, on an image whose sides no patch divides."""
    draws = correlated_draws(number, 2, 18, 27)
    aleatoric = 0.01 * (1 + torch.rand(2, 1, 18, 27, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    truth = 0.5 + 0.2 * torch.randn(2, 1, 18, 27, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean, moments, metric = draws.mean(0), PatchCovariance(side), PatchLikelihood(side)
    for draw in draws:
        moments.add(draw)
    metric.add(mean, moments.result(), aleatoric, truth)
    expected = []
    for b in range(2):
        for i in range(18 // side):
            for j in range(27 // side):
                where = (slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side))
                values = draws[:, b, 0][:, *where].flatten(1)
                cov = torch.cov(values.T).reshape(side**2, side**2) if number > 1 else torch.zeros(side**2, side**2)
                normal = torch.distributions.MultivariateNormal(values.mean(0), cov + torch.diag(aleatoric[b, 0][where].flatten()))
                expected.append(-float(normal.log_prob(truth[b, 0][where].flatten())) / side**2)
    found = metric.result()
    assert found.pooled == pytest.approx(float(np.mean(expected)), rel=1e-9) and found.pixels == len(expected)


def test_a_patch_counts_when_all_of_it_lies_in_the_mask() -> None:
    draws, mask = correlated_draws(10, 1, 8, 8), torch.ones(8, 8, dtype=torch.bool)
    mask[0, 0] = False  # takes one of the four patches of side 4 out
    moments, metric, alone = PatchCovariance(4), PatchLikelihood(4), PatchLikelihood(4)
    for draw in draws:
        moments.add(draw)
    aleatoric, covariance = torch.full_like(draws[0], 0.01), moments.result()
    metric.add(draws.mean(0), covariance, aleatoric, draws[0], mask)
    outside = torch.full_like(draws[0], 9.0).where(~mask, draws[0])
    alone.add(draws.mean(0), covariance, aleatoric, outside, mask)
    assert metric.result().pixels == 3 and alone.result() == metric.result()


def test_the_likelihood_of_a_draw_is_the_entropy_of_the_correlated_draws() -> None:
    """What the correlation is good for: errors that vary together are less of a surprise to draws that do."""
    draws = correlated_draws(400, 1, 64, 64)
    for side in (1, 2):
        moments, metric = PatchCovariance(side), PatchLikelihood(side)
        for draw in draws[1:]:
            moments.add(draw)
        metric.add(draws[1:].mean(0), moments.result(), torch.full_like(draws[0], 1e-4), draws[0])
        # Pixels are sums of three normals of std 0.1 and share one with each neighbour and across one diagonal.
        shared = torch.tensor([[3, 1, 1, 0], [1, 3, 1, 1], [1, 1, 3, 1], [0, 1, 1, 3]], dtype=torch.float64)[: side**2, : side**2]
        normal = torch.distributions.MultivariateNormal(torch.zeros(side**2).double(), 0.01 * shared + 1e-4 * torch.eye(side**2))
        assert metric.result().pooled == pytest.approx(float(normal.entropy()) / side**2, abs=0.02)


def test_what_a_patch_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match="patches of 8 x 8 pixels do not fit into images of 4 x 9"):
        PatchCovariance(8).add(torch.zeros(1, 1, 4, 9))
    with pytest.raises(InputError, match="singular"):
        PatchLikelihood(1).add(*[torch.zeros(1, 1, 1, 1)] * 4)
    with pytest.raises(InputError, match="no draw"):
        PatchCovariance(2).result()
