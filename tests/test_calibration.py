"""Calibration: its guarantee by simulation, its thresholds against brute force, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from calibrated import DRAWS, small_scans
from refusals import refusal
from torch import Tensor
from toys import dense, small_model, small_transform, some_sinograms

import bdgd
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.inference import Miscoverage, Posterior, calibrating, reconstruct, sampling
from bdgd.inference.risk_control import LEVELS, Z_EDGES, ScoreHistogram, allowed_loss, stratified_thresholds, threshold_per_level
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import Calibration, Reconstructor, ScaleMixture
from bdgd.models.calibration import at_level


def test_a_calibration_does_not_depend_on_the_unit_of_the_images(calibration: Calibration) -> None:
    unit, scans = 2.0**-30, small_scans(80)
    model = bdgd.DeepGradientDescent(small_transform(), blocks=2, value_scale=unit)
    model.load_state_dict(small_model().state_dict())
    assert scans.images is not None
    scaled = replace(scans, sinograms=scans.sinograms * unit, images=scans.images * unit)
    found = bdgd.calibrate(model, scaled, draws=DRAWS, strata=3, generator=torch.Generator().manual_seed(0))
    assert found.levels == calibration.levels and found.z == calibration.z and len(found.std_edges) == 2
    assert found.std_edges == pytest.approx([edge * unit for edge in calibration.std_edges])


def test_images_without_an_object_are_refused() -> None:
    scans = small_scans(20)
    assert scans.images is not None
    with pytest.raises(InputError, match="no object to calibrate on"):
        bdgd.calibrate(small_model(), replace(scans, images=0 * scans.images), draws=1)


def errors_of_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(std, z) of pixels (count, 1, 8, 8): every image has a difficulty of its own, so its pixels are far from independent."""
    std = torch.exp(torch.randn(count, 1, 8, 8, generator=generator))
    difficulty = torch.exp(0.7 * torch.randn(count, 1, 1, 1, generator=generator))
    wrong = torch.where(std > 1, 3.0, 0.5)  # large error bars are three times too small, small ones twice too large
    return std, (difficulty * wrong * torch.randn(count, 1, 8, 8, generator=generator)).abs()


def histogram(std: Tensor, z: Tensor) -> ScoreHistogram:
    made = ScoreHistogram()
    for part_std, part_z in zip(std.split(7), z.split(7), strict=True):
        made.add(part_std, part_z, torch.ones_like(part_z, dtype=torch.bool))
    return made


def looked_up(std: Tensor, edges: Any, row: Any) -> Tensor:
    return torch.tensor(row, dtype=torch.float64)[torch.bucketize(std.double(), torch.tensor(edges, dtype=torch.float64))]


def test_the_threshold_is_the_smallest_that_risk_control_allows() -> None:
    g = torch.Generator().manual_seed(0)
    scores = torch.rand(30, 5, generator=g, dtype=torch.float64)
    held, thresholds = threshold_per_level(scores, (0.5, 0.8, 0.95, 0.99))
    assert held == (0.5, 0.8, 0.95)  # 0.99 needs at least 99 images
    for level, threshold in zip(held, thresholds, strict=True):

        def risk(q: float) -> float:
            return 30 / 31 * float((scores > q).double().mean()) + 1 / 31

        assert risk(threshold) <= 1 - level + 1e-12 < risk(threshold - 1e-9) + 1e-12


def test_the_guarantee_holds_over_many_calibrations() -> None:
    """E[miscoverage] <= 1 - level, with pixels that depend on each other within images and few images; and it is not far below."""
    g = torch.Generator().manual_seed(1)
    level, missed = 0.8, []
    for _ in range(150):
        std, z = errors_of_images(60, g)
        held, edges, table = stratified_thresholds(histogram(std[:30], z[:30]), histogram(std[30:], z[30:]), (level,), 4)
        assert held == (level,)
        std, z = errors_of_images(40, g)
        missed.append(float((z > looked_up(std, edges, table[0])).double().mean()))
    mean = torch.tensor(missed, dtype=torch.float64)
    error = float(mean.std()) / 150**0.5
    assert float(mean.mean()) <= 1 - level + 2 * error
    assert float(mean.mean()) >= 1 - level - 1 / 31 - 0.01 - 2 * error


def test_small_and_large_error_bars_are_both_right() -> None:
    g = torch.Generator().manual_seed(2)
    std, z = errors_of_images(1200, g)
    _, edges, table = stratified_thresholds(histogram(std[:600], z[:600]), histogram(std[600:], z[600:]), (0.5, 0.9), 6)
    std, z = errors_of_images(600, g)
    for level, row in zip((0.5, 0.9), table, strict=True):
        covered = z <= looked_up(std, edges, row)
        for part in (std < 0.35, (std > 0.35) & (std < 0.6), (std > 1.7) & (std < 2.5), std > 2.5):
            assert float(covered[part].double().mean()) == pytest.approx(level, abs=0.04)


def test_error_bars_that_are_far_too_small_hold_what_they_say_or_nothing() -> None:
    """Errors of a thousand stated standard deviations are larger than those of a hundred, and beyond all cells no level is held."""
    g = torch.Generator().manual_seed(6)
    std = torch.ones(400, 1, 8, 8)
    error = 10 ** (4 * torch.rand(std.shape, generator=g, dtype=torch.float64))
    z = ScaleMixture.gaussian(std).z(error)
    held, edges, table = stratified_thresholds(histogram(std[:200], z[:200]), histogram(std[200:], z[200:]), (0.5, 0.9), 4)
    new = 10 ** (4 * torch.rand(std.shape, generator=g, dtype=torch.float64))
    for level, row in zip(held, table, strict=True):
        half = ScaleMixture.gaussian(std).half_width(looked_up(std, edges, row))
        assert float((new <= half).double().mean()) == pytest.approx(level, abs=0.02)
    assert held == (0.5, 0.9)
    assert stratified_thresholds(histogram(std, 1e3 * z), histogram(std, 1e3 * z), (0.5, 0.9), 4)[0] == ()


def test_pixels_that_share_the_largest_std_leave_the_other_strata_alone() -> None:
    g = torch.Generator().manual_seed(7)
    std = torch.exp(torch.randn(50, 1, 20, 20, generator=g)).clamp(max=2.0)  # a quarter of the pixels has 2
    z = torch.where(std == 2.0, 4.0, 1.0) * torch.randn(std.shape, generator=g).abs()
    _, edges, table = stratified_thresholds(histogram(std, z), histogram(std, z), (0.9,), 8)
    assert len(edges) >= 5
    for part in (std < 0.5, std == 2.0):
        assert float((z <= looked_up(std, edges, table[0]))[part].double().mean()) == pytest.approx(0.9, abs=0.04)


def test_a_histogram_knows_what_the_pixels_know() -> None:
    std, z = errors_of_images(20, torch.Generator().manual_seed(3))
    inside = torch.rand(z.shape, generator=torch.Generator().manual_seed(4)) > 0.4
    made = ScoreHistogram()
    made.add(std, z, inside)
    for q in (300, 900, 1200):
        below = float(made.mean()[:, : q + 1].sum())  # cells up to the edge q
        shares = [float((image[mask] <= Z_EDGES[q]).double().mean()) for image, mask in zip(z.double(), inside, strict=True)]
        assert below == pytest.approx(sum(shares) / len(shares), abs=1e-9)


def test_an_image_without_object_has_no_loss() -> None:
    made = ScoreHistogram()
    made.add(torch.ones(2, 1, 3, 3), torch.ones(2, 1, 3, 3), torch.zeros(2, 1, 3, 3, dtype=torch.bool))
    assert made.images == 2 and float(made.mean().sum()) == 0.0


def test_few_images_hold_few_levels() -> None:
    assert allowed_loss(0.9, 8) < -1e-3 and allowed_loss(0.9, 9) == pytest.approx(0.0, abs=1e-12)
    scores = torch.rand(9, 2)
    assert threshold_per_level(scores, (0.9, 0.91)) == ((0.9,), (float(scores.max()),))


def test_levels_are_interpolated_and_rise(calibration: Calibration) -> None:
    std = torch.tensor([1e-5, 1e-2, 1.0])
    z = torch.stack([calibration.z_at(level, std) for level in torch.linspace(0.001, calibration.levels[-1], 300).tolist()])
    assert bool((z.diff(dim=0) >= 0).all()) and bool((z >= 0).all())
    assert at_level(0.25, (0.2, 0.3), ((1.0, 2.0), (2.0, 6.0))) == pytest.approx([1.5, 4.0])
    assert at_level(0.1, (0.2, 0.3), ((1.0, 2.0), (2.0, 6.0))) == pytest.approx([0.5, 1.0])
    with pytest.raises(InputError, match=r"holds up to 0\.3, got level 0\.4"):
        at_level(0.4, (0.2, 0.3), ((1.0,), (2.0,)))


def test_calibrated_intervals_cover_new_images(calibration: Calibration) -> None:
    model, scans = small_model().with_calibration(calibration), small_scans(80, seed=1)
    assert scans.images is not None
    for level in (0.5, 0.9):
        misses, raw = Miscoverage(level), Miscoverage(level, calibrated=False)
        posterior = reconstruct(model, scans.sinograms, DRAWS)
        for counted in (misses, raw):
            counted.add(posterior, scans.images)
        assert 1 - float(misses.per_image().mean()) == pytest.approx(level, abs=0.08)
        assert abs(1 - float(raw.per_image().mean()) - level) > 0.2  # an untrained model's own intervals mean nothing
        lower, upper = posterior.interval(level)
        assert bool((lower >= 0).all()) and bool((lower <= upper).all())


def test_what_it_does_not_hold_for_is_refused(calibration: Calibration) -> None:
    model = small_model().with_calibration(calibration)
    y = some_sinograms(model.A)
    cases = [
        (reconstruct(model, y, DRAWS + 1), f"holds for {DRAWS} draws of weights, the posterior has {DRAWS + 1}"),
        (reconstruct(model, y, DRAWS, draw="pixels"), "of pixels"),
        (reconstruct(model, y, DRAWS, blocks=1), "not for its first blocks"),
    ]
    for posterior, message in cases:
        assert posterior.calibrated
        with pytest.raises(InputError, match=message):
            posterior.interval(0.9)
        posterior.interval(0.9, calibrated=False)
        with pytest.raises(InputError, match=message):
            posterior.region(torch.ones(16, 16, dtype=torch.bool))
    with pytest.raises(InputError, match="not calibrated"):
        reconstruct(small_model(), y, DRAWS).interval(0.9, calibrated=True)
    with pytest.raises(InputError, match="holds up to"):
        reconstruct(model, y, DRAWS).interval(0.999)
    with pytest.raises(InputError, match="other weights"):
        small_model("full_covariance").with_calibration(calibration)
    calibration.require_noise(GaussianNoise(0.01).to_dict())
    calibration.require_noise(None)
    with pytest.raises(InputError, match="holds for the noise"):
        calibration.require_noise(GaussianNoise(0.02).to_dict())


def test_scans_that_cannot_calibrate_are_refused() -> None:
    model, scans = small_model(), small_scans(20)
    for bad, message in (
        (replace(scans, images=None), "true images"),
        (scans[:5], "at least 20 scans, got 5"),
        (
            simulate(small_transform(views=6), random_ellipses(20, 16, generator=torch.Generator()), None, generator=torch.Generator()),
            "geometry",
        ),
    ):
        with pytest.raises(InputError, match=message):
            bdgd.calibrate(model, bad, draws=2)


def test_levels_that_the_scans_cannot_hold_are_refused_where_no_lower_one_is_asked_for() -> None:
    model, scans = small_model(), small_scans(22)
    for levels, message in (((0.95,), "needs at least 38 scans, got 22"), ((0.92,), "needs at least 24 scans"), ((), "at least one level")):
        with pytest.raises(InputError, match=message):
            bdgd.calibrate(model, scans, levels=levels, draws=1)
    assert bdgd.calibrate(model, scans, levels=(0.95, 0.9), draws=1).levels == (0.9,)


@pytest.mark.parametrize("name", ["point", "primal_dual"])
def test_models_without_randomness_are_calibrated_for_their_one_draw(name: str) -> None:
    model, scans = small_model(name), small_scans(24)
    made = model.with_calibration(bdgd.calibrate(model, scans, draws=50))
    assert made.calibration is not None and made.calibration.draws == 1
    lower, upper = reconstruct(made, scans.sinograms[:2], 7).interval(0.8)
    assert bool((upper > lower).all())


def test_an_operator_without_geometry_will_do() -> None:
    """The calibration is that of the ray transform with the same matrix."""
    A, scans = small_transform(), small_scans(20)
    bare, std = small_model("primal_dual", A=dense(A)), torch.logspace(-4, 0, 9)
    found = bdgd.calibrate(bare, replace(scans, geometry=None), draws=2)
    expected = bdgd.calibrate(small_model("primal_dual", A=A), scans, draws=2)
    torch.testing.assert_close(found.z_at(0.8, std), expected.z_at(0.8, std), rtol=1e-3, atol=0)
    assert bare.with_calibration(found).calibration == found


def test_the_generator_decides() -> None:
    made = [bdgd.calibrate(small_model(), small_scans(20), draws=2, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert made[0].images == 10 and made[0].levels[-1] == max(level for level in LEVELS if allowed_loss(level, 10) >= -1e-12)


def test_every_scan_has_draws_of_its_own_on_every_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that depend on the batch would make a calibration depend on the device; shared ones would cost the guarantee."""
    made: list[Posterior] = []

    def watched(*given: Any, **options: Any) -> Posterior:
        made.append(reconstruct(*given, **options))
        return made[-1]

    monkeypatch.setattr(calibrating, "reconstruct_and_keep", watched)
    bdgd.calibrate(small_model().to(device), small_scans(21), draws=2)
    expected = [seed_from(keyed_generator(0, "calibrate", "shape", n)) for n in range(11)]
    expected += [seed_from(keyed_generator(0, "calibrate", "guarantee", n)) for n in range(10)]
    assert [posterior.seed for posterior in made] == expected and len(set(expected)) == 21
    assert all(len(posterior.mean) == 1 for posterior in made)


def test_a_calibration_is_for_one_scale_of_values_and_of_the_gradient() -> None:
    calibration = bdgd.calibrate(small_model(), small_scans(20), draws=1)
    for argument in ({"value_scale": 20.0}, {"gradient_scale": 1000.0}):
        other = bdgd.DeepGradientDescent(small_transform(), blocks=2, **argument)
        other.load_state_dict(small_model().state_dict())
        with refusal("the calibration was made for a model with"):
            other.with_calibration(calibration)
    old = replace(calibration, arguments=None)  # as in a file from before they were kept
    assert small_model().with_calibration(old).calibration == old


@pytest.mark.parametrize(("wrong", "message"), [({"strata": 0}, "strata must be"), ({"false_alarms": 0.7}, "false_alarms must lie")])
def test_arguments_are_refused_before_any_work(wrong: dict[str, Any], message: str) -> None:
    done: list[int] = []
    with refusal(message):
        bdgd.calibrate(small_model(), small_scans(20), draws=DRAWS, report=done.append, **wrong)
    assert done == []


def test_calibrating_needs_scans() -> None:
    with refusal("calibrating needs Scans, images with their sinograms, got Tensor; make them with bdgd.simulate"):
        bdgd.calibrate(small_model(), small_scans(20).sinograms)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [bdgd.DeepGradientDescent(small_transform(), 1, "point"), bdgd.LearnedPrimalDual(small_transform(), 1)])
def test_a_model_without_a_noise_level_is_refused(model: Reconstructor) -> None:
    """Its calibration would have no level and tables of NaN, which no file can be read with."""
    with pytest.raises(InputError, match="calibrating needs a trained model, this one has no noise level; train it first"):
        bdgd.calibrate(model, small_scans(20), draws=2)


def test_draws_are_made_once_for_pixels_and_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    made, once = [], sampling._draws
    monkeypatch.setattr(sampling, "_draws", lambda *arguments: made.append(1) or once(*arguments))
    bdgd.calibrate(small_model(), small_scans(20), draws=2)
    assert len(made) == 20
