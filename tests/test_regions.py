"""Regions: closed forms, coverage on errors of a known law, areas against counting."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.inference.calibrating_regions import AREAS, DISCS, ON_OBJECT, RADII, DiscScores, random_discs
from bdgd.inference.posterior import Origin, Posterior
from bdgd.inference.regions import regions_of, smooth_variance
from bdgd.models import Calibration, ScaleMixture
from bdgd.models.calibration import RegionCalibration

SIZE = 48


def posterior_of(mean: Tensor, std: Tensor, regions: RegionCalibration | None = None, draws: list[Tensor] | None = None) -> Posterior:
    """Gaussian errors of that std around the mean, with draws that are all the mean unless given."""
    calibration = None
    if regions is not None:
        calibration = Calibration(
            draws=1,
            draw="weights",
            noise=None,
            geometry=None,
            weights="",
            images=99,
            levels=(0.9,),
            std_edges=(),
            z=((1.6,),),
            regions=regions,
        )
    mixture = ScaleMixture.gaussian(std**2)
    stack = draws or [mean]
    return Posterior(mean, torch.zeros_like(mean), std**2, 1, 0, lambda: iter(stack), mixture, Origin("weights", calibration))


def smooth_errors(count: int, seed: int, width: float = 2.0) -> tuple[Tensor, Tensor]:
    """(errors, std): stationary Gaussian fields with covariance exp(-d^2 / (4 width^2)), times a std that varies over the image."""
    g = torch.Generator().manual_seed(seed)
    x = torch.arange(-8, 9).double()
    kernel = torch.exp(-(x[:, None] ** 2 + x[None] ** 2) / (2 * width**2))
    kernel = kernel / kernel.square().sum().sqrt()
    noise = torch.randn(count, 1, SIZE + 16, SIZE + 16, generator=g, dtype=torch.float64)
    std = 0.01 * (1 + torch.arange(SIZE) / SIZE)[None, None, :, None].expand(count, 1, SIZE, SIZE).double()
    return std * torch.nn.functional.conv2d(noise, kernel[None, None]), std


def test_the_smooth_part_is_shared_within_a_region_and_not_between_two() -> None:
    std = torch.full((1, 1, 9, 9), 0.3)
    std[0, 0, 4, 4] = 5.0  # one wild pixel among good ones adds nothing that is shared
    weights = torch.zeros(1, 2, 9, 9)
    weights[0, 0, :3] = 1 / 27
    weights[0, 1, :3], weights[0, 1, 6:] = 1 / 27, -1 / 27
    torch.testing.assert_close(smooth_variance(weights, std, 3), torch.tensor([[0.09, 0.18]]))
    std[0, 0, 0, 0] = 0.1  # now its whole window has a good pixel around
    smaller = (0.3 * 23 + 0.1 * 4) / 27
    torch.testing.assert_close(smooth_variance(weights[:, :1], std, 3), torch.tensor([[smaller**2]]))


def test_intervals_of_discs_cover_where_independent_ones_do_not() -> None:
    """Correlated errors of known law: calibrated regions hold their 90 %, averaging pixels as if independent is far too narrow."""
    truth = torch.full((1, 1, SIZE, SIZE), 0.5, dtype=torch.float64)
    errors, std = smooth_errors(180, 1)
    scores = DiscScores(seed=0)
    for e, s in zip(errors[:90], std[:90], strict=True):
        scores.add(posterior_of(truth - e[None], s[None]), truth)
    regions = scores.calibration((0.5, 0.9))
    assert regions is not None and regions.levels == (0.5, 0.9) and regions.areas == AREAS
    covered: dict[str, list[bool]] = {"mean": [], "independent": [], "contrast": []}
    g = torch.Generator().manual_seed(7)
    for e, s in zip(errors[90:], std[90:], strict=True):
        posterior = posterior_of(truth - e[None], s[None], regions)
        discs = random_discs(truth[0, 0], g).bool()
        for disc, other in zip(discs[DISCS:], discs[:-DISCS], strict=True):
            for name, region, true in (
                ("mean", posterior.region(disc, 0.9), 0.5),
                ("independent", posterior.region(disc, 0.9, calibrated=False), 0.5),
                ("contrast", posterior.contrast(disc, other, 0.9), 0.0),
            ):
                covered[name].append(bool((region.lower <= true) & (true <= region.upper)))
    share = {name: sum(hits) / len(hits) for name, hits in covered.items()}
    assert share["mean"] == pytest.approx(0.9, abs=0.05) and share["contrast"] > 0.84 and share["independent"] < 0.6


def test_the_contrast_cancels_what_two_regions_share() -> None:
    mean = torch.rand(1, 1, 8, 8)
    draws = [mean + shift for shift in (-0.1, 0.0, 0.1)]
    posterior = posterior_of(mean, torch.full_like(mean, 1e-6), draws=draws)
    one, other = torch.zeros(2, 8, 8, dtype=torch.bool)
    one[:4], other[4:] = True, True
    contrast = posterior.contrast(one, other)
    assert float(posterior.region(one).std) == pytest.approx(0.1, rel=1e-3) and float(contrast.std) < 1e-5
    assert float(contrast.mean) == pytest.approx(float(mean[0, 0][one].mean() - mean[0, 0][other].mean()), abs=1e-6)
    assert float(posterior.contrast(other, one).lower) == pytest.approx(-float(contrast.upper), abs=1e-6)


def test_the_area_above_a_threshold() -> None:
    mean = torch.linspace(0.0, 1.0, 101).reshape(1, 1, 1, 101)
    std = torch.full_like(mean, 0.1)
    area = posterior_of(mean, std).area_above(0.5, torch.ones(1, 101, dtype=torch.bool), 0.9)
    half = 0.1 * NormalDist().inv_cdf(0.95)
    assert int(area.lower) == int((mean - half > 0.5).sum()) and int(area.upper) == int((mean + half > 0.5).sum())
    expected = sum(NormalDist(float(m), 0.1).cdf(2) - NormalDist(float(m), 0.1).cdf(0.5) for m in mean.flatten())
    assert float(area.expected) == pytest.approx(expected, rel=1e-3)
    with pytest.raises(InputError, match="threshold must be"):
        posterior_of(mean, std).area_above(float("nan"), torch.ones(1, 101, dtype=torch.bool))


def test_the_score_of_an_area_is_the_least_z_that_holds_it() -> None:
    g = torch.Generator().manual_seed(3)
    truth = torch.rand(1, 1, SIZE, SIZE, generator=g, dtype=torch.float64) + 0.01
    errors, std = smooth_errors(12, 4)
    scores = DiscScores(seed=1)
    for e, s in zip(20 * errors, 20 * std, strict=True):
        scores.add(posterior_of((truth - e[None]).clamp(min=0), s[None]), truth)
    regions = scores.calibration((0.5, 0.8))
    assert regions is not None
    made = torch.cat(scores._scores["area"])
    for level, row in zip(regions.levels, regions.area, strict=True):
        for size, z in enumerate(row):
            assert float((made[:, size] > z).double().mean()) * 12 / 13 + 1 / 13 <= 1 - level + 1e-9


def test_the_discs_of_an_image_do_not_depend_on_its_batch() -> None:
    g = torch.Generator().manual_seed(5)
    truth = torch.rand(10, 1, SIZE, SIZE, generator=g, dtype=torch.float64) + 0.01
    errors, std = smooth_errors(10, 6)
    made = []
    for size in (1, 4, 10):
        scores = DiscScores(seed=2)
        for t, e, s in zip(truth.split(size), (20 * errors).split(size), (20 * std).split(size), strict=True):
            scores.add(posterior_of((t - e).clamp(min=0), s), t)
        made.append(scores)
    for scores in made[1:]:
        assert scores.images == 10
        for name, parts in scores._scores.items():
            torch.testing.assert_close(torch.cat(parts), torch.cat(made[0]._scores[name]))


def test_half_of_the_discs_lie_on_the_object_and_all_have_their_size() -> None:
    truth = torch.zeros(SIZE, SIZE)
    truth[20:28, 18:30] = 1.0
    discs = random_discs(truth, torch.Generator().manual_seed(0))
    assert discs.shape == (DISCS * (len(RADII) - 1), SIZE, SIZE)
    areas = discs.sum((1, 2)).reshape(-1, DISCS)
    for row, low, high in zip(areas, AREAS, AREAS[1:], strict=False):
        assert bool((row > 0.7 * low).all()) and bool((row < 1.3 * high).all())
    x = torch.arange(SIZE).float()
    for n, disc in enumerate(discs):
        assert disc.sum() == disc[1:-1, 1:-1].sum() or n // DISCS > 2  # smaller ones fit into the image
        cx, cy = round(float((disc.sum(1) * x).sum() / disc.sum())), round(float((disc.sum(0) * x).sum() / disc.sum()))
        assert truth[cx, cy] == 1.0 or n % DISCS >= ON_OBJECT


def test_a_calibration_without_regions_gives_none_that_look_calibrated() -> None:
    mean, mask = torch.rand(1, 1, SIZE, SIZE), torch.ones(SIZE, SIZE, dtype=torch.bool)
    plain = posterior_of(mean, 0.1 * mean)
    regions = RegionCalibration(
        images=9, discs=1, levels=(0.9,), window=3, areas=(1.0, 2.0), mean=((1.0,),), contrast=((1.0,),), area=((1.0,),)
    )
    calibration = posterior_of(mean, 0.1 * mean, regions).origin.calibration
    assert calibration is not None
    bare = replace(plain, origin=Origin("weights", replace(calibration, regions=None)))
    for ask in (bare.region, lambda *a, **k: bare.contrast(mask, *a, **k), lambda *a, **k: bare.area_above(0.5, *a, **k)):
        with pytest.raises(InputError, match="has no regions; calibrate it anew"):
            ask(mask, 0.9)
    torch.testing.assert_close(bare.region(mask, 0.9, calibrated=False).upper, plain.region(mask, 0.9).upper)


def test_many_regions_at_once_are_the_regions_one_by_one() -> None:
    mean, std = torch.rand(2, 1, SIZE, SIZE), 0.1 * torch.rand(2, 1, SIZE, SIZE)
    posterior = posterior_of(mean, std, draws=[mean, mean + 0.01])
    masks = torch.stack([random_discs(torch.ones(SIZE, SIZE), torch.Generator().manual_seed(n))[:4] for n in range(2)])
    together = regions_of(posterior, masks / masks.sum((2, 3), keepdim=True), 0.9, None)
    for r in range(4):
        alone = posterior.region(masks[:, r : r + 1].bool(), 0.9)
        for name in ("mean", "std", "lower", "upper"):
            torch.testing.assert_close(getattr(together, name)[:, r], getattr(alone, name))
