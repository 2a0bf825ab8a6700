"""What `reconstruct` refuses, each in one sentence with its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from toys import small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.inference import reconstruct
from bdgd.models import Calibration, save

A = small_transform()
Y = some_sinograms(A)
WITH_NAN = Y.clone()
WITH_NAN[1, 0, 2, 3] = math.nan

BAD_INPUT: list[tuple[Any, dict[str, Any], str]] = [
    (some_sinograms(small_transform(16, views=6)), {}, r"the sinogram must have shape \(B, 1, 5, 25\), got \(3, 1, 6, 25\)"),
    (Y[0], {}, r"must have shape \(B, 1, 5, 25\), got \(1, 5, 25\); add the batch axis with \[None\]"),
    (Y[:0], {}, "the sinogram is empty"),
    (Y.double(), {}, r"works in torch\.float32, the sinogram is torch\.float64; convert it with \.float\(\)"),
    (Y.int(), {}, r"must be floating point, got torch\.int32"),
    (Y.numpy(), {}, "must be a torch tensor .*, got ndarray"),
    (WITH_NAN, {}, "must be finite, but 1 of its 375 values are NaN or infinite"),
    (Y.to("meta"), {}, "the model is on cpu, the sinogram on meta"),
    (Y, {"draws": 0}, "draws must be at least 1, got 0"),
    (Y, {"draws": -3}, "draws must be at least 1, got -3"),
    (Y, {"draws": 2.5}, r"draws must be a whole number, got 2\.5"),
    (Y, {"draw": "images"}, "draw must be one of 'weights', 'pixels', got 'images'"),
    (Y, {"blocks": 0}, "blocks must be at least 1, got 0"),
    (Y, {"blocks": 3}, "blocks must be at most 2, the length of the cascade, got 3"),
]


@pytest.mark.parametrize(("y", "arguments", "message"), BAD_INPUT, ids=[str(i) for i in range(len(BAD_INPUT))])
def test_bad_input_is_refused_in_a_sentence(y: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        reconstruct(small_model(A=A), y, **arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("draws", [0, -3])
def test_draws_are_checked_for_models_that_have_one_only(draws: int) -> None:
    with pytest.raises(InputError, match=f"draws must be at least 1, got {draws}"):
        reconstruct(small_model("point"), Y, draws=draws)


def test_what_is_no_model_and_no_generator_is_said() -> None:
    with pytest.raises(InputError, match=r"reconstruct needs a model such as .*, got NoneType"):
        reconstruct(None, Y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"generator must be a torch\.Generator, got 5"):
        reconstruct(small_model(), Y, generator=5)  # type: ignore[arg-type]


def test_weights_that_are_no_numbers_are_refused_where_the_guard_would_hide_them(tmp_path: Path) -> None:
    model = small_model(A=A)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    for use in (lambda: reconstruct(model, Y), lambda: save(model, tmp_path / "model.safetensors")):
        with refusal("1 of the model's tensors hold NaN or infinite values, blocks.0.* first; load or train it again"):
            use()


def test_a_calibration_of_other_weights_is_refused(calibration: Calibration, tmp_path: Path) -> None:
    model = small_model().with_calibration(calibration)
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    for use in (lambda: reconstruct(model, Y), lambda: save(model, tmp_path / "model.safetensors")):
        with refusal("the model's weights have changed since it was calibrated; make a new calibration"):
            use()
    reconstruct(model.with_calibration(None), Y, 2)
