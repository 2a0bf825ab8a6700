"""The continuous ranked probability score is its integral, for a normal, a Student t and for draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bdgd.checks import InputError
from bdgd.metrics import draws_crps, gaussian_crps, student_t_crps


def crps_by_definition(distribution: Any, y: float) -> float:
    """The integral of (F(t) - [t >= y])^2."""
    below = integrate.quad(lambda t: distribution.cdf(t) ** 2, -np.inf, y)[0]
    return float(below + integrate.quad(lambda t: distribution.sf(t) ** 2, y, np.inf)[0])


POINTS = [(0.0, 1.0, 0.0), (0.3, 0.5, 1.4), (-1.0, 2.0, -4.0)]


@pytest.mark.parametrize(("mean", "std", "truth"), POINTS)
def test_gaussian_and_student_crps_are_the_integral(mean: float, std: float, truth: float) -> None:
    values = [torch.tensor(value, dtype=torch.float64) for value in (mean, std, truth)]
    assert float(gaussian_crps(*values)) == pytest.approx(crps_by_definition(stats.norm(mean, std), truth), rel=1e-6)
    for degrees in (3.0, 7.5):
        distribution = stats.t(degrees, mean, std * math.sqrt((degrees - 2) / degrees))
        assert float(student_t_crps(degrees)(*values)) == pytest.approx(crps_by_definition(distribution, truth), rel=1e-6)


def test_the_crps_of_a_certain_prediction_is_the_absolute_error() -> None:
    mean, truth = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0])
    assert gaussian_crps(mean, torch.zeros(2), truth).tolist() == pytest.approx([0.5, 0.0])
    assert student_t_crps(5.0)(mean, torch.zeros(2), truth).tolist() == pytest.approx([0.5, 0.0])
    assert draws_crps(mean[None], truth).tolist() == [0.5, 0.0]


def test_the_crps_of_draws_is_that_of_all_pairs_and_of_their_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    draws, truth = torch.randn(7, 2, 3, generator=generator), torch.randn(2, 3, generator=generator)
    pairs = (draws[:, None] - draws).abs().double().sum((0, 1)) / (7 * 6)
    expected = (draws - truth).abs().double().mean(0) - pairs / 2
    torch.testing.assert_close(draws_crps(draws, truth), expected, rtol=1e-6, atol=1e-6)
    few = draws_crps(torch.randn(4, 200_000, generator=generator), torch.full((200_000,), 0.7)).mean()
    zero = torch.zeros((), dtype=torch.float64)
    assert float(few) == pytest.approx(float(gaussian_crps(zero, zero + 1, zero + 0.7)), abs=0.005)
    with pytest.raises(InputError, match="stack them along a first axis"):
        draws_crps(draws, truth[0])
