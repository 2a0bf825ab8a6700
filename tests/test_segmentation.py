"""Turning, thresholding and comparing images: against closed forms, and against the geometry that makes turning necessary."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from discs import disc_image, disc_with_holes
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.data import Scans, ellipse_sinogram, match
from bdgd.evaluation.challenge import scanner
from bdgd.evaluation.segmentation import filled_disc, inside_of, matthews, otsu, rotated, segmented
from bdgd.operators import RayTransform


def blob(x: float, y: float, size: int = 65) -> Tensor:
    """A Gaussian at (x, y), in pixels from the middle."""
    i = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    return torch.exp(-((i[:, None] - x) ** 2 + (i[None] - y) ** 2) / 18)[None, None]


@pytest.mark.parametrize("degrees", [10, 50, 90, 200, -35])
def test_turning_moves_a_point_counter_clockwise(degrees: int) -> None:
    angle = math.radians(degrees)
    x, y = 14.0, 5.0
    wanted = blob(math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y)
    assert float((rotated(blob(x, y), angle) - wanted).abs().max()) < 0.03


def test_a_quarter_turn_is_exact_and_nothing_is_nothing(generator: torch.Generator) -> None:
    image = torch.rand((2, 1, 16, 16), generator=generator, dtype=torch.float64)
    assert torch.allclose(rotated(image, math.pi / 2), image.flip(3).transpose(2, 3), atol=1e-12)  # x, y becomes -y, x
    assert rotated(image, 0.0) is image


def test_enlarging_is_bilinear(generator: torch.Generator) -> None:
    image = torch.rand((1, 1, 16, 16), generator=generator, dtype=torch.float64)
    wanted = F.interpolate(image, size=(32, 32), mode="bilinear", align_corners=False)
    assert torch.allclose(rotated(image, 0.0, 32), wanted, atol=1e-12)


def test_only_square_images_are_turned() -> None:
    with pytest.raises(InputError, match="square"):
        rotated(torch.zeros(1, 1, 8, 9), 1.0)


def test_an_arc_that_starts_elsewhere_gives_the_same_image_turned_back() -> None:
    """The sign: fan angles, the rotation that `match` finds and the direction in which images are turned belong together."""
    whole = replace(scanner(), image_size=(64, 64), pixel_size=scanner().pixel_size * 4)
    arc, model = whole[list(range(50, 171))], whole[list(range(121))]
    y = ellipse_sinogram(disc_with_holes(), arc, unit=1 / whole.pixel_size)
    native = fbp(RayTransform(arc, strategy="matrix-free"), y, filter="hann")
    matched, _ = match(Scans(y, arc), model)
    assert math.degrees(matched.rotation) == pytest.approx(50)
    turned = fbp(RayTransform(model, strategy="matrix-free"), matched.sinograms, filter="hann")

    def agreement(image: Tensor) -> float:
        return float(np.corrcoef(image[0, 0, 8:-8, 8:-8].flatten(), native[0, 0, 8:-8, 8:-8].flatten())[0, 1])

    assert agreement(rotated(turned, matched.rotation)) > 0.98
    assert agreement(rotated(turned, -matched.rotation)) < 0.9 and agreement(turned) < 0.9


def test_otsu_lies_between_two_materials(generator: torch.Generator) -> None:
    values = torch.cat((torch.randn(3000, generator=generator) * 0.03, 1 + torch.randn(1000, generator=generator) * 0.03)).reshape(40, 100)
    assert bool(((values > otsu(values)).flatten() == (torch.arange(4000) >= 3000)).all())
    assert otsu(torch.full((4, 4), 2.0)) == 2.0


def test_matthews_is_the_correlation_of_two_classes(generator: torch.Generator) -> None:
    truth = torch.rand((30, 40), generator=generator) > 0.3
    estimate = truth ^ (torch.rand((30, 40), generator=generator) > 0.9)
    mask = torch.rand((30, 40), generator=generator) > 0.5
    assert matthews(estimate, truth) == pytest.approx(np.corrcoef(estimate.flatten().float(), truth.flatten().float())[0, 1])
    assert matthews(estimate, truth, mask) == pytest.approx(np.corrcoef(estimate[mask].float(), truth[mask].float())[0, 1])
    assert matthews(truth, truth) == 1.0 and matthews(~truth, truth) == -1.0


def test_matthews_without_a_second_class() -> None:
    half = torch.arange(16).reshape(4, 4) < 8
    assert matthews(half, torch.ones(4, 4, dtype=torch.bool)) is None
    assert matthews(torch.ones(4, 4, dtype=torch.bool), half) == 0.0
    with pytest.raises(InputError, match="one shape"):
        matthews(half, half[:2])


def test_the_disc_is_filled_and_eroded() -> None:
    segmentation = disc_image(512)[0, 0] > 0.5
    disc, pixel = filled_disc(segmentation), scanner().pixel_size / 2
    assert float(disc.sum()) * pixel**2 == pytest.approx(math.pi * 34.0**2, rel=2e-3) and bool((disc | ~segmentation).all())
    inside = inside_of(disc)
    assert float(inside.sum()) * pixel**2 == pytest.approx(math.pi * (34.0 - 2.2 * pixel) ** 2, rel=5e-3)
    assert bool((disc | ~inside).all())
    with pytest.raises(InputError, match="no disc"):
        filled_disc(torch.zeros(8, 8, dtype=torch.bool))


def test_a_segmented_phantom_is_its_segmentation() -> None:
    truth = disc_image(512)[0, 0] > 0.5
    found = matthews(segmented(disc_image(256)), truth)
    assert found is not None and found > 0.99
