"""What a scan tells about itself: its noise, its values, and the errors to train against."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from discs import COARSE_FAN as FAN
from discs import MATERIAL, scanned_disc
from toys import seeded

from bdgd.checks import InputError
from bdgd.data import (
    GaussianNoise,
    PoissonNoise,
    Scans,
    discs_with_holes,
    draw_ellipses,
    ellipse_sinogram,
    estimate_noise,
    random_ellipses,
)
from bdgd.data.estimates import noise_on
from bdgd.data.scanner import training_geometry
from bdgd.data.scanner_errors import scanner_errors
from bdgd.models.scales import gradient_scale, value_scale
from bdgd.operators import ParallelBeam, RayTransform

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scan() -> Scans:
    return scanned_disc()


# --- what a scan tells ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("what", ["ellipses", "analytic", "discs"])
def test_normal_noise_is_estimated_to_15_per_cent(what: str, relative: float) -> None:
    if what == "analytic":
        clean = ellipse_sinogram(draw_ellipses(4, seeded(5)), FAN)
    else:
        geometry = FAN if what == "discs" else ParallelBeam.sparse(image_size=128, views=30)
        size = geometry.image_size[0]
        images = discs_with_holes(4, size, generator=seeded(3)) if what == "discs" else random_ellipses(4, size, generator=seeded(2))
        clean = RayTransform(geometry)(images)
    noisy = GaussianNoise(relative)(clean, generator=seeded(1))
    found = [estimate_noise(noisy[i : i + 1]) for i in range(4)]
    assert all(isinstance(noise, GaussianNoise) for noise in found)
    ratios = [noise.relative / relative for noise in found if isinstance(noise, GaussianNoise)]
    assert np.median(ratios) == pytest.approx(1, abs=0.15), ratios
    assert max(abs(ratio - 1) for ratio in ratios) < (0.35 if what == "discs" and relative < 0.01 else 0.2), ratios


def test_the_noise_of_several_scans_is_relative_to_each() -> None:
    """Bright images have more of it than dark ones."""
    A, images = RayTransform(ParallelBeam.sparse(image_size=128, views=30)), random_ellipses(6, 128, generator=seeded(2))
    noisy = GaussianNoise(0.01)(A(images) * torch.tensor([0.01, 0.03, 0.1, 0.01, 0.03, 0.1])[:, None, None, None], generator=seeded(1))
    found = estimate_noise(noisy)
    assert isinstance(found, GaussianNoise) and found.relative == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("bad", [torch.full((2, 1, 9, 30), math.nan), torch.rand(9, 30)], ids=["nan", "axes"])
def test_noise_is_asked_of_whole_sinograms_alone(bad: torch.Tensor) -> None:
    with pytest.raises(InputError, match="the sinogram must"):
        estimate_noise(bad)


def test_empty_slices_tell_no_noise_and_small_scans_tell_it_together() -> None:
    A, images = RayTransform(ParallelBeam.sparse(image_size=128, views=30)), random_ellipses(1, 128, generator=seeded(2))
    noisy = GaussianNoise(0.01)(A(images), generator=seeded(1))
    assert estimate_noise(torch.cat((noisy, torch.zeros_like(noisy)))) == estimate_noise(noisy)
    small = RayTransform(ParallelBeam(image_size=64, angles=np.linspace(0, 3, 8), detectors=93))
    y = PoissonNoise(1e4)(small(0.04 * random_ellipses(12, 64, generator=seeded(4))), generator=seeded(5))
    together = estimate_noise(y)
    assert isinstance(together, PoissonNoise) and math.sqrt(1e4 / together.photons) == pytest.approx(1, abs=0.2)


def test_photon_noise_is_recognised_and_its_size_estimated_to_15_per_cent(scan: Scans) -> None:
    for part in (scan.sinograms, scan.sinograms[:, :, ::3]):
        noise = estimate_noise(part)
        assert isinstance(noise, PoissonNoise) and noise.attenuation == 1.0
        assert math.sqrt(1e5 / noise.photons) == pytest.approx(1, abs=0.15)


def test_noise_on_wider_detectors_has_more_photons(scan: Scans) -> None:
    coarse, _ = training_geometry(FAN, size=16)
    noise = noise_on(scan, coarse)
    assert isinstance(noise, PoissonNoise) and noise.photons == pytest.approx(8e5, rel=0.3)  # 8 detectors into one


def test_noise_needs_neighbours() -> None:
    with pytest.raises(InputError, match="from 3 detectors; give it with --noise"):
        estimate_noise(torch.rand(1, 1, 9, 3))


@pytest.mark.parametrize("homogeneous", [True, False])
def test_the_value_scale_is_that_of_the_material(scan: Scans, homogeneous: bool) -> None:
    assert value_scale(scan, homogeneous) == pytest.approx(MATERIAL, rel=0.06)


def test_the_value_scale_of_a_short_arc(scan: Scans) -> None:
    short = replace(scan, sinograms=scan.sinograms[:, :, :15], geometry=FAN[:15])
    assert value_scale(short) == pytest.approx(MATERIAL, rel=0.12)


def test_an_empty_scan_has_no_value_scale(scan: Scans) -> None:
    with pytest.raises(InputError, match="shows no object"):
        value_scale(replace(scan, sinograms=torch.zeros_like(scan.sinograms)))
    with pytest.raises(InputError, match="no line integrals above 0"):
        scanner_errors(torch.zeros(1, 1, 4, 9))


def test_errors_to_train_against_cover_what_is_measured_in_air(scan: Scans) -> None:
    mismatch, air = scanner_errors(scan.sinograms)
    assert air == pytest.approx(0.02, abs=0.002)
    assert mismatch.air_offset[0] < 0 < 0.02 < mismatch.air_offset[1] < 0.1
    assert scanner_errors(scan.sinograms[..., 50:90])[1] is None  # no detector sees air


def test_the_gradient_scale_is_the_papers_and_depends_on_neither_unit_nor_detectors() -> None:
    assert gradient_scale(ParallelBeam.sparse(image_size=128, views=30), CPU) == pytest.approx(61, rel=0.01)
    paper = ParallelBeam.sparse(image_size=32, views=9)
    wanted = gradient_scale(paper, CPU)
    inches = replace(paper, pixel_size=paper.pixel_size / 25.4, detector_spacing=paper.detector_spacing / 25.4)
    assert gradient_scale(inches, CPU) == pytest.approx(wanted, rel=1e-3)
    finer = replace(paper, detectors=2 * paper.detectors, detector_spacing=paper.detector_spacing / 2)
    assert gradient_scale(finer, CPU) == pytest.approx(wanted, rel=0.03)
