"""Calibrations travel with their models, leave what they do not hold for, and damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrated import DRAWS
from refusals import refusal
from toys import dense, small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.inference import reconstruct
from bdgd.inference.risk_control import LEVELS
from bdgd.models import Calibration, calibration_from_dict, load, read_tensors, save, write_tensors
from bdgd.operators import RayTransform


def test_an_operator_of_another_geometry_leaves_the_calibration_out(calibration: Calibration, tmp_path: Path) -> None:
    save(small_model().with_calibration(calibration), tmp_path / "model.safetensors")
    turned = RayTransform(replace(small_transform().geometry, angles=tuple(angle + 0.1 for angle in small_transform().geometry.angles)))
    assert load(tmp_path / "model.safetensors", operator=turned).calibration is None
    assert load(tmp_path / "model.safetensors", operator=dense(small_transform())).calibration == calibration
    with pytest.raises(InputError, match="another geometry"):
        small_model(A=turned).with_calibration(calibration)


def test_with_calibration_makes_a_new_model(calibration: Calibration) -> None:
    model = small_model()
    assert model.with_calibration(calibration).calibration == calibration and model.calibration is None
    assert model.with_calibration(calibration).with_calibration(None).calibration is None


def test_it_travels_with_the_model(calibration: Calibration, tmp_path: Path) -> None:
    model = small_model().with_calibration(calibration)
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.calibration == calibration
    y = some_sinograms(model.A)
    for ours, theirs in zip(reconstruct(model, y, DRAWS).interval(0.8), reconstruct(again, y, DRAWS).interval(0.8), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


def test_a_calibration_in_a_file_that_does_not_fit_is_refused(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(small_model().with_calibration(calibration), path)
    tensors, header = read_tensors(path)
    values = header["calibration"]
    for change, message in (({"colour": "red"}, "unknown key 'colour'"), ({"weights": "0" * 16}, "other weights")):
        write_tensors(path, tensors, header | {"calibration": values | change})
        with pytest.raises(InputError, match=message):
            load(path)
    write_tensors(path, tensors, header | {"calibration": {name: v for name, v in values.items() if name != "draws"}})
    with pytest.raises(InputError, match="not complete"):
        load(path)


def test_files_say_whether_older_versions_can_read_them(calibration: Calibration, tmp_path: Path) -> None:
    for model, form in ((small_model(), 1), (small_model().with_calibration(calibration), 2)):
        save(model, tmp_path / "model.safetensors")
        assert read_tensors(tmp_path / "model.safetensors")[1]["format"] == form


def test_a_calibration_is_plain_data(calibration: Calibration) -> None:
    assert calibration_from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration


def test_a_model_with_another_start_leaves_its_calibration_out(calibration: Calibration, tmp_path: Path) -> None:
    save(small_model().with_calibration(calibration), tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").calibration == calibration
    assert load(tmp_path / "model.safetensors", initial=lambda A, y: 0.05 * A.T(y)).calibration is None


DAMAGES: dict[str, Any] = {
    "a word": "x",
    "a list": [1],
    "one number for all": {"z": [[1.0]]},
    "words for numbers": {"z": [["a", "b", "c"]] * len(LEVELS)},
    "negative widths": {"z": [[-5.0, -5.0, -5.0]] * len(LEVELS)},
    "draws in words": {"draws": "3"},
    "falling levels": {"levels": list(LEVELS[::-1])},
    "regions without a size": {"regions": {"areas": []}},
    "a witness without a tail": {"alarm": {"tails": []}},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_calibration_is_refused_when_the_model_is_read(damage: Any, calibration: Calibration, tmp_path: Path) -> None:
    save(small_model().with_calibration(calibration), tmp_path / "model.safetensors")
    tensors, header = read_tensors(tmp_path / "model.safetensors")
    if isinstance(damage, dict):
        whole = header["calibration"]
        for key, value in damage.items():
            whole[key] = whole[key] | value if isinstance(value, dict) else value
    else:
        header["calibration"] = damage
    write_tensors(tmp_path / "model.safetensors", tensors, header)
    with refusal("calibrat(e the model anew|ion)"):
        load(tmp_path / "model.safetensors")
