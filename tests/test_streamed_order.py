"""Sparsification and detection over a set: the exact curve and the AUROC of all pairs, in bounded memory."""

from __future__ import annotations

import pytest
import torch
from predictions import Gaussian, heavy_case, some_mask, streamed
from scipy import stats
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics import Detection, ErrorDetection, Sparsification, auroc, ause


def as_one_image(tensor: Tensor) -> Tensor:
    """All images beside each other, for the exact metrics over pooled pixels."""
    return tensor.transpose(0, 2).reshape(1, 1, -1, tensor.shape[3])


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


def test_equal_error_bars_give_no_order_so_the_error_stays_where_it_is() -> None:
    mean, std, truth = heavy_case()
    found = streamed(Sparsification(), (mean, torch.ones_like(std), truth)).result()
    rmse = float((truth - mean).double().square().mean().sqrt())
    assert found.by_std == pytest.approx([rmse] * 19, rel=1e-6)


def test_the_perfect_order_has_no_area_above_it() -> None:
    mean, _, truth = heavy_case()
    assert streamed(Sparsification(), (mean, (truth - mean).abs(), truth)).result().ause == pytest.approx(0, abs=1e-9)


def test_a_reconstruction_without_errors_has_none_to_order() -> None:
    mean, std, _ = heavy_case()
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
