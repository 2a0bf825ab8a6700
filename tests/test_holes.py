"""Discs with holes, and the field that a scanner sees."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toys import seeded

from bdgd.checks import InputError
from bdgd.data import discs_with_holes, ellipse_images, phantom_images
from bdgd.data.holes import HOLES, _Discs
from bdgd.data.kinds import field_radius
from bdgd.data.shapes import SHARES, TABLE, radii
from bdgd.operators import FanBeam, ParallelBeam

FAN = FanBeam(image_size=32, angles=[0.0, 1.0], detectors=20, detector_spacing=2.0, source_to_axis=100.0, source_to_detector=150.0)


@pytest.fixture(scope="module")
def discs() -> Tensor:
    return discs_with_holes(120, 64, generator=seeded(1))


def test_values_are_0_and_1_but_at_edges(discs: Tensor) -> None:
    assert discs.shape == (120, 1, 64, 64) and discs.dtype == torch.float32
    assert float(discs.min()) == 0 and float(discs.max()) == 1
    assert float(((discs > 0) & (discs < 1)).float().mean()) < 0.2


def test_they_are_discs_and_most_have_holes(discs: Tensor) -> None:
    side = (torch.arange(64) - 31.5) / 32
    away = torch.hypot(side[:, None], side[None, :])
    assert float(discs[..., away > 1.03].max()) == 0
    # a rim stays: along the outline of every disc there is material in all directions
    filled = discs.amax((1, 2)) > 0.99
    assert (filled.sum(1) >= 0.7 * 64).all()
    share = discs.mean((1, 2, 3)) / (math.pi / 4)
    assert float((share < 0.62).float().mean()) > 0.2  # much cut away in many, all of it in none
    assert float(share.min()) > 0.1 and float(share.max()) > 0.8


def test_more_images_begin_with_the_same_images(discs: Tensor) -> None:
    assert torch.equal(discs_with_holes(5, 64, generator=seeded(1)), discs[:5])
    assert len({image.numpy().tobytes() for image in discs}) > 110  # solid discs of equal radius aside


def test_an_image_does_not_depend_on_its_size_but_by_its_pixels(discs: Tensor) -> None:
    fine = discs_with_holes(30, 256, generator=seeded(1))
    coarse = torch.nn.functional.avg_pool2d(fine, 4)
    assert float((coarse - discs[:30]).abs().mean()) < 0.01  # covered shares of the same shapes


def test_the_radius_is_in_its_range() -> None:
    images = discs_with_holes(40, 128, generator=seeded(2), radius=(0.5, 0.5))
    across = (images.amax(3) > 0.5).sum((1, 2)).float() / 128
    assert float(across.min()) > 0.47 and float(across.max()) < 0.53
    with pytest.raises(InputError, match="radius must be a range inside"):
        discs_with_holes(1, 16, generator=seeded(), radius=(0.5, 1.5))


def area(outline: Tensor) -> float:
    return float((outline**2).mean() * math.pi)


def test_a_round_hole_has_the_area_of_a_circle_and_a_stretched_one_that_of_an_ellipse() -> None:
    canvas = _Discs(torch.rand(1, 16 + HOLES * 12 + 4 * 8, generator=seeded()), 200, (0.9, 0.9))
    place = torch.tensor([0.1, -0.2, 0.5, 0.2, 0.7])[:, None, None, None]
    covered = canvas._star(place, torch.ones(1, TABLE))
    assert float(covered.sum()) / 100**2 == pytest.approx(math.pi * 0.5 * 0.2, rel=2e-3)


def test_a_slit_thinner_than_a_pixel_covers_as_much_as_it_is_wide() -> None:
    canvas = _Discs(torch.rand(1, 16 + HOLES * 12 + 4 * 8, generator=seeded()), 64, (0.9, 0.9))
    numbers = torch.tensor([[0.0, 0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0]])  # straight, the thinnest: 0.008 = 0.256 pixels
    covered = canvas._channel(numbers, torch.zeros(1, 2), torch.tensor([0.8]))
    assert 0 < float(covered.max()) <= 0.256 + 1e-6


def test_every_kind_of_outline_is_bounded_and_its_own() -> None:
    middles = [(a + b) / 2 for a, b in zip((0.0, *SHARES), (*SHARES, 1.0), strict=True)]
    numbers = torch.rand(200, 1, 5, generator=seeded(3)).expand(200, 6, 5)
    outlines = radii(torch.tensor(middles).expand(200, 6), numbers)
    assert outlines.shape == (200, 6, TABLE) and float(outlines.min()) > 0.05 and float(outlines.max()) < 2.5
    areas = torch.tensor([[area(outlines[n, kind]) for kind in range(6)] for n in range(50)])
    assert areas[:, 0].tolist() == pytest.approx([math.pi] * 50)
    assert (outlines[:, 4, 0] < 0.9 * outlines[:, 4, TABLE // 8]).all()  # a cross has its arms between the half-axes


# --- by name --------------------------------------------------------------------------------------------------------


def test_the_papers_ellipses_are_left_as_they_are() -> None:
    paper = ParallelBeam.sparse(image_size=32, views=5)
    assert torch.equal(phantom_images("ellipses", "train", 6, paper, seed=2), ellipse_images("train", 6, 32, seed=2))


@pytest.mark.parametrize("kind", ["ellipses", "discs-with-holes"])
def test_nothing_lies_where_not_every_view_sees_it(kind: str) -> None:
    # 20 detectors of 2 at 150 from the source see 100 sin(atan(20 / 150)) to either side of the axis
    assert field_radius(FAN) == pytest.approx(100 * 20 / math.hypot(20, 150))
    x, y = FAN.pixel_centres()
    outside = torch.hypot(x[:, None], y[None, :]) > field_radius(FAN) + 0.5
    images = phantom_images(kind, "train", 20, FAN)
    assert bool(outside.any()) and float(images[..., outside].max()) == 0 and float(images.max()) > 0.9


def test_sets_differ_and_spread_scales_them() -> None:
    geometry = replace(FAN, detectors=60)
    train, validation = (phantom_images("discs-with-holes", name, 5, geometry) for name in ("train", "validation"))
    assert not torch.equal(train, validation)
    spread = phantom_images("discs-with-holes", "train", 5, geometry, spread=0.2).amax((1, 2, 3))
    assert float(spread.min()) >= 0.8 and float(spread.max()) <= 1.2 and len(spread.unique()) == 5


def test_other_images_and_other_detectors() -> None:
    wide = phantom_images("discs-with-holes", "train", 2, replace(FAN, image_size=(33, 16)))
    assert wide.shape == (2, 1, 33, 16) and float(wide[:, :, :8].max()) == 0 and float(wide[:, :, 8:24].max()) == 1
    with pytest.raises(InputError, match="does not see the axis"):
        phantom_images("ellipses", "train", 1, replace(FAN, detector_offset=30.0))
