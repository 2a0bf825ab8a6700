"""The scale head: it finds scales that are known, changes nothing but itself, and travels with the model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import small_model, small_transform, some_sinograms

import bdgd
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Scans, random_ellipses, simulate
from bdgd.inference import reconstruct
from bdgd.models import DeepGradientDescent, ScaleHead, load, save
from bdgd.models.scale_head import FLOOR, steps
from bdgd.training import Schedule, train_greedily
from bdgd.training.scale import Residuals, fit_scale_head, residuals_of, score_scale_head


def small_scans(count: int = 12, seed: int = 0) -> Scans:
    g = torch.Generator().manual_seed(seed)
    return simulate(small_transform(), random_ellipses(count, 16, generator=g), GaussianNoise(0.01), generator=g)


def heavy_tailed(count: int, seed: int) -> tuple[Residuals, torch.Tensor]:
    """Errors of Student-t with 4 degrees of freedom, whose scale is a known function of the clues, and their exact NLL per pixel."""
    g = torch.Generator().manual_seed(seed)
    clues = torch.randn(count, 3, 24, 24, generator=g)
    log_scale = -6 + 1.2 * clues[:, :1] + 0.8 * clues[:, 1:2].abs()  # the third channel says nothing
    normal, chi = torch.randn(count, 1, 24, 24, generator=g), torch.randn(4, count, 1, 24, 24, generator=g).square().sum(0)
    error = log_scale.exp() * normal * (4 / chi).sqrt()
    exact = -torch.distributions.StudentT(4.0, 0.0, log_scale.exp()).log_prob(error)
    return Residuals(clues, error, torch.zeros_like(error), torch.ones_like(error)), exact


def test_a_known_scale_is_found() -> None:
    train, _ = heavy_tailed(200, 0)
    test, exact = heavy_tailed(50, 1)
    head = fit_scale_head(train, Schedule(epochs=12, batch=10, learning_rate=5e-3), width=12, seed=3)
    record = score_scale_head(head, test)
    assert record["validation_nll_all"] < float(exact.mean()) + 0.1  # nats; the entropy is the best that any head can reach
    assert record["validation_nll_all"] > float(exact.mean()) - 0.05  # and nothing is better than the truth
    assert record["constant_nll_all"] > float(exact.mean()) + 1.0
    with torch.no_grad():
        z = head(test.clues).z(test.error)
    for level, reach in ((0.5, 0.6745), (0.9, 1.6449), (0.95, 1.96)):
        assert float((z <= reach).double().mean()) == pytest.approx(level, abs=0.02)


def test_the_constant_it_is_compared_with_is_the_best_gaussian() -> None:
    residuals, _ = heavy_tailed(5, 2)
    record = score_scale_head(ScaleHead(3), residuals)
    sigma = residuals.error.square().mean().sqrt()
    nll = -torch.distributions.Normal(0.0, sigma).log_prob(residuals.error).mean()
    assert record["constant_nll_all"] == pytest.approx(float(nll), rel=1e-5)


def test_the_scale_has_a_floor_and_strange_clues_a_limit() -> None:
    head = ScaleHead(4)
    with torch.no_grad():
        head.last.weight.normal_(generator=torch.Generator().manual_seed(0))
        for clues in (torch.full((1, 4, 9, 9), 1e9), torch.full((1, 4, 9, 9), -1e9)):
            m = head(clues)
            assert bool((m.variances >= 0.999 * FLOOR**2).all()) and bool(m.variances.isfinite().all())
            torch.testing.assert_close(m.log_weights.exp().sum(1), torch.ones(1, 9, 9))


def test_a_dead_feature_counts_in_the_unit_of_the_others() -> None:
    head, clues = ScaleHead(3), torch.randn(4, 3, 8, 8)
    clues[:, 2] = 0.25
    head.standardise(clues)
    assert float(head.offset[2]) == 0.25 and float(head.scale[2]) > 0.05


def test_steps_are_the_largest_differences_to_neighbours() -> None:
    x = torch.zeros(1, 1, 5, 6)
    x[0, 0, 2, 3] = 2.0
    expected = torch.zeros(1, 1, 5, 6)
    for i, j in ((2, 3), (1, 3), (3, 3), (2, 2), (2, 4)):
        expected[0, 0, i, j] = 2.0
    torch.testing.assert_close(steps(x), expected)


def with_head(seed: int = 0) -> DeepGradientDescent:
    model = small_model()
    assert isinstance(model, DeepGradientDescent)
    bdgd.train_scale_head(
        model, small_scans(), validation=small_scans(4, seed=1), draws=3, epochs=2, width=8, generator=torch.Generator().manual_seed(seed)
    )
    return model


def test_the_report_tells_of_every_draw_before_the_epochs() -> None:
    model, told = small_model(), list[dict[str, Any]]()
    bdgd.train_scale_head(model, small_scans(), validation=small_scans(4, seed=1), draws=3, epochs=2, width=8, report=told.append)
    drawn, epochs = [record["drawn"] for record in told if "drawn" in record], [record for record in told if "epoch" in record]
    assert sum(drawn) == 3 * (len(small_scans()) + 4) and len(epochs) == 2
    assert all("drawn" in record for record in told[: len(drawn)])


def test_training_a_head_leaves_the_mean_alone_and_makes_the_variance_local() -> None:
    before, after = small_model(), with_head()
    y = some_sinograms(after.A)
    old, new = reconstruct(before, y, 4), reconstruct(after, y, 4)
    torch.testing.assert_close(new.mean, old.mean, rtol=0, atol=0)
    torch.testing.assert_close(new.epistemic, old.epistemic, rtol=0, atol=0)
    assert float(old.aleatoric.max()) == float(old.aleatoric.min()) and float(new.aleatoric.max()) > 1.1 * float(new.aleatoric.min())
    torch.testing.assert_close(new.std**2, new.epistemic + new.aleatoric)
    torch.testing.assert_close(new.predictive.variance(), new.std**2)
    torch.testing.assert_close(reconstruct(after, y, 4, blocks=1).aleatoric, reconstruct(before, y, 4, blocks=1).aleatoric)


def test_an_image_does_not_depend_on_its_batch() -> None:
    model = with_head()
    y = some_sinograms(model.A)
    torch.testing.assert_close(reconstruct(model, y[1:2], 3).aleatoric, reconstruct(model, y, 3).aleatoric[1:2], rtol=0, atol=0)


def test_the_generator_decides() -> None:
    one, same, other = (with_head(seed).scale_head for seed in (0, 0, 1))
    assert one is not None and same is not None and other is not None
    torch.testing.assert_close(one.first.weight, same.first.weight, rtol=0, atol=0)
    assert not torch.equal(one.first.weight, other.first.weight)


def test_residuals_are_those_of_the_posterior() -> None:
    """Two ways to the same moments: weights per image here, weights per draw at inference."""
    model, scans = small_model(), small_scans(2)
    assert isinstance(model, DeepGradientDescent)
    ours = residuals_of(model, scans, 200, torch.Generator().manual_seed(0))
    theirs = reconstruct(model, scans.sinograms, 200, generator=torch.Generator().manual_seed(1))
    assert scans.images is not None
    error = scans.images - theirs.mean
    spread = float(theirs.epistemic.max().sqrt()) / math.sqrt(100)
    assert float((ours.error - error).abs().max()) < 5 * spread
    assert float(ours.epistemic.sum() / theirs.epistemic.sum()) == pytest.approx(1.0, abs=0.25)


def test_a_head_travels_with_the_model(tmp_path: Path) -> None:
    model = with_head()
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    y = some_sinograms(model.A)
    torch.testing.assert_close(reconstruct(again, y, 3).aleatoric, reconstruct(model, y, 3).aleatoric, rtol=0, atol=0)
    assert again.fingerprint() == model.fingerprint() != small_model().fingerprint()


def test_training_the_mean_drops_what_held_for_the_old_one() -> None:
    model = with_head()
    train_greedily(model, small_scans(), epochs=1)
    assert model.scale_head is None and model.calibration is None


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="last block of a cascade"):
        bdgd.train_scale_head(small_model("primal_dual"), small_scans())  # type: ignore[arg-type]


def test_a_head_works_in_the_units_of_the_network() -> None:
    """Images and sinograms four times smaller, a value scale of a quarter: the same head, and variances sixteen times smaller."""
    scans = small_scans()
    assert scans.images is not None
    small = replace(scans, sinograms=scans.sinograms / 4, images=scans.images / 4)
    models = [DeepGradientDescent(small_transform(), 2, seed=3, value_scale=scale) for scale in (1.0, 0.25)]
    posteriors = []
    for model, own in zip(models, (scans, small), strict=True):
        bdgd.train_scale_head(model, own, draws=3, epochs=1, batch=4, generator=torch.Generator().manual_seed(0))
        posteriors.append(reconstruct(model, own.sinograms[:2], 3))
    plain, scaled = posteriors
    torch.testing.assert_close(4 * scaled.mean, plain.mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(16 * scaled.aleatoric, plain.aleatoric, rtol=1e-2, atol=1e-9)
