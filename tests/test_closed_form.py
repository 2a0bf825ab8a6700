"""Sampling against the closed form: one linear block, whose moments, regions and correlations are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import MODES, RANDOM_CASES, no_update_undone, quick_model, seeded, some_sinograms, stated_moments

from bdgd.inference import Region, reconstruct


@pytest.fixture(scope="module", autouse=True)
def _all_updates_count() -> Iterator[None]:
    """Every test here but those of the guard runs untrained blocks as they are."""
    with no_update_undone():
        yield


# Against the closed form -------------------------------------------------------------------------------------------------


DRAWS = 4000
GAUSSIAN_KINDS = ["mean_field", "full_covariance"]


class Linear:
    """One block whose projection onto x >= 0 never acts, so that x_1 = x_0 + U'w + bias is linear in the weights w."""

    def __init__(self, kind: str, mode: str = "weights"):
        self.model = quick_model(kind, size=10)
        block = self.model.blocks[0]
        with torch.no_grad():
            block.last.bias.fill_(100.0)
            y = some_sinograms(self.model.A, count=1)
            start = self.model.start(y)
            features = block.features(start, self.model.misfit.gradient(start, y))
        patches = F.unfold(features, 3, padding=1)[0].double()  # U (144, P)
        mean, covariance = (moment.double() for moment in stated_moments(kind, block.last))
        self.mean = start.flatten().double() + patches.T @ mean + 100.0  # (P,)
        self.covariance = patches.T @ covariance @ patches  # (P, P)
        self.posterior = reconstruct(self.model, y, draws=DRAWS, draw=mode, generator=seeded(5))
        std = self.covariance.diagonal().sqrt()
        assert (self.mean > 6 * std).all() and (std > 1e-3).all()

    @cached_property
    def draws(self) -> Tensor:
        return torch.stack(list(self.posterior.draws()))

    def region(self, mask: Tensor) -> Region:
        """Of the posterior, with its draws replayed only once for all regions."""
        return replace(self.posterior, replay=lambda: iter(self.draws)).region(mask)


@pytest.fixture(scope="module")
def linear_cases(_all_updates_count: None) -> dict[tuple[str, str], Linear]:
    return {case: Linear(*case) for case in RANDOM_CASES}


@pytest.mark.parametrize("case", RANDOM_CASES, ids="-".join)
def test_moments_are_those_of_the_closed_form(case: tuple[str, str], linear_cases: dict[tuple[str, str], Linear]) -> None:
    """In both modes every pixel by itself has the same mean and variance, within three Monte-Carlo standard errors."""
    linear = linear_cases[case]
    variance = linear.covariance.diagonal()
    z_mean = (linear.posterior.mean.flatten() - linear.mean) / (variance / DRAWS).sqrt()
    z_variance = (linear.posterior.epistemic.flatten() - variance) / (variance * math.sqrt(2 / (DRAWS - 1)))
    for z in (z_mean, z_variance):
        assert z.abs().quantile(0.99) < 3 and z.abs().max() < 5, z.abs().max()


def masks() -> dict[str, Tensor]:
    everywhere, square, scattered = torch.ones(10, 10, dtype=torch.bool), torch.zeros(10, 10, dtype=torch.bool), torch.zeros(10, 10)
    square[3:7, 4:9] = True
    return {"everywhere": everywhere, "square": square, "scattered": scattered.bernoulli(0.3, generator=seeded()).bool()}


@pytest.mark.parametrize("region", list(masks()))
@pytest.mark.parametrize("kind", GAUSSIAN_KINDS)
def test_the_spread_of_a_region_is_that_of_the_closed_form(kind: str, region: str, linear_cases: dict[tuple[str, str], Linear]) -> None:
    """Drawn weights keep the covariance between pixels, a'U'CUa; noise drawn pixel by pixel does not."""
    mask = masks()[region]
    average = mask.flatten().double() / int(mask.sum())  # a (P,)
    aleatoric = math.exp(-8) * float((average**2).sum())
    for mode in MODES:
        linear = linear_cases[kind, mode]
        covariance = linear.covariance if mode == "weights" else torch.diag(linear.covariance.diagonal())
        epistemic = float(average @ covariance @ average)
        found = linear.region(mask)
        assert float(found.mean) == pytest.approx(float(average @ linear.mean), abs=3 * math.sqrt(epistemic / DRAWS) + 1e-5)
        assert float(found.std) ** 2 - aleatoric == pytest.approx(epistemic, rel=3 * math.sqrt(2 / DRAWS))
    correlated, independent = (linear_cases[kind, mode].region(mask).std for mode in MODES)
    assert correlated > 1.5 * independent


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", GAUSSIAN_KINDS)
def test_drawn_weights_correlate_pixels_and_drawn_pixels_do_not(kind: str, mode: str, linear_cases: dict[tuple[str, str], Linear]) -> None:
    linear = linear_cases[kind, mode]
    found = torch.corrcoef(linear.draws.flatten(1).double().T)
    std = linear.covariance.diagonal().sqrt()
    expected = linear.covariance / std / std[:, None] if mode == "weights" else torch.eye(len(std))
    assert (found - expected).abs().max() < 5 / math.sqrt(DRAWS)
