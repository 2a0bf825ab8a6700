"""The posterior's answers: intervals, regions, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from toys import (
    MODELS,
    RANDOM_KINDS,
    no_update_undone,
    seeded,
    small_model,
    some_sinograms,
)

from bdgd.checks import InputError
from bdgd.inference import Posterior, reconstruct

ONE_DRAW = [name for name in MODELS if name not in RANDOM_KINDS]


@pytest.fixture(scope="module")
def posterior() -> Iterator[Posterior]:
    model = small_model()
    with no_update_undone():
        yield reconstruct(model, some_sinograms(model.A), draws=20)


def test_intervals(posterior: Posterior) -> None:
    lower, upper = posterior.interval(0.95)
    half = NormalDist().inv_cdf(0.975) * posterior.std
    torch.testing.assert_close(upper, posterior.mean + half)
    torch.testing.assert_close(lower, (posterior.mean - half).clamp(min=0))
    assert (posterior.mean < half).any() and (lower == 0).any() and (lower > 0).any() and (lower >= 0).all()
    assert all(torch.equal(a, b) for a, b in zip(posterior.interval(), (lower, upper), strict=True))


def test_intervals_widen_with_their_level(posterior: Posterior) -> None:
    levels = [0.01, 0.5, 0.9, 0.95, 0.999]
    region = posterior.mean[0, 0] > 0.01
    for narrow, wide in pairwise(levels):
        (a, b), (c, d) = posterior.interval(narrow), posterior.interval(wide)
        assert (c <= a).all() and (b < d).all()
        inner, outer = posterior.region(region, narrow), posterior.region(region, wide)
        assert (outer.lower <= inner.lower).all() and (inner.upper < outer.upper).all() and outer.level == wide


def test_a_negative_mean_has_an_interval_in_order() -> None:
    """Learned primal-dual has no projection; values below zero cannot be, so the interval is cut off there."""
    shape = (1, 1, 4, 4)
    below = Posterior(
        torch.full(shape, -1.0), torch.zeros(shape), torch.full(shape, 1e-4), 1, 0, replay=lambda: iter([torch.full(shape, -1.0)])
    )
    lower, upper = below.interval(0.9)
    assert not lower.any() and not upper.any()
    region = below.region(torch.ones(4, 4, dtype=torch.bool))
    assert float(region.mean) == -1 and float(region.lower) == float(region.upper) == 0


def test_a_region_is_the_average_of_its_pixels(posterior: Posterior) -> None:
    draws = torch.stack(list(posterior.draws())).double()
    each = torch.rand(3, 1, 16, 16, generator=seeded()) < 0.4
    one = each[0, 0]
    for mask in (one, one[None, None], each):
        found = posterior.region(mask, level=0.8)
        for b in range(3):
            chosen = each[b, 0] if mask is each else one
            means = draws[:, b, 0][:, chosen].mean(1)
            variance = float(means.var()) + float(posterior.aleatoric[b, 0][chosen].sum()) / int(chosen.sum()) ** 2
            half = NormalDist().inv_cdf(0.9) * math.sqrt(variance)
            assert float(found.mean[b]) == pytest.approx(float(means.mean()), rel=1e-5)
            assert float(found.std[b]) == pytest.approx(math.sqrt(variance), rel=1e-3)
            assert float(found.lower[b]) == pytest.approx(max(float(means.mean()) - half, 0), rel=1e-3, abs=1e-6)
            assert float(found.upper[b]) == pytest.approx(float(means.mean()) + half, rel=1e-3)
        assert found.mean.shape == found.std.shape == found.lower.shape == found.upper.shape == (3,)


def test_a_region_of_one_pixel_is_the_pixel(posterior: Posterior) -> None:
    mask = torch.zeros(16, 16, dtype=torch.bool)
    mask[5, 7] = True
    found = posterior.region(mask)
    lower, upper = posterior.interval()
    for value, image in ((found.mean, posterior.mean), (found.std, posterior.std), (found.lower, lower), (found.upper, upper)):
        torch.testing.assert_close(value, image[:, 0, 5, 7], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ONE_DRAW)
def test_a_region_of_one_draw(name: str) -> None:
    model = small_model(name)
    posterior = reconstruct(model, some_sinograms(model.A))
    found = posterior.region(torch.ones(16, 16, dtype=torch.bool))
    torch.testing.assert_close(found.std, posterior.std[:, 0, 0, 0] / 16)


# What is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, -0.1, 95, math.nan, "high"])
def test_levels_outside_the_open_unit_interval_are_refused(posterior: Posterior, level: Any) -> None:
    for ask in (posterior.interval, lambda level: posterior.region(torch.ones(16, 16, dtype=torch.bool), level)):
        with pytest.raises(InputError, match="level must"):
            ask(level)


BAD_MASKS: list[tuple[Any, str]] = [
    (torch.ones(16, 16), r"mask must be a boolean tensor of shape \(16, 16\), .* got torch.float32 of shape \(16, 16\)"),
    (torch.ones(16, 16, dtype=torch.uint8), "got torch.uint8"),
    (torch.ones(16, 15, dtype=torch.bool), r"got torch.bool of shape \(16, 15\)"),
    (torch.ones(3, 16, 16, dtype=torch.bool), r"got torch.bool of shape \(3, 16, 16\)"),
    (torch.ones(2, 1, 16, 16, dtype=torch.bool), r"got torch.bool of shape \(2, 1, 16, 16\)"),
    (torch.zeros(16, 16, dtype=torch.bool), "mask is empty for at least one image"),
    (torch.eye(3, dtype=torch.bool)[:, :1, None, None].expand(3, 1, 16, 16), "mask is empty for at least one image"),
    (np.ones((16, 16), dtype=bool), "got ndarray; convert it with torch.as_tensor"),
]


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS, ids=[str(i) for i in range(len(BAD_MASKS))])
def test_bad_masks_are_refused_in_a_sentence(posterior: Posterior, mask: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        posterior.region(mask)
    assert "\n" not in str(refusal.value)
