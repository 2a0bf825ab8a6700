"""What left-out views of a measured scan may read: the predictive interval of a ray, from draws, shared errors and photons."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from discs import ACRYLIC, coarse, disc_image, measured_disc
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import Correction
from bdgd.data.correction import hardened
from bdgd.evaluation.challenge import CONDITIONS, MeasuredScan
from bdgd.evaluation.measured import Reconstructed, predicted_views, score_measured
from bdgd.evaluation.measured_methods import corrected, measured_model
from bdgd.evaluation.mismatch import CORRECTION, HARDENING, air_offset
from bdgd.evaluation.segmentation import rotated
from bdgd.inference import Posterior
from bdgd.inference.posterior import Origin
from bdgd.models import Calibration, DeepGradientDescent
from bdgd.models.calibration import RegionCalibration
from bdgd.operators import RayTransform


def exact_posterior(image: Tensor, spread: float = 0.0) -> Posterior:
    def replay() -> Iterator[Tensor]:
        yield image

    return Posterior(image, torch.zeros_like(image), torch.full_like(image, spread**2), 1, 0, replay)


@pytest.mark.parametrize("degrees", [0, 90])
def test_a_posterior_that_knows_all_covers_what_its_level_says(degrees: int, generator: torch.Generator) -> None:
    """Left-out views of a pixel image, with air and photon noise: an exact posterior predicts them, in a turned frame too."""
    image, rotation, geometry = disc_image(64, ACRYLIC), math.radians(degrees), coarse(measured_disc()).scans.geometry
    assert geometry is not None
    views = RayTransform(geometry, strategy="matrix-free")(image)
    y = views + 0.014 + 0.0033 * torch.exp(views / 2) * torch.randn(views.shape, generator=generator)
    scan = coarse(measured_disc("02a"))
    scan = replace(scan, scans=replace(scan.scans, sinograms=y))
    turned = rotated(image, -rotation).contiguous()
    condition = CONDITIONS["arc90"]
    found = Reconstructed(turned, (rotation,), exact_posterior(turned), geometry)
    (scores,) = score_measured(found, [scan], condition, None, 0.0)
    assert scores.coverage == pytest.approx(0.94, abs=0.03) and scores.width == pytest.approx(scores.noise_width, rel=0.1)
    (wrong,) = score_measured(replace(found, rotations=(rotation + math.pi,)), [scan], condition, None, 0.0)
    assert wrong.coverage is not None and wrong.coverage < 0.7
    (wide,) = score_measured(replace(found, posterior=exact_posterior(turned, 0.02)), [scan], condition, None, 0.0)
    assert wide.coverage is not None and wide.coverage > 0.99 and wide.width is not None and wide.width > 2 * scores.width


def test_a_calibrated_posterior_predicts_rays_with_the_error_that_pixels_share() -> None:
    """Of constant aleatoric std r and hardly any noise: the interval of a ray reaches 1.96 r times its way through the image."""
    scan, condition, image, r, draws = coarse(measured_disc()), CONDITIONS["views30"], disc_image(64, ACRYLIC), 0.005, 400
    regions = RegionCalibration(images=9, discs=1, levels=(), window=11, areas=(), mean=(), contrast=(), area=())
    calibration = Calibration(
        draws=draws, draw="weights", noise=None, geometry=None, weights="", images=9, levels=(), std_edges=(), z=(), regions=regions
    )
    plain = replace(exact_posterior(image, r), number=draws, replay=lambda: iter([image] * draws))
    widths = []
    for posterior in (plain, replace(plain, origin=Origin("weights", calibration))):
        ((lower, upper, y, _),) = predicted_views(Reconstructed(image, (0.0,), posterior, scan.scans.geometry), [scan], condition)
        widths.append(float((upper - lower)[y > 0.5].mean()))
    left = scan.seen(condition.left_out(scan.name)[::5]).geometry
    assert left is not None
    way = float(RayTransform(left, strategy="matrix-free")(torch.ones_like(image))[y > 0.5].mean())
    assert widths[1] == pytest.approx(2 * 1.96 * r * way, rel=0.1)
    assert widths[0] < 0.5 * widths[1]


def hardened_scan(generator: torch.Generator) -> tuple[MeasuredScan, Tensor]:
    """A hardened scan of a pixel image (1, 1, 64, 64) with air and photon noise, and the image."""
    scan, image = coarse(measured_disc("02a")), disc_image(64, ACRYLIC)
    assert scan.scans.geometry is not None
    p = hardened(RayTransform(scan.scans.geometry, strategy="matrix-free")(image), HARDENING)
    y = p + 0.014 + 0.0033 * torch.exp(p / 2) * torch.randn(p.shape, generator=generator)
    return replace(scan, scans=replace(scan.scans, sinograms=y)), image


def test_left_out_views_of_a_corrected_scan_are_predicted_where_the_photons_were_counted(generator: torch.Generator) -> None:
    """An exact posterior covers what its level says, thin and thick parts alike, and no more than the noise is its width."""
    raw, image = hardened_scan(generator)
    scan, condition = corrected(raw), CONDITIONS["views30"]
    found = Reconstructed(image, (0.0,), exact_posterior(image), scan.scans.geometry, CORRECTION)
    ((lower, upper, y, noise),) = predicted_views(found, [scan], condition)
    above_air = raw.seen(condition.left_out(raw.name)[::5]).sinograms - air_offset(raw.scans.sinograms)
    torch.testing.assert_close(y, above_air, rtol=1e-5, atol=1e-5)
    held, width = (lower <= y) & (y <= upper), upper - lower
    for low, high in ((0.1, 0.8), (0.8, 1.6), (1.6, 3.0)):
        part = (y > low) & (y < high)
        assert float(held[part].double().mean()) == pytest.approx(0.94, abs=0.03), (low, high)
        assert float(width[part].mean()) == pytest.approx(float(noise[part].mean()), rel=0.1)
    scores, plain = (score_measured(found, [which], condition, None, 0.0)[0] for which in (scan, raw))
    assert scores.coverage == pytest.approx(plain.coverage, abs=0.01) and scores.width == pytest.approx(plain.width, rel=0.01)
    (forgotten,) = score_measured(replace(found, correction=None), [scan], condition, None, 0.0)
    assert forgotten.coverage is not None and forgotten.coverage < 0.3  # straight line integrals are not what a hardened beam gives


def test_a_model_with_a_correction_corrects_once(generator: torch.Generator) -> None:
    raw, _ = hardened_scan(generator)
    condition = CONDITIONS["views30"]
    assert raw.scans.geometry is not None
    model = DeepGradientDescent(RayTransform(raw.scans.geometry[condition.used(raw.name)]), blocks=1, value_scale=ACRYLIC)
    ((_, plain),) = measured_model(model, 1, 0, [raw], condition)
    assert plain.correction is None
    model.correction = CORRECTION
    ((_, once),) = measured_model(model, 1, 0, [raw], condition)
    ((_, already),) = measured_model(model, 1, 0, [corrected(raw)], condition)
    assert once.correction == already.correction == CORRECTION
    torch.testing.assert_close(once.images, already.images, rtol=0, atol=0.03 * ACRYLIC)  # air of 30 views, or of all
    assert float((once.images - plain.images).abs().max()) > 0.2 * ACRYLIC
    model.correction = Correction(air=True, hardening=0.2)
    with pytest.raises(InputError, match=r"corrected with .*'hardening': 0.2.*'hardening': 0.27"):
        list(measured_model(model, 1, 0, [corrected(raw)], condition))
