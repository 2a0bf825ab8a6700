"""`Miscoverage` counts where intervals miss, in any unit."""

from __future__ import annotations

import pytest
import torch
from refusals import refusal

import bdgd
from bdgd.data import random_ellipses
from bdgd.inference import Miscoverage, Posterior, edge_mask
from bdgd.inference.posterior import Origin
from bdgd.models import ScaleMixture


def test_miscoverage_counts_where_intervals_miss() -> None:
    truth = torch.zeros(1, 1, 6, 6)
    truth[..., 2:, :] = 1.0
    mean = truth.clone()
    mean[..., 2, :] = 0.5  # the first row of the object is wrong
    mean[0, 0, 0, 0] = 0.7  # and one pixel of the background
    std = torch.full_like(truth, 0.1)
    posterior = bdgd.Posterior(mean, torch.zeros_like(std), std**2, 1, 0, lambda: iter([mean]), ScaleMixture.gaussian(std**2))
    misses = Miscoverage(0.9)
    misses.add(posterior, truth)
    assert misses.per_image().tolist() == [0.25] and misses.on_edges() == 1.0 and misses.in_background() == pytest.approx(1 / 12)
    assert bool(misses.spatial()[:2].isnan().all()) and misses.spatial()[2].tolist() == [1.0] * 6 and float(misses.spatial()[3:].sum()) == 0
    edges, share, count = misses.by_width()
    stratum = int(torch.bucketize(torch.tensor(0.329, dtype=torch.float64), edges))
    assert int(count[stratum]) == 24 and float(share[stratum]) == 0.25
    assert edge_mask(truth)[0, 0].any(1).tolist() == [False, True, True, False, False, False]


def test_where_intervals_miss_does_not_depend_on_the_unit_of_the_images() -> None:
    truth = random_ellipses(4, 16, generator=torch.Generator().manual_seed(0))
    error = 0.1 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for unit in (1.0, 2.0**-30):
        variance = torch.full_like(truth, (0.1 * unit) ** 2)
        posterior = Posterior(unit * (truth + error), 0 * variance, variance, 1, 0, lambda: iter(()), origin=Origin(unit=unit))
        misses = Miscoverage(0.9)
        with refusal("nothing was counted yet"):
            misses.on_edges()
        with refusal("must have one shape"):
            misses.add(posterior, truth[:2])
        misses.add(posterior, unit * truth)
        found.append((misses.per_image().tolist(), misses.on_edges(), misses.in_background(), misses.by_width()[2].tolist()))
    assert found[0] == found[1] and 0 < found[0][1] < 0.2
