"""The alarm: its witnesses against closed forms, its p-values and false alarms by simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from toys import dense, small_model, small_transform

import bdgd
from bdgd.checks import InputError
from bdgd.data import Ellipses, GaussianNoise, Mismatch, PoissonNoise, ellipse_sinogram, random_ellipses, simulate
from bdgd.data.axis import centre_of_mass_offset
from bdgd.inference.alarm import ordinary_reference, p_values, surprises_of
from bdgd.inference.posterior import Posterior
from bdgd.inference.residual import noise_std, residual
from bdgd.inference.witnesses import SHARES, Witnesses, axis_shift, fine_detail, residual_noise, seen_part, witnesses_of
from bdgd.models import Reconstructor
from bdgd.models.calibration import AlarmReference
from bdgd.operators import FanBeam, ParallelBeam, RayTransform


def exact_posterior(truth: Tensor) -> Posterior:
    return Posterior(truth, torch.zeros_like(truth), torch.full_like(truth, 1e-4), 1, 0, lambda: iter([truth]))


def test_the_misfit_of_the_truth_is_chi_square() -> None:
    A = small_transform(views=8)
    g = torch.Generator().manual_seed(0)
    scans = simulate(A, random_ellipses(300, 16, generator=g), GaussianNoise(0.05), generator=g)
    assert scans.images is not None
    measured = witnesses_of(small_model(A=A), scans.sinograms, exact_posterior(scans.images), scans.noise)
    count = scans.sinograms[0].numel()
    misfit = measured["misfit"] * count
    assert stats.kstest(misfit.numpy(), stats.chi2(count).cdf).pvalue > 0.01
    assert float(measured["structure"].mean()) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("noise", [GaussianNoise(0.03), PoissonNoise(1e4, 0.05)])
def test_the_noise_is_as_large_as_simulated(noise: GaussianNoise | PoissonNoise) -> None:
    clean = 2 + 10 * torch.rand(1, 1, 4, 5, generator=torch.Generator().manual_seed(1)).expand(4000, 1, 4, 5)
    g = torch.Generator().manual_seed(0)
    spread = noise(clean.contiguous(), generator=g).std(0)
    std = noise_std(noise, clean[:1])
    assert std is not None
    torch.testing.assert_close(std.expand(1, 1, 4, 5)[0], spread, rtol=0.06, atol=0)


class OwnNoise:
    """A user's noise, 0.1 in every ray, that says of itself what it is given."""

    def __init__(self, values: dict[str, Any]):
        self.values = values

    def __call__(self, clean: Tensor, *, generator: torch.Generator) -> Tensor:
        return clean + 0.1 * torch.randn(clean.shape, generator=generator)

    def to_dict(self) -> dict[str, Any]:
        return self.values


@pytest.mark.parametrize("values", [{"kind": "flat", "sigma": 0.1}, {"sigma": 0.1}, {"kind": "gaussian", "sigma": 0.1}], ids=str)
def test_a_noise_whose_law_is_not_known_is_as_good_as_none(values: dict[str, Any]) -> None:
    """Calibration, alarm and residual are those of scans whose noise nobody stated; the calibration remembers whose noise it was."""
    model, g = small_model(blocks=1), torch.Generator().manual_seed(0)
    scans = simulate(model.A, random_ellipses(44, 16, generator=g), OwnNoise(values), generator=g)
    assert scans.images is not None and noise_std(scans.noise, scans.sinograms) is None
    own, none = (bdgd.calibrate(model, each[:40], draws=2, false_alarms=0.1) for each in (scans, replace(scans, noise=None)))
    assert own.noise == values and replace(own, noise=None) == none
    y = torch.cat((scans.sinograms[40:], 50 * torch.rand(2, *model.A.range_shape, generator=g)))  # the last two are no scans at all
    posterior = bdgd.reconstruct(model, y, 2)
    told, untold = (bdgd.alarm(model.with_calibration(each), y, posterior) for each in (own, none))
    assert told.light == untold.light and told.light[-2:] == ("red", "red") and set(told.values) == set(SHARES)
    one = scans[:1]
    assert one.images is not None and residual(model.A, one.images, one.sinograms, one.noise).estimated


def test_a_noise_of_ones_own_with_a_known_law_is_taken_at_its_word() -> None:
    y = torch.rand(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    for noise in (GaussianNoise(0.03), PoissonNoise(1e4, 0.05)):
        own, known = noise_std(OwnNoise(noise.to_dict()), y), noise_std(noise, y)
        assert own is not None and known is not None and torch.equal(own, known)


def test_a_noise_that_nobody_stated_is_estimated() -> None:
    g = torch.Generator().manual_seed(0)
    bumps = torch.zeros(3, 1, 40, 60)
    bumps[..., 20:40] = 5.0  # edges of what the image does not explain
    residual = bumps + torch.tensor([0.1, 0.5, 2.0])[:, None, None, None] * torch.randn(3, 1, 40, 60, generator=g)
    assert residual_noise(residual).flatten().tolist() == pytest.approx([0.1, 0.5, 2.0], rel=0.12)


def test_what_is_seen_is_the_projection_off_the_null_space() -> None:
    A = small_transform(size=8, views=4)
    matrix = dense(A).matrix.double()
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    projector = torch.linalg.pinv(matrix, rtol=1e-5) @ matrix
    seen = seen_part(A, x, steps=200)
    torch.testing.assert_close(seen.double().flatten(1), x.double().flatten(1) @ projector.T, rtol=0, atol=2e-3)
    hidden = (torch.eye(64, dtype=torch.float64) - projector) @ x[0].double().flatten()
    assert float(hidden.norm()) > 0.1  # four views of 8 x 8 pixels do leave something out
    torch.testing.assert_close(seen_part(A, hidden.float().reshape(1, 1, 8, 8)), torch.zeros(1, 1, 8, 8), rtol=0, atol=1e-4)


def test_detail_sees_strokes_and_not_straight_edges() -> None:
    x = torch.zeros(2, 1, 32, 32)
    x[0, :, 16:] = 1.0
    x[1, :, 15:17] = 0.02  # a faint line, two pixels wide
    fine = fine_detail(x)
    assert float(fine[0].max()) == 0.0
    assert float(fine[1, 0, 15].min()) == pytest.approx(0.02 / 0.03, rel=1e-4)


def ordinary(count: int, seed: int) -> Witnesses:
    g = torch.Generator().manual_seed(seed)
    shared = torch.randn(count, 1, generator=g)
    made = Witnesses()
    made.add(dict(zip(SHARES, torch.exp(shared + torch.randn(count, len(SHARES), generator=g)).double().T, strict=True)))
    return made


def test_surprise_is_minus_log_of_the_share_that_shows_more() -> None:
    usual = ordinary(4000, 0)
    reference = ordinary_reference(usual, ordinary(200, 1), 0.05)
    surprise = surprises_of(usual.values(), reference)
    for share in (0.7, 0.3, 0.1, 0.03):  # by the quantiles, and by the tail
        assert float((surprise["uncertainty"] >= -torch.tensor(share).log()).double().mean()) == pytest.approx(share, abs=0.012)
    rising = dict.fromkeys(SHARES, torch.logspace(-3, 3, 100, dtype=torch.float64))
    assert all(bool((surprise.diff() >= -1e-12).all()) for surprise in surprises_of(rising, reference).values())


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Over many calibrations with few images: P(p <= 0.1) <= 0.1 for a new ordinary image, and not far below."""
    from bdgd.inference.alarm import _combined

    rang = []
    for trial in range(200):
        reference = ordinary_reference(ordinary(40, 3 * trial), ordinary(59, 3 * trial + 1), 0.1)
        scores = _combined(surprises_of(ordinary(30, 3 * trial + 2).values(), reference), reference)
        rang.append(float((p_values(scores, reference.scores) <= 0.1).double().mean()))
    mean = torch.tensor(rang, dtype=torch.float64)
    assert float(mean.mean()) == pytest.approx(0.1, abs=3 * float(mean.std()) / 200**0.5)


def test_the_least_p_value_counts_the_image_itself() -> None:
    p = p_values(torch.tensor([9.0, 1.5, 0.0], dtype=torch.float64), tuple(float(score) for score in range(1, 20)))
    assert p.tolist() == [12 / 20, 19 / 20, 1.0] and p_values(torch.tensor([99.0]).double(), (1.0,) * 19).tolist() == [0.05]


def test_the_light() -> None:
    model = small_model()
    g = torch.Generator().manual_seed(0)
    scans = simulate(model.A, random_ellipses(60, 16, generator=g), GaussianNoise(0.01), generator=g)
    calibrated = model.with_calibration(bdgd.calibrate(model, scans[:40], draws=2, false_alarms=0.1))
    y = torch.cat((scans.sinograms[40:], 50 * torch.rand(2, *model.A.range_shape, generator=g)))  # the last two are no scans at all
    posterior = bdgd.reconstruct(calibrated, y, 2)
    alarm = bdgd.alarm(calibrated, y, posterior)
    assert alarm.light[-2:] == ("red", "red") and alarm.raised.tolist()[-2:] == [True, True]
    assert sum(light == "red" for light in alarm.light[:20]) <= 8
    for light, p in zip(alarm.light, alarm.p.tolist(), strict=True):
        assert light == ("red" if p <= 0.1 else "amber" if p <= 0.2 else "green")
    assert alarm.reason(20) in SHARES and set(alarm.values) == set(SHARES)
    with pytest.raises(InputError, match="has none or too few"):
        bdgd.alarm(model, y, posterior)
    with pytest.raises(InputError, match="holds for 2 draws"):
        bdgd.alarm(calibrated, y, bdgd.reconstruct(calibrated, y, 3))
    with pytest.raises(InputError, match="each sinogram with its posterior"):
        bdgd.alarm(calibrated, y[:1], posterior)
    with pytest.raises(InputError, match="not with a rest added"):
        bdgd.alarm(calibrated, y, bdgd.explain_rest(calibrated, y, posterior))


@pytest.mark.parametrize(("images", "rate", "enough"), [(18, 0.05, False), (19, 0.05, True), (98, 0.01, False), (99, 0.01, True)])
def test_an_alarm_that_could_never_be_red_is_none(images: int, rate: float, enough: bool) -> None:
    assert (ordinary_reference(ordinary(40, 0), ordinary(images, 1), rate) is not None) == enough


def test_shares_are_a_budget() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    with pytest.raises(InputError, match="false_alarms"):
        ordinary_reference(ordinary(20, 0), ordinary(20, 1), 0.7)


# --- the axis ------------------------------------------------------------------------------------------------------------

OLD_SHARES = {"misfit": 0.05, "structure": 0.05, "uncertainty": 0.15, "invisible": 0.15, "detail": 0.6}


@pytest.mark.parametrize("geometry", [ParallelBeam.sparse(views=30), ParallelBeam.limited(degrees=120)], ids=["sparse", "limited"])
@pytest.mark.parametrize("offset", [-6.3, 0.0, 0.25])
def test_the_centre_of_mass_tells_the_axis(geometry: ParallelBeam, offset: float) -> None:
    """Exact line integrals of ellipses, two images whose objects lie apart, in units of which a detector is 0.98."""
    objects = Ellipses.from_rows([(1.0, 20.0, 9.0, 13.0, -8.0, 0.4), (0.5, 14.0, 22.0, -20.0, 15.0, 1.0)])
    both = Ellipses(objects.value.T, *(part.transpose(0, 1) for part in (objects.half_axes, objects.centre, objects.rotation)))
    y = ellipse_sinogram(both, replace(geometry, detector_offset=offset * geometry.detector_spacing), unit=1)
    assert (centre_of_mass_offset(y, geometry) / geometry.detector_spacing).tolist() == pytest.approx([offset, offset], abs=0.02)
    shift = axis_shift(RayTransform(geometry, strategy="matrix-free"), y + 3.0)  # air that reads above zero
    assert shift is not None and shift.tolist() == pytest.approx([abs(offset)] * 2, abs=0.02)


def test_views_that_were_lost_have_no_say_and_an_empty_scan_has_no_axis() -> None:
    geometry = ParallelBeam.sparse(image_size=64, views=30)
    y = ellipse_sinogram(Ellipses.from_rows([(1.0, 15.0, 9.0, 9.0, -5.0, 0.4)]), replace(geometry, detector_offset=0.5), unit=1)
    y[:, :, [3, 11]] = 0.0
    assert float(centre_of_mass_offset(y, geometry)) == pytest.approx(0.5, abs=0.02)
    assert float(centre_of_mass_offset(0 * y, geometry)) == 0.0


@pytest.mark.parametrize("geometry", [ParallelBeam.sparse(views=30), ParallelBeam.limited(degrees=120)], ids=["sparse", "limited"])
def test_noise_moves_the_axis_by_two_hundredths_of_a_detector(geometry: ParallelBeam) -> None:
    A, g = RayTransform(geometry, strategy="matrix-free"), torch.Generator().manual_seed(0)
    scans = simulate(A, random_ellipses(30, 128, generator=g), GaussianNoise(0.01), generator=g)
    shift = axis_shift(A, scans.sinograms)
    assert shift is not None and float(shift.square().mean()) ** 0.5 == pytest.approx(0.02, abs=0.007)


def calibrated_on(model: Reconstructor, count: int, seed: int) -> tuple[Reconstructor, Tensor]:
    """The model, calibrated on small scans, and images of the same kind that it has not seen."""
    g = torch.Generator().manual_seed(seed)
    images = random_ellipses(count + 20, 16, generator=g)
    scans = simulate(model.A, images[:count], GaussianNoise(0.01), generator=g)
    return model.with_calibration(bdgd.calibrate(model, scans, draws=2, false_alarms=0.1)), images[count:]


def reference_of(model: Reconstructor) -> AlarmReference:
    assert model.calibration is not None and model.calibration.alarm is not None
    return model.calibration.alarm


def with_reference(model: Reconstructor, reference: AlarmReference) -> Reconstructor:
    assert model.calibration is not None
    return model.with_calibration(replace(model.calibration, alarm=reference))


def kept(reference: AlarmReference, shares: dict[str, float]) -> AlarmReference:
    """The reference with these witnesses and shares alone."""
    columns = [reference.names.index(name) for name in shares]
    quantiles, tails = ([row[j] for j in columns] for row in (reference.quantiles, reference.tails))
    return replace(reference, names=tuple(shares), shares=tuple(shares.values()), quantiles=tuple(quantiles), tails=tuple(tails))


def test_an_axis_that_is_half_a_detector_off_rings() -> None:
    model, images = calibrated_on(small_model(A=small_transform(views=12)), 80, 0)
    assert reference_of(model).names == tuple(SHARES) and reference_of(model).shares == pytest.approx(tuple(SHARES.values()))
    g = torch.Generator().manual_seed(1)
    wrong = simulate(model.A, images, GaussianNoise(0.01), generator=g, mismatch=Mismatch(axis_shift=(0.5, 0.5)))
    posterior = bdgd.reconstruct(model, wrong.sinograms, 2)
    alarm = bdgd.alarm(model, wrong.sinograms, posterior)
    assert float(alarm.values["axis"].median()) == pytest.approx(0.5, abs=0.05)
    assert int(alarm.raised.sum()) >= 19 and sum(alarm.reason(image) == "axis" for image in range(20)) >= 19
    others = with_reference(model, kept(reference_of(model), OLD_SHARES))
    assert int(bdgd.alarm(others, wrong.sinograms, posterior).raised.sum()) < 10  # the network does not notice


@pytest.mark.parametrize(
    "geometry",
    [
        FanBeam(image_size=16, angles=np.arange(12) * np.pi / 6, detectors=36, source_to_axis=40.0, source_to_detector=60.0),
        ParallelBeam.limited(image_size=16, degrees=50),
        ParallelBeam.sparse(image_size=16, views=2),
        None,
    ],
    ids=["fan", "short arc", "two views", "no geometry"],
)
def test_where_the_scan_does_not_show_its_axis_the_others_have_the_whole_budget(geometry: FanBeam | ParallelBeam | None) -> None:
    model = small_model(blocks=1, A=RayTransform(geometry) if geometry else dense(small_transform()))
    model.initial = lambda A, y: 0.05 * A.T(y)  # a bare operator has no filtered back-projection
    model, _ = calibrated_on(model, 20, 0)
    reference = reference_of(model)
    assert reference.names == tuple(OLD_SHARES) and sum(reference.shares) == pytest.approx(1.0)
    assert reference.shares == pytest.approx([SHARES[name] / 0.95 for name in OLD_SHARES])


def test_a_witness_that_cannot_be_measured_is_not_surprised() -> None:
    """A calibration with an axis, for a model whose operator has since lost its geometry."""
    model, images = calibrated_on(small_model(A=small_transform(views=12)), 20, 0)
    y = model.A(images)
    blind = small_model(A=dense(small_transform(views=12))).with_calibration(model.calibration)
    blind.initial = lambda A, y: 0.05 * A.T(y)
    alarm = bdgd.alarm(blind, y, bdgd.reconstruct(blind, y, 2))
    assert alarm.surprises["axis"].tolist() == [0.0] * 20 and "axis" not in alarm.values
    assert set(alarm.surprises) == set(SHARES) and alarm.reason() in SHARES


def scores_before(values: dict[str, Tensor], reference: AlarmReference) -> np.ndarray:
    """(B,) the combined score as it was with five witnesses: log-quantiles to 90 %, an exponential tail beyond, log of the share added."""
    columns = []
    for name, row, tail in zip(OLD_SHARES, reference.quantiles, reference.tails, strict=True):
        v = np.log(values[name].numpy())
        body = -np.log(1 - 0.9 * np.interp(v, row, np.linspace(0, 1, len(row))))
        columns.append(np.where(v > row[-1], np.log(10) + (v - row[-1]) / tail, body) + np.log(OLD_SHARES[name]))
    return np.max(columns, 0)


def test_a_calibration_of_five_witnesses_gives_the_lights_that_it_gave() -> None:
    model, images = calibrated_on(small_model(A=small_transform(views=12)), 60, 0)
    five = kept(reference_of(model), OLD_SHARES)
    old = with_reference(model, replace(five, scores=tuple(np.linspace(0, 3, 39).tolist())))
    g = torch.Generator().manual_seed(2)
    y = simulate(model.A, images, GaussianNoise(0.01), generator=g, mismatch=Mismatch(axis_shift=0.5)).sinograms
    posterior = bdgd.reconstruct(old, y, 2)
    alarm = bdgd.alarm(old, y, posterior)
    scores = scores_before(witnesses_of(old, y, posterior, GaussianNoise(0.01)), five)
    expected = [(1 + sum(score >= own for score in np.linspace(0, 3, 39))) / 40 for own in scores]
    assert alarm.p.tolist() == pytest.approx(expected) and len(set(expected)) > 3
    assert tuple(alarm.values) == tuple(alarm.surprises) == tuple(OLD_SHARES) and alarm.shares == OLD_SHARES


@pytest.mark.parametrize(("name", "shares"), [("sparse30-mfvi", SHARES), ("htc60views-mfvi", OLD_SHARES)])
def test_shipped_calibrations_keep_their_names_and_shares(name: str, shares: dict[str, float]) -> None:
    reference = reference_of(bdgd.load(name))
    assert dict(zip(reference.names, reference.shares, strict=True)) == shares
