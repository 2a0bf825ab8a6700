"""Log-likelihood, coverage and sparsification against closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refusal
from torch import Tensor
from toys import MODELS, small_model, some_sinograms

from bdgd.checks import InputError
from bdgd.inference import reconstruct
from bdgd.metrics import ause, coverage, nll


@dataclass
class Gaussian:
    """A posterior as the metrics see one."""

    mean: Tensor
    std: Tensor

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        half = NormalDist().inv_cdf(0.5 + level / 2) * self.std
        return self.mean - half, self.mean + half


def random_case(batch: int = 3, size: int = 20, seed: int = 0) -> tuple[Gaussian, Tensor]:
    """A posterior and the truth drawn from it, so that it is perfectly calibrated."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.rand(batch, 1, size, size, generator=generator)
    std = 0.02 + 0.2 * torch.rand(batch, 1, size, size, generator=generator)
    return Gaussian(mean, std), mean + std * torch.randn(mean.shape, generator=generator)


def random_mask(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(9)) < 0.3


# Log-likelihood ----------------------------------------------------------------------------------------------------------


def test_nll_is_that_of_torch_distributions() -> None:
    posterior, truth = random_case()
    per_pixel = -torch.distributions.Normal(posterior.mean.double(), posterior.std.double()).log_prob(truth.double())
    found = nll(posterior, truth)
    assert found.shape == (3,) and found.dtype == torch.float64
    torch.testing.assert_close(found, per_pixel.mean((1, 2, 3)))


@pytest.mark.parametrize("shape", [(20, 20), (1, 1, 20, 20), (3, 1, 20, 20)])
def test_masks_choose_the_pixels(shape: tuple[int, ...]) -> None:
    posterior, truth = random_case()
    mask = random_mask(shape)
    per_pixel = -torch.distributions.Normal(posterior.mean.double(), posterior.std.double()).log_prob(truth.double())
    lower, upper = posterior.interval(0.5)
    inside = (lower <= truth) & (truth <= upper)
    for b in range(3):
        chosen = mask if mask.ndim == 2 else mask[min(b, len(mask) - 1), 0]
        assert float(nll(posterior, truth, mask)[b]) == pytest.approx(float(per_pixel[b, 0][chosen].mean()))
        assert float(coverage(posterior, truth, 0.5, mask)[b]) == pytest.approx(float(inside[b, 0][chosen].double().mean()))


def test_what_lies_outside_the_mask_does_not_matter() -> None:
    posterior, truth = random_case()
    mask = random_mask((20, 20))
    expected = nll(posterior, truth, mask)
    posterior.std[~mask.expand(3, 1, 20, 20)] = 0  # where the likelihood is not defined
    assert torch.equal(nll(posterior, truth, mask), expected)


def test_nll_is_least_for_the_right_error_bars() -> None:
    posterior, truth = random_case(1, 100)
    right, too_wide, too_narrow = (nll(Gaussian(posterior.mean, factor * posterior.std), truth) for factor in (1, 1.5, 0.7))
    assert right < too_wide and right < too_narrow


# Coverage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.68, 0.9, 0.95, 0.99])
def test_a_calibrated_posterior_covers_its_level(level: float) -> None:
    posterior, truth = random_case(2, 200)
    standard_error = math.sqrt(level * (1 - level) / 200**2)
    assert ((coverage(posterior, truth, level) - level).abs() < 3 * standard_error).all()


def test_coverage_counts_pixels() -> None:
    posterior = Gaussian(torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
    truth = torch.tensor([0.0, 1.9, -1.9, 2.1]).reshape(1, 1, 1, 4)
    assert coverage(posterior, truth).tolist() == [0.75]
    assert coverage(posterior, truth, 0.99).tolist() == [1.0]
    assert coverage(posterior, truth, 0.5).tolist() == [0.25]


# Sparsification ----------------------------------------------------------------------------------------------------------


def ause_by_definition(error: np.ndarray, std: np.ndarray) -> float:
    """findings.md: RMSE of the pixels that remain after removing the most uncertain fraction f = 0, 5, ... 90 %, minus the same
    for removal by true error, divided by the RMSE at f = 0, mean over f. For numbers of pixels that 20 divides."""
    error, std = error.ravel().astype(float), std.ravel()

    def remaining_rmse(order: np.ndarray, percent: int) -> float:
        removed = len(error) * percent // 100
        kept = np.argsort(-order)[removed:]
        return float(np.sqrt(np.mean(error[kept] ** 2)))

    gaps = [remaining_rmse(std, f) - remaining_rmse(np.abs(error), f) for f in range(0, 91, 5)]
    return float(np.mean(gaps) / remaining_rmse(std, 0))


def test_ause_is_its_definition() -> None:
    posterior, truth = random_case()
    found = ause(posterior, truth)
    assert found.shape == (3,) and (found > 0).all()
    for b in range(3):
        error = truth[b].double().numpy() - posterior.mean[b].double().numpy()
        assert float(found[b]) == pytest.approx(ause_by_definition(error, posterior.std[b].numpy()), rel=1e-9)


def test_ause_is_zero_for_the_perfect_order() -> None:
    posterior, truth = random_case()
    error = (truth - posterior.mean).abs()
    assert ause(Gaussian(posterior.mean, error), truth).tolist() == pytest.approx([0, 0, 0], abs=1e-7)
    assert ause(Gaussian(posterior.mean, 7 * error + 1), truth).tolist() == pytest.approx([0, 0, 0], abs=1e-4)  # the order alone counts
    reversed_order = ause(Gaussian(posterior.mean, 1 / error), truth)
    assert (reversed_order > ause(posterior, truth)).all()


def test_ause_of_an_image_without_error_is_zero() -> None:
    truth = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    mean = truth.clone()
    mean[1, 0, 0, 0] += 1
    std = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    found = ause(Gaussian(mean, std), truth)
    assert float(found[0]) == 0 and float(found[1]) > 0


def test_ause_of_equal_error_bars_does_not_depend_on_the_order_of_the_pixels() -> None:
    """Without an order to go by every removal leaves the RMSE as it is; so also where many pixels share one std."""
    posterior, truth = random_case(1)
    error = np.sort((truth - posterior.mean).abs().double().numpy().ravel())
    remaining = [np.sqrt(np.mean(error[: len(error) * (100 - f) // 100] ** 2)) for f in range(0, 91, 5)]
    expected = 1 - np.mean(remaining) / remaining[0]
    assert float(ause(Gaussian(posterior.mean, torch.ones_like(truth)), truth)) == pytest.approx(expected)

    coarse = Gaussian(posterior.mean, (10 * posterior.std).round())
    assert len(coarse.std.unique()) < 5
    turned = Gaussian(coarse.mean.flip(-1, -2), coarse.std.flip(-1, -2))
    torch.testing.assert_close(ause(coarse, truth), ause(turned, truth.flip(-1, -2)))


# With the package's own posterior, and bad input --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_scored(name: str) -> None:
    model = small_model(name)
    posterior = reconstruct(model, some_sinograms(model.A), draws=4)
    truth = torch.rand(posterior.mean.shape, generator=torch.Generator().manual_seed(0))
    for values in (nll(posterior, truth), coverage(posterior, truth, 0.9), ause(posterior, truth)):
        assert values.shape == (3,) and values.isfinite().all()


def test_an_image_is_scored_by_itself() -> None:
    posterior, truth = random_case()
    for metric in (nll, coverage, ause):
        alone = metric(Gaussian(posterior.mean[1:2], posterior.std[1:2]), truth[1:2])
        torch.testing.assert_close(alone[0], metric(posterior, truth)[1])


@pytest.mark.parametrize("metric", [nll, ause])
@pytest.mark.parametrize("shape", [(1, 1, 20, 20), (3, 1, 1, 1)])
def test_one_error_bar_may_stand_for_several(metric: Any, shape: tuple[int, ...]) -> None:
    posterior, truth = random_case()
    few = 0.1 + torch.rand(shape, generator=torch.Generator().manual_seed(1))
    expected = metric(Gaussian(posterior.mean, few.expand_as(truth).clone()), truth)
    assert torch.equal(metric(Gaussian(posterior.mean, few), truth), expected)


@pytest.mark.parametrize("metric", [nll, ause, coverage])
def test_error_bars_that_are_no_numbers_are_refused(metric: Any) -> None:
    posterior, truth = random_case()
    posterior.std[1, 0, 2, 3] = math.nan
    with refusal("std must be finite, but 1 of its 1200 values|the interval has NaN in it"):
        metric(posterior, truth)
    if metric is not coverage:
        with refusal(r"std must have the shape of the mean, \(3, 1, 20, 20\), got \(3, 1, 20, 19\)"):
            metric(Gaussian(posterior.mean, torch.ones(3, 1, 20, 19)), truth)


def test_a_pixel_without_an_error_bar_has_no_likelihood() -> None:
    posterior, truth = random_case()
    posterior.std[0, 0, :2, 0] = 0
    with refusal("std must be above 0 for a likelihood, it is not in 2 pixels; leave them out with a mask"):
        nll(posterior, truth)
    assert nll(posterior, truth, posterior.std > 0).isfinite().all()


BAD_TRUTH: list[tuple[Any, str]] = [
    (torch.zeros(20, 20), r"the truth must have shape \(B, 1, 20, 20\), got \(20, 20\)"),
    (torch.zeros(3, 1, 20, 21), r"the truth must have shape \(B, 1, 20, 20\), got \(3, 1, 20, 21\)"),
    (torch.zeros(1, 1, 20, 20), "must be pairs, got 3 and 1 images"),
    (torch.zeros(3, 1, 20, 20, dtype=torch.int64), "must be floating point"),
    (torch.full((3, 1, 20, 20), math.nan), "the truth must be finite"),
    (np.zeros((3, 1, 20, 20)), "must be a torch tensor .* got ndarray"),
]


@pytest.mark.parametrize("metric", [nll, coverage, ause])
@pytest.mark.parametrize(("truth", "message"), BAD_TRUTH, ids=[str(i) for i in range(len(BAD_TRUTH))])
def test_a_wrong_truth_is_named(metric: Any, truth: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric(random_case()[0], truth)


BAD_MASKS: list[tuple[Any, str]] = [
    (torch.ones(20, 20), r"boolean tensor of shape \(20, 20\), .* got torch.float32 of shape \(20, 20\)"),
    (torch.ones(20, 21, dtype=torch.bool), r"got torch.bool of shape \(20, 21\)"),
    (torch.ones(3, 20, 20, dtype=torch.bool), r"got torch.bool of shape \(3, 20, 20\)"),
    (torch.ones(2, 1, 20, 20, dtype=torch.bool), r"got torch.bool of shape \(2, 1, 20, 20\)"),
    (torch.zeros(20, 20, dtype=torch.bool), "mask is empty for at least one image"),
    (np.ones((20, 20), dtype=bool), "got ndarray; convert it with torch.as_tensor"),
]


@pytest.mark.parametrize("metric", [nll, coverage])
@pytest.mark.parametrize(("mask", "message"), BAD_MASKS, ids=[str(i) for i in range(len(BAD_MASKS))])
def test_a_wrong_mask_is_named(metric: Any, mask: Any, message: str) -> None:
    posterior, truth = random_case()
    with pytest.raises(InputError, match=message):
        metric(posterior, truth, mask=mask)
