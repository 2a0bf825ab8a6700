"""Streaming metrics against closed forms, other libraries, and the exact computation on all pixels at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics import (
    CalibrationError,
    Detection,
    ErrorDetection,
    ErrorQuantiles,
    Intervals,
    LogBins,
    PatchCovariance,
    PatchLikelihood,
    PixelScore,
    Sparsification,
    auroc,
    ause,
    coverage,
    draws_crps,
    gaussian_crps,
    gaussian_nll,
    nll,
    squared_z,
    student_t_crps,
    student_t_nll,
)

Case = tuple[Tensor, Tensor, Tensor]


class Gaussian:
    """A posterior as the metrics of one image see one."""

    def __init__(self, mean: Tensor, std: Tensor):
        self.mean, self.std = mean, std

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        half = NormalDist().inv_cdf(0.5 + level / 2) * self.std
        return self.mean - half, self.mean + half


def heavy_case(batch: int = 4, size: int = 60, seed: int = 0) -> Case:
    """Mean, std and truth as reconstructions have them: std over decades, errors with heavy tails, some pixels exact."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, 1, size, size)
    mean = torch.rand(shape, generator=generator)
    std = 10 ** (-4 + 2.5 * torch.rand(shape, generator=generator))
    mixed = std * 10 ** (0.5 * torch.randn(shape, generator=generator))
    truth = mean + mixed * torch.randn(shape, generator=generator)
    exact = torch.rand(shape, generator=generator) < 0.2
    return mean, std, mean.where(exact, truth)


def some_mask(shape: torch.Size | tuple[int, ...], seed: int = 9) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.3


def as_one_image(tensor: Tensor) -> Tensor:
    """All images beside each other, for the exact metrics over pooled pixels."""
    return tensor.transpose(0, 2).reshape(1, 1, -1, tensor.shape[3])


def streamed(metric: Any, case: Case, mask: Tensor | None = None, batches: tuple[int, ...] = (1, 3)) -> Any:
    """The metric after it has seen the images batch by batch."""
    masks = [None] * len(batches) if mask is None else mask.split(batches)
    for mean, std, truth, inside in zip(*(part.split(batches) for part in case), masks, strict=True):
        spread = Gaussian(mean, std).interval(metric.level) if isinstance(metric, Intervals) else std
        metric.add(mean, spread, truth, inside)
    return metric


# What all have in common -------------------------------------------------------------------------------------------------

METRICS: list[Callable[[], Any]] = [
    lambda: PixelScore(gaussian_nll),
    lambda: PixelScore(gaussian_crps),
    lambda: Intervals(0.9),
    CalibrationError,
    Sparsification,
    ErrorDetection,
]
NAMES = ["nll", "crps", "intervals", "calibration", "sparsification", "error detection"]


def numbers(result: Any) -> list[float]:
    """Every number of a result, in order."""
    if isinstance(result, int | float):
        return [float(result)]
    parts = result if isinstance(result, tuple) else tuple(vars(result).values())
    return [number for part in parts for number in numbers(part)]


@pytest.mark.parametrize("make", METRICS, ids=NAMES)
def test_batches_and_merging_do_not_change_a_result(make: Callable[[], Any]) -> None:
    case = heavy_case()
    mask = some_mask(case[0].shape)
    whole = streamed(make(), case, mask, batches=(4,)).result()
    assert numbers(streamed(make(), case, mask).result()) == pytest.approx(numbers(whole), rel=1e-12)
    first, second = (streamed(make(), tuple(t[part] for t in case), mask[part], (2,)) for part in (slice(0, 2), slice(2, 4)))  # type: ignore[arg-type]
    first.merge(second)
    assert numbers(first.result()) == pytest.approx(numbers(whole), rel=1e-12)


@pytest.mark.parametrize("make", METRICS, ids=NAMES)
def test_only_the_pixels_of_the_mask_count(make: Callable[[], Any]) -> None:
    mean, std, truth = heavy_case()
    mask = some_mask(mean.shape)
    mask[2] = False  # an image without a pixel in the mask is no error
    expected = streamed(make(), (mean, std, truth), mask).result()
    spoiled = (mean.where(mask, 3.0), std.where(mask, 1e-3), truth.where(mask, -2.0))
    assert numbers(streamed(make(), spoiled, mask).result()) == pytest.approx(numbers(expected), rel=1e-12)


@pytest.mark.parametrize("make", METRICS, ids=NAMES)
def test_no_pixel_gives_no_result_and_shapes_must_agree(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=r"no pixel has been added|one kind is missing"):
        make().result()
    mean, std, truth = heavy_case()
    with pytest.raises(InputError, match=r"must have one shape \(B, 1, H, W\), got"):
        streamed(make(), (mean, std, truth[:, :, :30].repeat(1, 1, 1, 1)))
    with pytest.raises(InputError, match="mask must be a boolean tensor"):
        streamed(make(), (mean, std, truth), torch.ones_like(mean))


# Likelihood --------------------------------------------------------------------------------------------------------------


def test_the_pixel_likelihood_is_the_one_per_image() -> None:
    mean, std, truth = heavy_case()
    found = streamed(PixelScore(gaussian_nll), (mean, std, truth)).result()
    exact = nll(Gaussian(mean, std), truth)
    assert found.per_image == pytest.approx(exact.tolist(), rel=1e-12)
    assert found.pooled == pytest.approx(float(exact.mean()), rel=1e-12) and found.pixels == mean.numel()


def test_a_least_std_keeps_an_exact_pixel_from_outweighing_all_others() -> None:
    zero = torch.zeros(1, 1, 1, 1)
    metric = PixelScore(gaussian_nll, least_std=1e-4)
    metric.add(zero, zero, zero)
    assert metric.result().pooled == pytest.approx(math.log(1e-4) + 0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("degrees", [2.5, 4.0, 30.0])
def test_student_t_is_that_of_scipy_with_the_std_as_its_standard_deviation(degrees: float) -> None:
    mean, std, truth = (tensor.double() for tensor in heavy_case(1, 8))
    scale = (std * math.sqrt((degrees - 2) / degrees)).numpy()
    expected = -stats.t.logpdf(truth.numpy(), degrees, mean.numpy(), scale)
    np.testing.assert_allclose(student_t_nll(degrees)(mean, std, truth).numpy(), expected, rtol=1e-10)
    with pytest.raises(InputError, match="above 2 degrees"):
        student_t_nll(2.0)


def correlated_draws(number: int, batch: int, height: int, width: int) -> Tensor:
    """Draws (S, B, 1, H, W) whose pixels vary together."""
    rough = torch.randn(number, batch, 1, height, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return 0.5 + 0.1 * (rough + rough.roll(1, -1) + rough.roll(1, -2))


@pytest.mark.parametrize("side", [1, 2, 4, 8])
@pytest.mark.parametrize("number", [1, 5, 200])
def test_the_patch_likelihood_is_that_of_torch_distributions(side: int, number: int) -> None:
    """Fewer draws than pixels and more, on an image whose sides no patch divides."""
    draws = correlated_draws(number, 2, 18, 27)
    aleatoric = 0.01 * (1 + torch.rand(2, 1, 18, 27, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    truth = 0.5 + 0.2 * torch.randn(2, 1, 18, 27, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean, moments, metric = draws.mean(0), PatchCovariance(side), PatchLikelihood(side)
    for draw in draws:
        moments.add(draw)
    metric.add(mean, moments.result(), aleatoric, truth)
    expected = []
    for b in range(2):
        for i in range(18 // side):
            for j in range(27 // side):
                where = (slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side))
                values = draws[:, b, 0][:, *where].flatten(1)
                cov = torch.cov(values.T).reshape(side**2, side**2) if number > 1 else torch.zeros(side**2, side**2)
                normal = torch.distributions.MultivariateNormal(values.mean(0), cov + torch.diag(aleatoric[b, 0][where].flatten()))
                expected.append(-float(normal.log_prob(truth[b, 0][where].flatten())) / side**2)
    found = metric.result()
    assert found.pooled == pytest.approx(float(np.mean(expected)), rel=1e-9) and found.pixels == len(expected)


def test_a_patch_counts_when_all_of_it_lies_in_the_mask() -> None:
    draws, mask = correlated_draws(10, 1, 8, 8), torch.ones(8, 8, dtype=torch.bool)
    mask[0, 0] = False  # takes one of the four patches of side 4 out
    moments, metric, alone = PatchCovariance(4), PatchLikelihood(4), PatchLikelihood(4)
    for draw in draws:
        moments.add(draw)
    aleatoric, covariance = torch.full_like(draws[0], 0.01), moments.result()
    metric.add(draws.mean(0), covariance, aleatoric, draws[0], mask)
    outside = torch.full_like(draws[0], 9.0).where(~mask, draws[0])
    alone.add(draws.mean(0), covariance, aleatoric, outside, mask)
    assert metric.result().pixels == 3 and alone.result() == metric.result()


def test_the_likelihood_of_a_draw_is_the_entropy_of_the_correlated_draws() -> None:
    """What the correlation is good for: errors that vary together are less of a surprise to draws that do."""
    draws = correlated_draws(400, 1, 64, 64)
    for side in (1, 2):
        moments, metric = PatchCovariance(side), PatchLikelihood(side)
        for draw in draws[1:]:
            moments.add(draw)
        metric.add(draws[1:].mean(0), moments.result(), torch.full_like(draws[0], 1e-4), draws[0])
        # Pixels are sums of three normals of std 0.1 and share one with each neighbour and across one diagonal.
        shared = torch.tensor([[3, 1, 1, 0], [1, 3, 1, 1], [1, 1, 3, 1], [0, 1, 1, 3]], dtype=torch.float64)[: side**2, : side**2]
        normal = torch.distributions.MultivariateNormal(torch.zeros(side**2).double(), 0.01 * shared + 1e-4 * torch.eye(side**2))
        assert metric.result().pooled == pytest.approx(float(normal.entropy()) / side**2, abs=0.02)


def test_what_a_patch_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match="patches of 8 x 8 pixels do not fit into images of 4 x 9"):
        PatchCovariance(8).add(torch.zeros(1, 1, 4, 9))
    with pytest.raises(InputError, match="singular"):
        PatchLikelihood(1).add(*[torch.zeros(1, 1, 1, 1)] * 4)
    with pytest.raises(InputError, match="no draw"):
        PatchCovariance(2).result()


# Intervals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_and_width_are_pooled_and_per_image(level: float) -> None:
    mean, std, truth = heavy_case()
    mask = some_mask(mean.shape)
    found, posterior = streamed(Intervals(level), (mean, std, truth), mask).result(), Gaussian(mean, std)
    lower, upper = posterior.interval(level)
    assert found.coverage_per_image == pytest.approx(coverage(posterior, truth, level, mask).tolist())
    assert found.coverage == pytest.approx(float(((lower <= truth) & (truth <= upper))[mask].double().mean()))
    assert found.width == pytest.approx(float((upper - lower)[mask].double().mean()))
    assert found.worst_coverage == min(found.coverage_per_image)


def test_the_interval_score_is_least_for_the_true_quantiles() -> None:
    mean, std, _ = heavy_case(1, 200)
    truth = mean + std * torch.randn(mean.shape, generator=torch.Generator().manual_seed(4))
    scores = [streamed(Intervals(0.9), (mean, c * std, truth), batches=(1,)).result().score for c in (0.8, 1.0, 1.25)]
    # In closed form 2 phi(z) / alpha * std per end, where [mean - z std, mean + z std] is the interval of level 1 - 2 alpha.
    expected = 2 * 2 * stats.norm.pdf(stats.norm.ppf(0.95)) / 0.1 * float(std.double().mean())
    assert scores[1] < scores[0] and scores[1] < scores[2] and scores[1] == pytest.approx(expected, rel=0.02)


def test_error_quantiles_are_those_of_all_pixels() -> None:
    mean, std, truth = heavy_case()
    metric, errors = streamed(ErrorQuantiles(), (mean, std, truth)), (truth - mean).abs().double().flatten()
    for part in (0.5, 0.68, 0.9, 0.95):
        assert metric.result(part) == pytest.approx(float(errors.quantile(part)), rel=5e-3)


# Calibration -------------------------------------------------------------------------------------------------------------


def test_uce_and_ence_in_closed_form() -> None:
    """Two sizes of error bar, one right, one half of what it should be."""
    std = torch.tensor([1.0, 1.0, 2.0, 2.0]).reshape(1, 1, 1, 4)
    truth = torch.tensor([1.0, -1.0, 4.0, -4.0]).reshape(1, 1, 1, 4)
    metric = CalibrationError(groups=2)
    metric.add(torch.zeros_like(std), std, truth)
    found = metric.result()
    assert found.pixels == (2, 2) and found.predicted == pytest.approx((1, 2)) and found.actual == pytest.approx((1, 4))
    assert found.uce == pytest.approx((0 + 12) / 2) and found.ence == pytest.approx((0 + 1) / 2)


def test_groups_are_those_of_the_sorted_pixels() -> None:
    mean, std, truth = heavy_case()
    found = streamed(CalibrationError(groups=10), (mean, std, truth)).result()
    order = std.flatten().argsort()
    squares, variance = ((truth - mean).double().flatten()[order] ** 2).chunk(10), (std.double().flatten()[order] ** 2).chunk(10)
    predicted, actual = (np.array([float(part.mean()) for part in parts]) for parts in (variance, squares))
    ence = np.mean(np.abs(np.sqrt(actual) - np.sqrt(predicted)) / np.sqrt(predicted))
    assert np.allclose(found.pixels, mean.numel() / 10, rtol=0.02)
    assert found.uce == pytest.approx(np.mean(np.abs(actual - predicted)), rel=0.02) and found.ence == pytest.approx(ence, rel=0.02)


def test_calibrated_error_bars_have_little_calibration_error_and_squared_z_one() -> None:
    mean, std, _ = heavy_case(1, 300)
    truth = mean + std * torch.randn(mean.shape, generator=torch.Generator().manual_seed(4))
    found = streamed(CalibrationError(), (mean, std, truth), batches=(1,)).result()
    twice = streamed(CalibrationError(), (mean, std / 2, truth), batches=(1,)).result()
    assert found.ence < 0.02 and twice.ence == pytest.approx(1, abs=0.03)
    z2 = streamed(PixelScore(squared_z), (mean.double(), std.double(), truth.double()), batches=(1,)).result().pooled
    assert z2 == pytest.approx(1, abs=4 * math.sqrt(2 / mean.numel()))


def test_constant_error_bars_are_one_group() -> None:
    mean, std, truth = heavy_case()
    found = streamed(CalibrationError(), (mean, torch.full_like(std, 0.01), truth)).result()
    assert found.pixels == (mean.numel(),)
    assert found.uce == pytest.approx(abs(float((truth - mean).double().square().mean()) - 1e-4))


# Order: sparsification and detection -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_streamed_sparsification_agrees_with_the_exact_one(seed: int) -> None:
    mean, std, truth = heavy_case(seed=seed)
    pooled = [as_one_image(tensor) for tensor in (mean, std, truth)]
    exact = float(ause(Gaussian(pooled[0], pooled[1]), pooled[2]))
    found = streamed(Sparsification(), (mean, std, truth)).result()
    assert exact > 0.05 and found.ause == pytest.approx(exact, abs=1e-3)
    errors = (truth - mean).abs().double().flatten().sort().values
    for removed, rmse in zip(found.removed, found.by_error, strict=True):
        assert rmse == pytest.approx(float(errors[: round(len(errors) * (1 - removed))].square().mean().sqrt()), rel=1e-3)


def test_sparsification_without_an_order_stays_where_it_is() -> None:
    mean, std, truth = heavy_case()
    found = streamed(Sparsification(), (mean, torch.ones_like(std), truth)).result()
    assert found.by_std == pytest.approx([found.by_std[0]] * 19)
    perfect = streamed(Sparsification(), (mean, (truth - mean).abs(), truth)).result()
    assert perfect.ause == pytest.approx(0, abs=1e-9)
    assert streamed(Sparsification(), (mean, std, mean)).result().ause == 0


def auroc_of_pairs(score: Tensor, mask: Tensor) -> float:
    """Every pair of a pixel inside and one outside."""
    inside, outside = score[mask].double(), score[~mask].double()
    return float(((inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside).double()).mean())


def test_auroc_counts_pairs_with_ties_half() -> None:
    score = torch.rand(3, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    score[1] = (4 * score[1]).round()  # many ties
    score[2] = 1.0
    mask = some_mask(score.shape)
    found = auroc(score, mask)
    assert found.shape == (3,) and float(found[2]) == 0.5
    for b in range(3):
        assert float(found[b]) == pytest.approx(auroc_of_pairs(score[b], mask[b]), rel=1e-12)
    assert auroc(mask.float(), mask).tolist() == [1, 1, 1] and auroc(-mask.float(), mask).tolist() == [0, 0, 0]
    statistic = stats.mannwhitneyu(score[1][mask[1]].numpy(), score[1][~mask[1]].numpy()).statistic
    assert float(found[1]) == pytest.approx(statistic / int(mask[1].sum()) / int((~mask[1]).sum()))


def test_auroc_needs_pixels_inside_and_outside() -> None:
    score = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="mask is empty"):
        auroc(score, torch.zeros(4, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="both need at least one"):
        auroc(score, torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="must be finite"):
        auroc(score / 0, score > 0.5)
    for wrong in (score[0, 0], score.numpy()):
        with pytest.raises(InputError, match="score must"):
            auroc(wrong, score > 0.5)  # type: ignore[arg-type]


def test_streamed_detection_is_the_auroc_of_the_pooled_pixels() -> None:
    _, std, _ = heavy_case()
    mask = some_mask(std.shape) | (std > 0.02)
    metric = Detection()
    for part, target in zip(std.split(2), mask.split(2), strict=True):
        metric.add(part, target)
    assert metric.result() == pytest.approx(float(auroc(as_one_image(std), as_one_image(mask))), abs=1e-4)


def test_the_worst_pixels_are_those_of_the_whole_set() -> None:
    mean, std, truth = heavy_case()
    error = (truth - mean).abs()
    largest = error >= error.flatten().sort().values[-round(0.05 * error.numel())]
    found = streamed(ErrorDetection(0.05), (mean, std, truth)).result()
    assert found == pytest.approx(float(auroc(as_one_image(std), as_one_image(largest))), abs=1e-3)
    with pytest.raises(InputError, match="worst must lie between 0 and 1"):
        ErrorDetection(5)


@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_order_holds_in_bounded_memory_also_where_the_std_is_almost_constant(spread: float) -> None:
    """A constant aleatoric variance that outweighs the rest leaves the order in the last digits of the std."""
    mean, std, truth = heavy_case(batch=24, size=64)
    std = (0.01 + spread * std.double()).expand_as(truth)
    error = (truth - mean).abs()
    largest = error >= error.flatten().sort().values[-round(0.05 * error.numel())]
    order, detection, errors = Sparsification(), Detection(), ErrorDetection(room=8000, groups=1000)
    for sums in (order._by_std, order._by_error, detection._ordered):
        sums.room, sums.most = 8000, 2000  # joined a dozen times
    for part in zip(mean.split(1), std.split(1), truth.split(1), largest.split(1), strict=True):
        order.add(*part[:3])
        errors.add(*part[:3])
        detection.add(part[1], part[3])
    held = sum(map(len, order._by_std._keys))
    assert held <= 8000 and len(errors._table) <= 1000
    pooled = [as_one_image(tensor) for tensor in (mean, std, truth, largest)]
    assert order.result().ause == pytest.approx(float(ause(Gaussian(pooled[0], pooled[1]), pooled[2])), abs=1e-3)
    expected = float(auroc(pooled[1], pooled[3]))
    assert detection.result() == pytest.approx(expected, abs=1e-3) and errors.result() == pytest.approx(expected, abs=1e-3)


def test_bins_hold_what_lies_outside_them_and_other_bins_do_not_merge() -> None:
    bins = LogBins(1e-3, 1e2, 10)
    assert bins.count == 50
    assert bins.index(torch.tensor([0.0, 1e-9, 1.05e-3, 1.3e-3, 1.05, 1e5])).tolist() == [0, 0, 0, 1, 30, 49]
    with pytest.raises(InputError, match="the same bins"):
        ErrorQuantiles(bins).merge(ErrorQuantiles())


def test_a_histogram_counts_finite_values_alone() -> None:
    mean, std, truth = heavy_case()
    std[1, 0, 3, 4] = math.nan
    with pytest.raises(InputError, match="must be finite, but 1 of"):
        streamed(Sparsification(), (mean, std, truth))


# CRPS --------------------------------------------------------------------------------------------------------------------


def crps_by_definition(distribution: Any, y: float) -> float:
    """The integral of (F(t) - [t >= y])^2."""
    below = integrate.quad(lambda t: distribution.cdf(t) ** 2, -np.inf, y)[0]
    return float(below + integrate.quad(lambda t: distribution.sf(t) ** 2, y, np.inf)[0])


POINTS = [(0.0, 1.0, 0.0), (0.3, 0.5, 1.4), (-1.0, 2.0, -4.0)]


@pytest.mark.parametrize(("mean", "std", "truth"), POINTS)
def test_gaussian_and_student_crps_are_the_integral(mean: float, std: float, truth: float) -> None:
    values = [torch.tensor(value, dtype=torch.float64) for value in (mean, std, truth)]
    assert float(gaussian_crps(*values)) == pytest.approx(crps_by_definition(stats.norm(mean, std), truth), rel=1e-6)
    for degrees in (3.0, 7.5):
        distribution = stats.t(degrees, mean, std * math.sqrt((degrees - 2) / degrees))
        assert float(student_t_crps(degrees)(*values)) == pytest.approx(crps_by_definition(distribution, truth), rel=1e-6)


def test_the_crps_of_a_certain_prediction_is_the_absolute_error() -> None:
    mean, truth = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0])
    assert gaussian_crps(mean, torch.zeros(2), truth).tolist() == pytest.approx([0.5, 0.0])
    assert draws_crps(mean[None], truth).tolist() == [0.5, 0.0]


def test_the_crps_of_draws_is_that_of_all_pairs_and_of_their_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    draws, truth = torch.randn(7, 2, 3, generator=generator), torch.randn(2, 3, generator=generator)
    pairs = (draws[:, None] - draws).abs().double().sum((0, 1)) / (7 * 6)
    expected = (draws - truth).abs().double().mean(0) - pairs / 2
    torch.testing.assert_close(draws_crps(draws, truth), expected, rtol=1e-6, atol=1e-6)
    few = draws_crps(torch.randn(4, 200_000, generator=generator), torch.full((200_000,), 0.7)).mean()
    zero = torch.zeros((), dtype=torch.float64)
    assert float(few) == pytest.approx(float(gaussian_crps(zero, zero + 1, zero + 0.7)), abs=0.005)
    with pytest.raises(InputError, match="stack them along a first axis"):
        draws_crps(draws, truth[0])
