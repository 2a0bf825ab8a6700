"""Learned primal-dual: the paper's size, its formula written out, any unit of length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toys import dense, small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.models import LearnedPrimalDual, load, save
from bdgd.operators import operator_norm


def test_it_has_the_papers_parameters() -> None:
    model = LearnedPrimalDual(small_transform(), iterations=10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 253_220
    one = LearnedPrimalDual(small_transform(), iterations=1)
    assert sum(parameter.numel() for parameter in one.dual.parameters()) == 12_741 + 64
    assert sum(parameter.numel() for parameter in one.primal.parameters()) == 12_453 + 64


@pytest.mark.parametrize("start", ["zero", "fbp"])
def test_forward_is_the_formula(start: str) -> None:
    A = small_transform((12, 10))
    model, y = LearnedPrimalDual(A, iterations=3, start=start), some_sinograms(A)
    norm = operator_norm(A)
    h, p = torch.zeros(3, 5, *A.range_shape[1:]), torch.zeros(3, 5, 12, 10)
    if start == "fbp":
        p[:, :2] = fbp(A, y)
    for i in range(3):
        h = h + model.dual[i](torch.cat((h, A(p[:, [1]]) / norm, y / norm), 1))
        p = p + model.primal[i](torch.cat((p, A.T(h[:, [0]]) / norm), 1))
    image = model(y)
    assert image.shape == (3, 1, 12, 10) and image.any()
    torch.testing.assert_close(image, p[:, [0]])
    torch.testing.assert_close(model(y, model.start(y)), image, rtol=0, atol=0)


def test_gradients_reach_every_parameter() -> None:
    model = small_model("primal_dual")
    model(some_sinograms(model.A)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any() and parameter.grad.isfinite().all(), name


def test_nothing_depends_on_the_unit_of_length() -> None:
    A, B = small_transform(), small_transform(pixel_size=0.3)
    y = some_sinograms(A)
    torch.testing.assert_close(LearnedPrimalDual(B, 2)(0.3 * y), LearnedPrimalDual(A, 2)(y), rtol=1e-4, atol=1e-6)


def test_a_bare_operator_will_do() -> None:
    A = small_transform(12)
    y = some_sinograms(A)
    torch.testing.assert_close(LearnedPrimalDual(dense(A), 2)(y), LearnedPrimalDual(A, 2)(y), rtol=1e-4, atol=1e-6)


def test_weights_come_from_the_seed() -> None:
    A = small_transform(8)
    one, same, other = (LearnedPrimalDual(A, 2, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, same[name]) for name, value in one.items() if name != "log_noise")
    assert not torch.equal(one["dual.0.0.weight"], other["dual.0.0.weight"])


def test_its_noise_level_waits_to_be_estimated() -> None:
    model = LearnedPrimalDual(small_transform(8), 1)
    assert model.noise_level.isnan() and not model.random
    assert "log_noise" in model.state_dict() and "log_noise" not in dict(model.named_parameters())


REFUSED = {
    "iterations must be at least 1, got 0": {"iterations": 0},
    "must be a whole number, got 'ten'": {"iterations": "ten"},
    "start must be one of 'zero', 'fbp', got 'tv'": {"start": "tv"},
}


@pytest.mark.parametrize(("message", "arguments"), REFUSED.items())
def test_what_cannot_be_built_is_refused(message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=message):
        LearnedPrimalDual(small_transform(8), **arguments)


def test_its_start_is_kept_in_the_file(tmp_path: Path) -> None:
    A = small_transform(8)
    y, model = some_sinograms(A), LearnedPrimalDual(A, 1, start="fbp")
    save(model, tmp_path / "model.safetensors")
    torch.testing.assert_close(load(tmp_path / "model.safetensors", operator=A)(y), model(y))
    assert model.arguments()["start"] == "fbp" and LearnedPrimalDual(A, 1).arguments()["start"] == "zero"
    assert not torch.equal(LearnedPrimalDual(A, 1)(y), model(y))
