"""A denser, rotated, flipped or rescaled scan becomes what the model's scanner would have measured; what cannot is listed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.data import Ellipses, GaussianNoise, PoissonNoise, Scans, ellipse_sinogram, match, rasterise, read_scans
from bdgd.data.resampling import averaged_images
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform

#: value, half-axes, centre, rotation; off the middle, so that no view of it looks like another. One phantom unit is 30 mm.
OBJECT = Ellipses.from_rows([(1.0, 0.45, 0.3, 0.2, 0.15, 0.4), (-0.5, 0.15, 0.2, 0.3, 0.1, 1.1)])
LENGTH = 30.0
DEGREES = np.arange(0, 360, 6.0)
MODEL = FanBeam(image_size=64, angles=np.deg2rad(DEGREES), detectors=100, detector_spacing=1.4, source_to_axis=200, source_to_detector=280)
PARALLEL = ParallelBeam.sparse(image_size=64, views=30)


def scan_of(geometry: Geometry, millimetres: float = 1.0, **known: Any) -> Scans:
    """The object's exact sinogram (float64), in a geometry whose unit of length is so many millimetres; values stay per mm."""
    unit = LENGTH / millimetres / geometry.pixel_size
    return Scans(millimetres * ellipse_sinogram(OBJECT, geometry, unit=unit, dtype=torch.float64), geometry, **known)


def off(scans: Scans, geometry: Geometry) -> float:
    """The largest difference from the exact sinogram of the model's geometry, relative to its largest value."""
    right = scan_of(geometry).sinograms
    return float((scans.sinograms - right).abs().max() / right.max())


def test_an_equal_geometry_passes_untouched() -> None:
    scans = scan_of(MODEL)
    matched, notes = match(scans, MODEL)
    assert matched is scans and notes == []


def test_views_are_picked_from_a_denser_scan() -> None:
    angles = np.deg2rad(np.arange(0, 360.5, 0.5))[::-1]  # backwards, and 0 degrees twice
    matched, notes = match(scan_of(replace(MODEL, angles=angles)), MODEL)
    assert matched.geometry == MODEL and off(matched, MODEL) < 1e-8 and matched.rotation == 0
    assert notes == ["60 of the scan's 721 views were taken, from 0 to 354 degrees"] and matched.notes == tuple(notes)


def test_slightly_other_angles_are_taken_and_said() -> None:
    matched, notes = match(scan_of(replace(MODEL, angles=np.deg2rad(DEGREES + np.where(np.arange(60) % 2, 0.2, -0.2)))), MODEL)
    assert notes == ["the views' angles differ from the model's by up to 0.2 degrees"] and off(matched, MODEL) < 0.05
    with pytest.raises(InputError, match="views over an arc of 360 degrees: 30 of these are not in the scan, the furthest by 2 degrees"):
        match(scan_of(replace(MODEL, angles=np.deg2rad(DEGREES + np.where(np.arange(60) % 2, 2.0, 0.0)))), MODEL)


@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_parallel_views_are_taken_from_the_other_side(offset: float) -> None:
    """A scan over the second half turn sees every line backwards, and an axis off the middle on the other side."""
    scan = replace(
        PARALLEL, angles=np.asarray(PARALLEL.angles) + math.pi, detectors=203, detector_offset=offset * PARALLEL.detector_spacing
    )
    matched, notes = match(scan_of(scan), PARALLEL)
    assert matched.rotation == 0 and off(matched, PARALLEL) < 1e-6
    assert notes[0] == "30 of the scan's 30 views were taken, from 183 to 357 degrees, 30 of them from the other side"


def test_detectors_are_averaged_cut_and_resampled() -> None:
    fine = replace(MODEL, detectors=400, detector_spacing=0.35)
    scans = scan_of(fine)
    matched, notes = match(scans, MODEL)
    assert notes == ["4 neighbouring detectors were averaged into one, from 400 of 0.35 to 100 of 1.4"]
    assert torch.allclose(matched.sinograms, scans.sinograms.unflatten(-1, (100, 4)).mean(-1), atol=1e-12)
    wide = replace(MODEL, detectors=110)
    matched, notes = match(scan_of(wide), MODEL)
    assert notes == ["the detectors were cut from 110 of 1.4 to 100 of 1.4"] and off(matched, MODEL) < 1e-12
    odd = replace(MODEL, detectors=231, detector_spacing=0.61, detector_offset=0.23)
    matched, notes = match(scan_of(odd), MODEL)
    assert len(notes) == 1 and "resampled linearly, from 231 of 0.61 to 100 of 1.4" in notes[0] and off(matched, MODEL) < 0.15
    inner = (matched.sinograms - scan_of(MODEL).sinograms).abs().median()
    assert float(inner) < 1e-3 * LENGTH  # edges apart, where the wider cell averages over a kink
    coarse = replace(MODEL, detectors=80, detector_spacing=1.75)
    matched, notes = match(scan_of(coarse), MODEL)
    assert "resampled linearly" in notes[0] and float((matched.sinograms - scan_of(MODEL).sinograms).abs().median()) < 1e-3 * LENGTH


def test_a_detector_that_ends_in_air_is_continued() -> None:
    short = replace(MODEL, detectors=90)
    matched, notes = match(scan_of(short), MODEL)
    assert "10 of them lie beyond the scan's, in air" in notes[0] and off(matched, MODEL) < 1e-12
    with pytest.raises(InputError, match=r"end inside the object: 40 detectors of 1.4 in the scan and 100 of 1.4 in the model"):
        match(scan_of(replace(MODEL, detectors=40)), MODEL)


SHIFTED = replace(PARALLEL, detector_offset=0.5 * PARALLEL.detector_spacing)
QUARTER = replace(PARALLEL, detector_offset=0.25 * PARALLEL.detector_spacing)
OTHER_SIDE = replace(PARALLEL, angles=np.asarray(PARALLEL.angles) + math.pi)
MIXED = [
    (PARALLEL, replace(OTHER_SIDE, angles=PARALLEL.angles[:15] + OTHER_SIDE.angles[15:]), True),
    (PARALLEL, OTHER_SIDE, True),
    (PARALLEL, SHIFTED, False),
    (QUARTER, replace(QUARTER, angles=OTHER_SIDE.angles), False),  # seen from the other side, they lie half a detector apart
    (PARALLEL, replace(PARALLEL, detectors=91), False),
    (MODEL, replace(MODEL, detectors=200, detector_spacing=0.7), False),
    (MODEL, replace(MODEL, detector_spacing=1.41), False),
]


@pytest.mark.parametrize(("model", "scan", "kept"), MIXED)
def test_the_noise_is_kept_where_values_are_picked_and_not_where_they_are_mixed(model: Geometry, scan: Geometry, kept: bool) -> None:
    noise = PoissonNoise(1e4)
    matched, _ = match(replace(scan_of(scan), noise=noise), model)
    assert matched.noise == (noise if kept else None)


def test_mixed_detectors_have_less_noise_than_the_law_says() -> None:
    """Why the law is dropped: between two detectors of equal weight the standard deviation falls by the square root of 2."""
    air = PoissonNoise(1e4)(torch.zeros(1, 1, SHIFTED.views, SHIFTED.detectors), generator=torch.Generator().manual_seed(0))
    matched, _ = match(Scans(air, SHIFTED, noise=PoissonNoise(1e4)), PARALLEL)
    assert float(matched.sinograms.std() / air.std()) == pytest.approx(0.5**0.5, rel=0.03) and matched.noise is None


@pytest.mark.parametrize("beam", [MODEL, PARALLEL], ids=["fan", "parallel"])
def test_another_unit_of_length_is_scaled(beam: Geometry) -> None:
    """In centimetres every length is a tenth, and an image per centimetre ten times one per millimetre."""
    names = ("detector_spacing", "detector_offset", "pixel_size", "source_to_axis", "source_to_detector")
    tenth = replace(beam, **{name: getattr(beam, name) / 10 for name in names if hasattr(beam, name)})
    truth = 10 * rasterise(OBJECT, 64, unit=LENGTH)
    scans = scan_of(tenth, 10.0, images=truth, unit="cm", slice_spacing=0.2, noise=GaussianNoise(0.1))
    matched, notes = match(scans, beam)
    assert off(matched, beam) < 1e-9 and matched.unit == "mm" and matched.slice_spacing == pytest.approx(2.0)
    assert matched.images is not None and torch.allclose(matched.images, truth / 10) and matched.noise == GaussianNoise(0.1)
    assert notes == ["the scan's lengths were multiplied by 10 (cm to mm) to be the model's; images are per the new length"]


def test_a_fan_with_its_detector_elsewhere_has_the_same_rays() -> None:
    moved = replace(MODEL, source_to_detector=420.0, detector_spacing=2.1)
    matched, notes = match(scan_of(moved), MODEL)
    assert off(matched, MODEL) < 1e-9 and len(notes) == 1 and "moved along its rays from 420 to 280" in notes[0]


@pytest.mark.parametrize("start", [50.0, -20.0])
@pytest.mark.parametrize("beam", ["fan", "parallel"])
def test_an_arc_that_starts_elsewhere_is_a_turned_image(beam: str, start: float) -> None:
    """Turned back by `rotation`, the image lies as the object does; nothing turns it silently."""
    arc = np.deg2rad(np.arange(0, 120, 2.0))
    model = replace(MODEL, angles=arc) if beam == "fan" else replace(PARALLEL, angles=arc)
    scan = replace(model, angles=arc + math.radians(start))
    matched, notes = match(replace(scan_of(scan), images=rasterise(OBJECT, 64, unit=LENGTH)), model)
    assert matched.geometry == model and matched.rotation == pytest.approx(math.radians(start), abs=1e-8)
    assert torch.equal(matched.sinograms, scan_of(scan).sinograms)
    assert f"turn them by {start:g} degrees counter-clockwise" in notes[0] and "true images were left out" in notes[1]
    whole = replace(model, angles=np.deg2rad(np.arange(0, 360, 2.0)))  # an image of all views, to look where the object is
    turned = scan_of(replace(whole, angles=np.asarray(whole.angles) + matched.rotation)).sinograms
    image = fbp(RayTransform(whole, strategy="matrix-free", dtype=torch.float64), turned)[0, 0].clamp(min=0.2) - 0.2
    x, y = whole.pixel_centres()
    found = complex(float((image.sum(1) * x).sum()), float((image.sum(0) * y).sum())) / float(image.sum())
    truth = rasterise(OBJECT, 64, unit=LENGTH, dtype=torch.float64)[0, 0].clamp(min=0.2) - 0.2
    right = complex(float((truth.sum(1) * x).sum()), float((truth.sum(0) * y).sum())) / float(truth.sum())
    assert abs(found * np.exp(1j * matched.rotation) - right) < 0.5  # pixels


def test_of_the_arcs_in_a_longer_one_the_first_is_taken() -> None:
    """Its angles were written with rounding, which must not decide where an image is cut from the scan."""
    model = replace(MODEL, angles=np.deg2rad(np.arange(30.0)))
    for start in (45.0, 12.0, 130.5):
        angles = np.round(np.deg2rad(np.arange(start, start + 50, 0.5)), 7)
        matched, notes = match(scan_of(replace(model, angles=angles)), model)
        assert math.degrees(matched.rotation) == pytest.approx(start, abs=1e-5)
        assert f"start {start:g} degrees after the model's" in notes[1]


def test_another_image_grid_is_the_models() -> None:
    finer = replace(MODEL, image_size=128, pixel_size=0.5)
    truth = rasterise(OBJECT, 128, unit=2 * LENGTH)
    matched, notes = match(replace(scan_of(finer), images=truth), MODEL)
    assert off(matched, MODEL) == 0 and matched.images is not None
    assert torch.allclose(matched.images, torch.nn.functional.avg_pool2d(truth, 2), atol=1e-6)
    assert notes[0] == "the image has the model's 64 x 64 pixels of 1, not the scan's 128 x 128 pixels of 0.5"
    assert notes[-1] == "the true images were averaged over the model's pixels"


def test_a_truth_that_does_not_hold_the_models_pixels_is_left_out() -> None:
    coarser = replace(MODEL, image_size=32, pixel_size=2.0)
    smaller = replace(MODEL, image_size=(128, 100), pixel_size=0.5)
    for scan in (coarser, smaller):
        matched, notes = match(replace(scan_of(scan), images=torch.zeros(1, 1, *scan.image_size)), MODEL)
        assert matched.images is None and notes[-1] == "the true images were left out: they do not hold the model's pixels"


def test_averaged_images_are_means_over_the_wider_pixels() -> None:
    """Wider by no whole factor: against small squares, ten of them along a pixel of the one grid and 23 along one of the other."""
    ours, theirs = replace(MODEL, image_size=(50, 40), pixel_size=1.0), replace(MODEL, image_size=(20, 16), pixel_size=2.3)
    images = torch.rand(2, 1, 50, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    squares = images.repeat_interleave(10, 2).repeat_interleave(10, 3)[:, :, 20:-20, 16:-16]
    found = averaged_images(images, ours, theirs)
    assert found is not None and torch.allclose(found, torch.nn.functional.avg_pool2d(squares, 23), rtol=0, atol=1e-6)


REMEDY = "; train a model for this scan with: bdgd train own-scan --geometry SCAN -o RUN"
REFUSED: list[tuple[str, Geometry, Geometry, list[str]]] = [
    (
        "beam",
        MODEL,
        PARALLEL,
        [
            "a fan beam with its source 200 from the axis, 60 views over 360 degrees, 100 detectors of 1.4 and 64 x 64 pixels",
            "the model is for a parallel beam, 30 views over 180 degrees, 93 detectors of 0.973222",
        ],
    ),
    ("views", MODEL[::2], MODEL, ["the scan has 30 views over an arc of 360 degrees and the model needs 60 views", "30 of these"]),
    ("arc", MODEL[:20], MODEL[:30], ["an arc of 120 degrees", "an arc of 180 degrees: 10 of these are not in the scan"]),
    (
        "everything",
        replace(MODEL[:7], source_to_axis=100, detector_spacing=5.0, image_size=80),
        replace(MODEL, image_size=100),
        [
            *("the source is 100 from the axis in the scan and 200 in the model", "80 x 80 pixels", "100 x 100 pixels"),
            *("the scan has 7 views", "the detectors are too wide: 100 detectors of "),
        ],
    ),
    ("apart", replace(MODEL, detector_offset=500.0), MODEL, ["the detectors do not overlap"]),
    ("field", replace(MODEL, image_size=100), MODEL, ["(100 wide) in the scan", "(64 wide) in the model"]),
]


@pytest.mark.parametrize(("name", "scan", "model", "words"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_cannot_be_matched_is_listed(name: str, scan: Geometry, model: Geometry, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        match(scan_of(scan), model)
    text = str(caught.value)
    assert text.startswith("the scan does not fit the model: ") and text.endswith(REMEDY) and "\n" not in text
    for word in words:
        assert word in text


def test_scans_without_a_geometry_are_refused() -> None:
    with pytest.raises(InputError, match="without a geometry"):
        match(Scans(torch.ones(1, 1, 3, 4), None), MODEL)


@pytest.mark.parametrize("name", ["solid_disc", "ta", "tb", "tc", "td"])
def test_the_downloaded_scan_becomes_the_compact_one(name: str, shared_data: Path) -> None:
    """560 detectors and half-degree views, one of them twice, against the same scan binned and thinned by other hands."""
    downloaded = read_scans(shared_data / "htc2022_mat" / f"htc2022_{name}_full.mat")
    compact = read_scans(shared_data / "htc2022" / f"{name}.npz")
    assert downloaded.sinograms.shape == (1, 1, 721, 560) and downloaded.unit == compact.unit == "mm"
    assert compact.geometry is not None
    matched, notes = match(downloaded, compact.geometry)
    assert torch.allclose(matched.sinograms, compact.sinograms, rtol=0, atol=2e-7 * float(compact.sinograms.max()))
    assert notes[1:] == [
        "360 of the scan's 721 views were taken, from 0 to 359 degrees",
        "2 neighbouring detectors were averaged into one, from 560 of 0.2 mm to 280 of 0.4 mm",
    ]


def test_the_downloaded_scan_has_the_attenuation_of_acrylic(shared_data: Path) -> None:
    """FBP of the `.mat`, as read, in 1/mm: the value of the compact file's reference, which was made by other means."""
    scans = read_scans(shared_data / "htc2022_mat" / "htc2022_solid_disc_full.mat")
    assert scans.geometry is not None
    coarse = replace(scans.geometry, image_size=128, pixel_size=4 * scans.geometry.pixel_size)
    image = fbp(RayTransform(coarse, strategy="matrix-free"), scans.sinograms)[0, 0]
    reference = np.load(shared_data / "htc2022" / "solid_disc.npz")["ref256"].astype(np.float64)
    middle = reference[96:160, 96:160].mean()
    assert float(image[48:80, 48:80].mean()) == pytest.approx(middle, rel=0.01)
