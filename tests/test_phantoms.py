"""Phantoms against closed forms: areas, chords, grey values, and the paper's recipe evaluated pixel by pixel."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.phantoms import (
    Ellipses,
    disc,
    draw_ellipses,
    ellipse_sinogram,
    random_ellipses,
    rasterise,
    shepp_logan,
    shepp_logan_ellipses,
)
from bdgd.operators.geometry import FanBeam, Geometry, ParallelBeam

TILTED = Ellipses.from_rows([(1.5, 0.5, 0.2, 0.1, -0.2, 0.7), (-0.5, 0.1, 0.3, 0.0, 0.1, -2.0)])
FAN = FanBeam(
    image_size=(40, 50),
    angles=[0.1, 1.3, 4.0],
    detectors=31,
    detector_spacing=4.0,
    pixel_size=0.5,
    source_to_axis=60,
    source_to_detector=90,
)
PARALLEL = ParallelBeam(
    image_size=(40, 50), angles=[0.0, 0.4, 2.9], detectors=41, detector_spacing=0.7, detector_offset=0.3, pixel_size=0.5
)


def inside(ellipses: Ellipses, x: Tensor, y: Tensor) -> Tensor:
    """Sum of the values of the ellipses that contain each point, straight from the equation: x, y (N,) -> (B, N)."""
    dx, dy = x - ellipses.centre[..., :1], y - ellipses.centre[..., 1:]
    cos, sin = ellipses.rotation.cos()[..., None], ellipses.rotation.sin()[..., None]
    a, b = (axis[..., None] for axis in ellipses.half_axes.unbind(-1))
    within = ((cos * dx + sin * dy) / a) ** 2 + ((cos * dy - sin * dx) / b) ** 2 <= 1
    return (within * ellipses.value[..., None]).sum(1)


def pixel_grid(height: int, width: int, unit: float) -> tuple[Tensor, Tensor]:
    x = (torch.arange(height, dtype=torch.float64) - (height - 1) / 2) / unit
    y = (torch.arange(width, dtype=torch.float64) - (width - 1) / 2) / unit
    grid = torch.meshgrid(x, y, indexing="ij")
    return grid[0].flatten(), grid[1].flatten()


@pytest.mark.parametrize(("shape", "unit"), [((32, 32), 15.5), ((31, 31), 15.5), ((20, 33), 12.0)])
def test_rasterise_samples_pixel_centres(shape: tuple[int, int], unit: float, generator: torch.Generator) -> None:
    ellipses = draw_ellipses(20, generator)
    expected = inside(ellipses, *pixel_grid(*shape, unit)).reshape(20, 1, *shape)
    torch.testing.assert_close(rasterise(ellipses, shape, unit=unit, dtype=torch.float64), expected, rtol=0, atol=1e-10)


def test_rasterise_supersamples_every_pixel(generator: torch.Generator) -> None:
    ellipses = draw_ellipses(5, generator)
    fine = inside(ellipses, *pixel_grid(3 * 16, 3 * 20, 3 * 7.5)).reshape(5, 1, 3 * 16, 3 * 20)
    expected = torch.nn.functional.avg_pool2d(fine, 3)
    torch.testing.assert_close(rasterise(ellipses, (16, 20), supersample=3, dtype=torch.float64), expected, rtol=0, atol=1e-10)


def test_what_was_added_and_subtracted_leaves_exactly_zero() -> None:
    nested = Ellipses.from_rows(
        [(0.1, 0.9, 0.9, 0, 0, 0), (0.7, 0.8, 0.6, 0, 0, 0), (math.pi, 0.5, 0.6, 0.1, 0, 0), (-math.pi, 0.5, 0.6, 0.1, 0, 0)]
    )
    picture = rasterise(nested, 32, dtype=torch.float64)
    assert len(picture.unique()) == 3 and picture[0, 0, 16, -1] == 0 and picture[0, 0, 0, -1] == 0
    assert rasterise(Ellipses.from_rows([(1e-20, 0.5, 0.5, 0, 0, 0)]), 8).max() == pytest.approx(1e-20)  # rounding is relative


def test_random_ellipses_follow_the_recipe() -> None:
    ellipses = draw_ellipses(4000, torch.Generator().manual_seed(1))
    number = (ellipses.value != 0).sum(1)
    assert torch.bincount(number, minlength=10)[:5].sum() == 0
    torch.testing.assert_close(torch.bincount(number)[5:] / 4000, torch.full((5,), 0.2), atol=0.03, rtol=0)
    present = ellipses.value != 0
    assert ellipses.value.min() >= 0
    assert float(ellipses.value[present].mean()) == pytest.approx(0.25 * 0.5, rel=0.03)  # E|U(-.5, .5)| = 1/4
    assert float(ellipses.half_axes.mean()) == pytest.approx(0.5, rel=0.02)
    assert float(ellipses.half_axes.std()) == pytest.approx(0.5, rel=0.03)  # an exponential's deviation is its mean
    assert ellipses.centre.abs().max() <= 0.5 and float(ellipses.centre.std()) == pytest.approx(1 / math.sqrt(12), rel=0.02)
    assert ellipses.rotation.min() >= 0 and float(ellipses.rotation.mean()) == pytest.approx(math.pi, rel=0.02)
    assert ellipses.rotation.max() <= 2 * math.pi


def test_random_images_are_normalised_samples_of_the_drawn_ellipses(generator: torch.Generator) -> None:
    images = random_ellipses(30, 24, generator=generator)
    raw = inside(draw_ellipses(30, torch.Generator().manual_seed(0)), *pixel_grid(24, 24, 11.5))
    raw = raw - raw.amin(1, keepdim=True)
    torch.testing.assert_close(images.flatten(1), (raw / raw.amax(1, keepdim=True)).float(), rtol=1e-6, atol=1e-9)
    assert images.shape == (30, 1, 24, 24) and images.dtype == torch.float32
    assert (images.amin((1, 2, 3)) == 0).all() and (images.amax((1, 2, 3)) == 1).all()


def test_a_constant_image_becomes_zero(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    covering = Ellipses.from_rows([(0.3, 9.0, 9.0, 0, 0, 0)])
    monkeypatch.setattr("bdgd.data.phantoms.draw_ellipses", lambda count, generator: covering)
    assert torch.equal(random_ellipses(1, 8, generator=generator), torch.zeros(1, 1, 8, 8))


def test_first_images_of_a_larger_set_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    large = random_ellipses(50, 16, generator=torch.Generator().manual_seed(3))
    assert torch.equal(random_ellipses(7, 16, generator=torch.Generator().manual_seed(3)), large[:7])
    stream = torch.Generator().manual_seed(3)
    assert torch.equal(torch.cat([random_ellipses(n, 16, generator=stream) for n in (1, 30, 19)]), large)
    monkeypatch.setattr("bdgd.data.phantoms._CHUNK", 1000)
    assert torch.equal(random_ellipses(50, 16, generator=torch.Generator().manual_seed(3)), large)


def test_random_ellipses_are_the_same_on_every_device(device: torch.device, generator: torch.Generator) -> None:
    images = random_ellipses(200, 64, generator=generator, device=device)
    assert images.device.type == device.type
    torch.testing.assert_close(images.cpu(), random_ellipses(200, 64, generator=torch.Generator().manual_seed(0)), rtol=1e-6, atol=1e-7)


def test_random_ellipses_are_quick(device: torch.device, generator: torch.Generator) -> None:
    random_ellipses(1, 128, generator=generator, device=device)  # starts the device
    best = math.inf
    for _ in range(2):  # a busy machine may be slow once
        start = time.perf_counter()
        random_ellipses(4000, 128, generator=generator, device=device).sum().item()
        best = min(best, time.perf_counter() - start)
    assert best < (10 if device.type == "cpu" else 1)


def test_shepp_logan_has_its_grey_values() -> None:
    x = shepp_logan(128)
    assert x.shape == (1, 1, 128, 128) and x.dtype == torch.float32
    torch.testing.assert_close(x.unique(), torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 1.0]), rtol=0, atol=1e-6)
    assert x.min() == 0 and x.max() == 1

    def at(u: float, v: float) -> float:
        return float(x[0, 0, round(63.5 * (1 + u)), round(63.5 * (1 + v))])

    assert at(0.0, 0.9) == 1.0 and at(0.0, -0.9) == pytest.approx(1.0)  # skull, thicker at the top
    assert at(0.0, 0.7) == pytest.approx(0.2)  # brain
    assert at(0.22, 0.0) == 0.0 and at(-0.22, 0.0) == 0.0  # ventricles
    assert at(0.0, 0.35) == pytest.approx(0.3)  # the large grey disc is at positive y, so up
    assert at(0.0, -0.605) == pytest.approx(0.3) and at(0.0, -0.35) == pytest.approx(0.2)
    assert at(-0.34, 0.3) == 0.0 and at(0.34, 0.3) == pytest.approx(0.2)  # the left ventricle is the larger, and both lean outward


def test_shepp_logan_reaches_first_and_last_pixel_centre() -> None:
    rows = shepp_logan(128)[0, 0].any(1).nonzero()
    assert rows.min() == math.ceil(63.5 - 0.69 * 63.5) and rows.max() == math.floor(63.5 + 0.69 * 63.5)


@pytest.mark.parametrize("size", [33, 64, (40, 64)])
def test_disc_has_its_area(size: int | tuple[int, int]) -> None:
    picture = disc(size, 12.3, value=2.0)
    assert float(picture.sum()) == pytest.approx(2 * math.pi * 12.3**2, rel=2e-3)
    assert picture.max() == 2 and 0 < float(((picture > 0) & (picture < 2)).float().sum()) < 8 * 12.3
    torch.testing.assert_close(picture, picture.flip(2))
    torch.testing.assert_close(picture, picture.flip(3))


def test_every_view_of_a_sinogram_holds_the_mass() -> None:
    geometry = ParallelBeam(image_size=64, angles=torch.linspace(0, 3, 17), detectors=2001, detector_spacing=0.05)
    sinogram = ellipse_sinogram(TILTED, geometry, unit=32.0, dtype=torch.float64)
    mass = math.pi * 32**2 * (1.5 * 0.5 * 0.2 - 0.5 * 0.1 * 0.3)
    assert sinogram.shape == (1, 1, 17, 2001)
    torch.testing.assert_close(sinogram.sum(3) * 0.05, torch.full((1, 1, 17), mass, dtype=torch.float64), rtol=1e-4, atol=0)


@pytest.mark.parametrize("geometry", [PARALLEL, FAN], ids=["parallel", "fan"])
def test_sinogram_is_the_integral_along_the_rays(geometry: Geometry) -> None:
    unit = 20.0  # pixels
    points, directions = geometry.rays()
    steps = (torch.arange(40000, dtype=torch.float64) + 0.5) / 40000 * 100 + (-50 if geometry is PARALLEL else 10)
    view, cell = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([14, 17, 15, 20, 14, 18])
    along = points[view, cell][:, None] + steps[None, :, None] * directions[view, cell][:, None]  # (6, N, 2)
    scaled = along.reshape(-1, 2) / (unit * geometry.pixel_size)
    expected = inside(TILTED, scaled[:, 0], scaled[:, 1]).reshape(6, -1).sum(1) * 100 / 40000
    got = ellipse_sinogram(TILTED, geometry, unit=unit, dtype=torch.float64)[0, 0, view, cell]
    assert (expected.abs() > 1).any()
    torch.testing.assert_close(got, expected, rtol=0, atol=0.015)


def test_central_ray_of_a_fan_crosses_a_disc_along_its_diameter() -> None:
    circle = Ellipses.from_rows([(2.0, 0.5, 0.5, 0, 0, 0)])
    centre = ellipse_sinogram(circle, FAN)[0, 0, :, 15]
    torch.testing.assert_close(centre, torch.full((3,), 2.0 * 2 * 0.5 * 19.5 * 0.5))  # default unit: (40 - 1) / 2 pixels of 0.5


def test_raster_and_sinogram_share_their_unit() -> None:
    for unit in (None, 20.0):
        column_sums = rasterise(TILTED, 400, supersample=2, unit=unit and 10 * unit, dtype=torch.float64).sum(3)[0, 0]
        geometry = ParallelBeam(image_size=400, angles=[0.0], detectors=400, detector_spacing=1.0)
        exact = ellipse_sinogram(TILTED, geometry, unit=unit and 10 * unit, dtype=torch.float64)[0, 0, 0]
        assert float((column_sums - exact).norm() / exact.norm()) < 5e-3


def test_sinograms_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    ellipses = draw_ellipses(9, generator)
    whole = ellipse_sinogram(ellipses, FAN)
    monkeypatch.setattr("bdgd.data.phantoms._CHUNK", 200)
    assert torch.equal(ellipse_sinogram(ellipses, FAN), whole)
    assert torch.equal(ellipse_sinogram(ellipses[4:6], FAN), whole[4:6])


def test_bad_input_is_named(generator: torch.Generator) -> None:
    cases = [
        (lambda: random_ellipses(0, generator=generator), "count must be at least 1"),
        (lambda: random_ellipses(2.5, generator=generator), "count must be a whole number"),  # type: ignore[arg-type]
        (lambda: random_ellipses(2, -4, generator=generator), "size must be at least 1"),
        (lambda: shepp_logan(0), "size must be at least 1"),
        (lambda: disc(32, -1), "radius must be above 0"),
        (lambda: disc(32, 1, math.nan), "value must be finite"),
        (lambda: rasterise(TILTED, 8, supersample=0), "supersample must be at least 1"),
        (lambda: rasterise(TILTED, 8, unit=0.0), "unit must be above 0"),
        (lambda: Ellipses.from_rows([(1, 0, 1, 0, 0, 0)]), "half_axes of Ellipses must be above 0"),
        (lambda: Ellipses.from_rows([(math.nan, 1, 1, 0, 0, 0)]), "value of Ellipses must be finite"),
        (lambda: Ellipses.from_rows([(1, 1, 1)]), "rows must be E rows of"),
        (
            lambda: Ellipses(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3, 2), torch.ones(2, 3)),
            "half_axes of Ellipses must have",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()


def test_shepp_logan_ellipses_are_ten() -> None:
    assert shepp_logan_ellipses().value.shape == (1, 10) and len(shepp_logan_ellipses()) == 1
