"""FBP: the right scale in every geometry, images where and as they should be, and the paper's numbers on the paper's protocol."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdgd import data
from bdgd.checks import InputError
from bdgd.classical.fbp import FILTERS, fbp
from bdgd.metrics import psnr
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform

RANDOM = np.random.default_rng(0)


def degrees(first: float, last: float, step: float = 1.0) -> np.ndarray:
    return np.deg2rad(np.arange(first, last, step))


def fan(angles: np.ndarray, **changes: Any) -> FanBeam:
    """64 x 64 pixels seen under +-18 degrees, so a short scan needs 180 + 36 degrees."""
    values = dict(image_size=64, angles=angles, detectors=160, source_to_axis=150.0, source_to_detector=250.0)
    return FanBeam(**{**values, **changes})


GEOMETRIES: dict[str, Geometry] = {
    "parallel": ParallelBeam.sparse(image_size=64, views=120),
    "parallel, full circle": ParallelBeam(image_size=64, angles=degrees(0, 360, 2), detectors=95),
    "parallel, both ends": ParallelBeam(image_size=64, angles=np.linspace(0, math.pi, 121), detectors=95),
    "parallel, 220 degrees": ParallelBeam(image_size=64, angles=degrees(-30, 190), detectors=95),
    "parallel, pixel 0.3": ParallelBeam.sparse(image_size=64, views=120, pixel_size=0.3),
    "parallel, axis off, two sides": ParallelBeam(image_size=(65, 80), angles=degrees(0, 180), detectors=130, detector_offset=7.3),
    "parallel, fine detector": ParallelBeam(image_size=64, angles=degrees(0, 180), detectors=200, detector_spacing=0.5),
    "parallel, wide detectors": ParallelBeam(
        image_size=64, angles=degrees(0, 180), detectors=64, detector_spacing=0.45, detector_offset=0.12, pixel_size=0.3
    ),
    "parallel, random angles": ParallelBeam(image_size=64, angles=RANDOM.uniform(0, math.pi, 300), detectors=95),
    "parallel, half a detector": ParallelBeam(image_size=64, angles=degrees(0, 360), detectors=60, detector_offset=15.5),
    "parallel, half a detector, odd views": ParallelBeam(
        image_size=64, angles=np.linspace(0, 2 * math.pi, 401, endpoint=False), detectors=52, detector_offset=-19.5
    ),
    "parallel, half a detector, lost views": ParallelBeam(
        image_size=64, angles=np.delete(degrees(0, 360), [100, 217, 218]), detectors=60, detector_offset=15.5
    ),
    "parallel, half a detector, few views and one lost": ParallelBeam(
        image_size=64, angles=np.delete(degrees(0, 360, 6), 20), detectors=60, detector_offset=15.5
    ),
    "fan": fan(degrees(0, 360, 2)),
    "fan, pixel 0.3": fan(
        degrees(0, 360, 2), pixel_size=0.3, detector_spacing=0.3, source_to_axis=45.0, source_to_detector=75.0, image_size=(64, 70)
    ),
    "fan, axis off": fan(degrees(0, 360, 2), detector_offset=9.7),
    "fan, two sides": fan(degrees(0, 360, 2), image_size=(65, 80)),
    "fan, half a detector": fan(degrees(0, 360), detectors=100, detector_offset=27.3),
    "fan, half a detector, lost views": fan(np.delete(degrees(0, 360), [100, 217, 218]), detectors=100, detector_offset=27.3),
    "fan, random angles": fan(RANDOM.uniform(0, 2 * math.pi, 300)),
    "fan, near source": fan(degrees(0, 360, 2), source_to_axis=50.0, source_to_detector=90.0),
    "fan, short 216": fan(degrees(0, 216, 2)),
    "fan, short 250": fan(degrees(77, 327, 2)),
    "fan, short 300 backwards": fan(degrees(100, 400, 2)[::-1]),
    "fan, short 230, axis off": fan(degrees(77, 307, 2), detector_offset=5.3),
}

every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())

#: In pixels. Not centred, so that its edge does not fall between two detectors in the same way in every view.
DISC, CENTRE = data.Ellipses.from_rows([(1.0, 20.0, 20.0, 1.3, -0.8, 0.0)]), (1.3, -0.8)
#: no two flips or rotations of it agree
LOPSIDED = data.Ellipses.from_rows([(1.0, 20.0, 13.0, 2.0, 3.0, 0.4), (0.8, 4.0, 6.0, 9.0, 5.0, 0.0), (-0.7, 4.0, 3.0, -6.0, 2.0, 1.0)])


def radius(geometry: Geometry) -> Tensor:
    """(H, W) distance of every pixel from the centre of the disc, in pixels."""
    x, y = (centres / geometry.pixel_size for centres in geometry.pixel_centres())
    return torch.hypot(x[:, None] - CENTRE[0], y - CENTRE[1])


def reconstruct(ellipses: data.Ellipses, geometry: Geometry, device: torch.device | str = "cpu", **options: Any) -> Tensor:
    """(H, W) the FBP of the exact line integrals, so that no error of the ray transform can hide another in FBP."""
    y = data.ellipse_sinogram(ellipses, geometry, unit=1.0).to(device)
    image = fbp(RayTransform(geometry, device), y, **options)
    assert image.shape == (1, 1, *geometry.image_size) and image.dtype == torch.float32 and image.device == y.device
    return image[0, 0].cpu()


# --- scale ---------------------------------------------------------------------------------------------------------


@every_geometry
def test_a_disc_of_one_comes_back_as_one(geometry: Geometry, device: torch.device) -> None:
    image, r = reconstruct(DISC, geometry, device), radius(geometry)
    for inside in (r < 18, r < 6, (r > 6) & (r < 12), (r > 12) & (r < 18)):
        assert float(image[inside].mean()) == pytest.approx(1, abs=0.01)
    assert float(image[r < 18].std()) < 0.015
    assert float(image[(r > 22) & (r < 30)].mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    "geometry",
    [
        ParallelBeam.sparse(image_size=8, views=4),
        ParallelBeam(image_size=(8, 9), angles=[0, 0.7, 1.4, 2.1], detectors=8, detector_spacing=2.0),
        ParallelBeam(image_size=8, angles=[n * math.pi / 6 for n in range(12)], detectors=10, detector_offset=3.0),
        FanBeam(image_size=8, angles=[n * math.pi / 4 for n in range(8)], detectors=20, source_to_axis=20.0, source_to_detector=33.0),
    ],
    ids=["parallel", "wide detectors", "half detector", "fan"],
)
def test_gradients_flow_through(geometry: Geometry, generator: torch.Generator) -> None:
    A = RayTransform(geometry, dtype=torch.float64)
    y = torch.randn(2, *A.range_shape, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: fbp(A, y), (y,))


@pytest.mark.parametrize("name", ["fan", "fan, pixel 0.3", "fan, axis off", "fan, short 250"])
def test_a_fan_gives_one_in_every_pixel_of_the_disc(name: str) -> None:
    image = reconstruct(DISC, GEOMETRIES[name])
    assert float((image - 1)[radius(GEOMETRIES[name]) < 17].abs().max()) < 0.01


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("name", ["parallel", "fan"])
def test_every_filter_keeps_the_scale(filter: str, name: str) -> None:
    image = reconstruct(DISC, GEOMETRIES[name], filter=filter)
    assert float(image[radius(GEOMETRIES[name]) < 16].mean()) == pytest.approx(1, abs=0.01)


def test_a_limited_arc_is_scaled_to_the_half_circle() -> None:
    image = reconstruct(DISC, ParallelBeam.limited(image_size=64, degrees=120))
    assert float(image[radius(GEOMETRIES["parallel"]) < 18].mean()) == pytest.approx(1, abs=0.01)


def test_attenuation_is_per_length() -> None:
    """In a unit 0.3 as long the same object has 0.3 as long integrals and the same values."""
    one, other = GEOMETRIES["parallel"], GEOMETRIES["parallel, pixel 0.3"]
    y = data.ellipse_sinogram(LOPSIDED, one, unit=1.0)
    assert torch.allclose(fbp(RayTransform(one), y), fbp(RayTransform(other), 0.3 * y), atol=1e-5)


# --- orientation ---------------------------------------------------------------------------------------------------


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


@every_geometry
def test_the_image_is_where_the_object_was(geometry: Geometry, device: torch.device) -> None:
    image = reconstruct(LOPSIDED, geometry, device)
    truth = data.rasterise(LOPSIDED, geometry.image_size, supersample=4, unit=1.0)[0, 0]
    x, y = (centres / geometry.pixel_size for centres in geometry.pixel_centres())
    image = image.where(torch.hypot(x[:, None], y) < 30, 0.0)  # few views leave streaks in the corners
    right = correlation(image, truth)
    assert right > 0.99
    for shown, true in ((image.sum(1) @ x.float(), truth.sum(1) @ x.float()), (image.sum(0) @ y.float(), truth.sum(0) @ y.float())):
        assert float(shown / image.sum()) == pytest.approx(float(true / truth.sum()), abs=0.15)  # centre of mass, in pixels
    turns = range(4) if image.shape[0] == image.shape[1] else (0, 2)
    others = [correlation(turned.rot90(k), truth) for turned in (image, image.flip(0)) for k in turns][1:]
    assert right > max(others) + 0.02


@pytest.mark.parametrize("name", ["parallel", "parallel, axis off, two sides", "fan", "fan, axis off", "fan, short 230, axis off"])
def test_views_turned_by_a_quarter_turn_the_image(name: str) -> None:
    """theta + pi/2 with the object turned by pi/2 is the same sinogram; the image must be the same image, turned."""
    geometry = GEOMETRIES[name]
    turned = replace(geometry, angles=tuple(a + math.pi / 2 for a in geometry.angles), image_size=geometry.image_size[::-1])
    y = data.ellipse_sinogram(LOPSIDED, geometry, unit=1.0)
    image, other = fbp(RayTransform(geometry), y)[0, 0], fbp(RayTransform(turned), y)[0, 0]
    assert torch.allclose(other, image.rot90(1), atol=1e-4)


def test_a_short_scan_is_as_good_as_a_full_one() -> None:
    full, short = (reconstruct(LOPSIDED, fan(angles)) for angles in (degrees(0, 360), degrees(77, 297)))
    assert float((full - short).square().mean().sqrt()) < 0.01


# --- views that say the same ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "geometry", [ParallelBeam.limited(image_size=32, degrees=50), fan(degrees(10, 240, 5), image_size=32)], ids=["parallel", "fan"]
)
def test_views_measured_twice_change_nothing(geometry: Geometry) -> None:
    y = data.ellipse_sinogram(data.Ellipses.from_rows([(1.0, 9.0, 5.0, 2.0, 3.0, 0.4)]), geometry, unit=1.0)
    once = fbp(RayTransform(geometry), y)
    assert torch.isfinite(once).all()
    for views in ([*range(geometry.views)] * 2, [0, 0, *range(geometry.views), geometry.views - 1]):
        assert torch.allclose(fbp(RayTransform(geometry[views]), y[:, :, views]), once, atol=1e-5)


def test_views_in_another_order_change_nothing() -> None:
    geometry = GEOMETRIES["fan, short 230, axis off"]
    order = np.random.default_rng(1).permutation(geometry.views).tolist()
    y = data.ellipse_sinogram(LOPSIDED, geometry, unit=1.0)
    assert torch.allclose(fbp(RayTransform(geometry[order]), y[:, :, order]), fbp(RayTransform(geometry), y), atol=1e-5)


# --- a linear map of the sinogram ------------------------------------------------------------------------------------

SMALL: dict[str, Geometry] = {
    "parallel": ParallelBeam.limited(image_size=(12, 15), degrees=30),
    "fan": fan(degrees(0, 360, 24), image_size=(12, 15), detectors=31),
}

both_beams = pytest.mark.parametrize("geometry", SMALL.values(), ids=SMALL.keys())


@both_beams
def test_batches_and_precision(
    geometry: Geometry, device: torch.device, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, double = RayTransform(geometry, device), RayTransform(geometry, device, torch.float64)
    y = torch.randn((5, *A.range_shape), generator=generator).to(device)
    image = fbp(A, y)
    assert torch.allclose(torch.cat([fbp(A, one) for one in y.split(1)]), image, atol=1e-5)
    assert torch.allclose(fbp(A, y[:2]) - 3 * fbp(A, y[2:4]), fbp(A, y[:2] - 3 * y[2:4]), atol=1e-5)
    exact = fbp(double, y.double())
    assert exact.dtype == torch.float64 and torch.allclose(exact.float(), image, atol=1e-5)
    monkeypatch.setattr(importlib.import_module("bdgd.classical.fbp"), "BATCH", 2)
    assert torch.allclose(fbp(A, y), image, atol=1e-5)
    assert torch.allclose(fbp(A, y.transpose(2, 3).contiguous().transpose(2, 3)), image, atol=1e-5)


@both_beams
def test_strategies_give_the_same_image(geometry: Geometry, generator: torch.Generator) -> None:
    y = torch.randn((2, 1, geometry.views, geometry.detectors), generator=generator)
    free, matrix = (fbp(RayTransform(geometry, strategy=strategy), y) for strategy in ("matrix-free", "matrix"))
    assert torch.allclose(free, matrix, atol=1e-5)


@both_beams
def test_filters_order_the_noise(geometry: Geometry, generator: torch.Generator) -> None:
    y = torch.randn((20, 1, geometry.views, geometry.detectors), generator=generator)
    noise = {filter: float(fbp(RayTransform(geometry), y, filter=filter).std()) for filter in FILTERS}
    assert list(FILTERS) == ["ram-lak", "shepp-logan", "cosine", "hann", "hamming"]
    assert noise["ram-lak"] > noise["shepp-logan"] > noise["cosine"] > noise["hamming"] > noise["hann"]
    assert noise["hann"] < 0.6 * noise["ram-lak"]
    assert torch.equal(fbp(RayTransform(geometry), y), fbp(RayTransform(geometry), y, filter="ram-lak"))


@both_beams
def test_the_sinogram_is_left_alone(geometry: Geometry) -> None:
    y = torch.ones(1, 1, geometry.views, geometry.detectors)
    fbp(RayTransform(geometry), y)
    assert bool((y == 1).all())


# --- the paper's protocol --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "ellipses", "shepp_logan"),
    [(ParallelBeam.sparse(), 24.47, 18.49), (ParallelBeam.limited(), 17.76, 17.11)],
    ids=["sparse 30", "limited 120"],
)
def test_the_papers_numbers(
    geometry: Geometry, ellipses: float, shepp_logan: float, device: torch.device, generator: torch.Generator
) -> None:
    A = RayTransform(geometry, device)
    x = data.table_images()
    scans = data.simulate(A, x, data.GaussianNoise(0.01), generator=generator)
    quality = psnr(fbp(A, scans.sinograms.to(device)).cpu(), x)
    assert float(quality[:100].mean()) == pytest.approx(ellipses, abs=0.5)
    assert float(quality[100]) == pytest.approx(shepp_logan, abs=0.1)


# --- bad input -----------------------------------------------------------------------------------------------------


def sinogram(geometry: Geometry, value: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    y = torch.zeros((2, 1, geometry.views, geometry.detectors), dtype=dtype)
    y[0, 0, 0, 0] = value
    return y


@both_beams
def test_bad_input_is_named(geometry: Geometry) -> None:
    A, y = RayTransform(geometry), sinogram(geometry)
    shape = rf"\(B, 1, {geometry.views}, {geometry.detectors}\)"
    with pytest.raises(InputError, match=r"filter must be one of 'ram-lak', .*'hamming', got 'ramp'"):
        fbp(A, y, filter="ramp")
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match=rf"the sinogram must be finite, but 1 of its {y.numel()} values are NaN or infinite; mask or"):
            fbp(A, sinogram(geometry, value))
    with pytest.raises(InputError, match=rf"the sinogram must have shape {shape}, got .*; add the batch axis with \[None\]"):
        fbp(A, y[0])
    with pytest.raises(InputError, match=rf"the sinogram must have shape {shape}, got .*; check that it belongs to this operator"):
        fbp(A, y[..., :-1])
    with pytest.raises(InputError, match=r"the sinogram is empty: .*; pass a batch of at least one"):
        fbp(A, y[:0])
    with pytest.raises(InputError, match=r"the sinogram must be floating point, got torch\.int32; convert it with \.to\(torch\.float32\)"):
        fbp(A, y.int())
    with pytest.raises(InputError, match=rf"the sinogram must be a torch tensor of shape {shape}, got ndarray; convert it with"):
        fbp(A, y.numpy())  # type: ignore[arg-type]


@both_beams
def test_another_precision_or_device_is_named(geometry: Geometry) -> None:
    with pytest.raises(InputError, match=r"the sinogram is torch\.float64 on cpu, but .* works in torch\.float32 on cpu; convert"):
        fbp(RayTransform(geometry), sinogram(geometry, dtype=torch.float64))
    with pytest.raises(InputError, match=r"the sinogram is torch\.float32 on meta, but .* works in torch\.float32 on cpu; convert it with"):
        fbp(RayTransform(geometry), sinogram(geometry).to("meta"))


def test_an_operator_without_geometry_is_named() -> None:
    A = RayTransform(SMALL["parallel"])
    with pytest.raises(InputError, match=r"fbp needs an operator with a geometry, such as bdgd\.RayTransform; .* has none: .*initial="):
        fbp(A / 2, sinogram(SMALL["parallel"]))
