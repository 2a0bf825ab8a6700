"""Models in files: what is saved comes back bit for bit, on its own operator or one's own, by its path or a shipped name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from refusals import refusal
from torch import Tensor
from toys import KINDS, MODELS, dense, small_model, small_transform, some_sinograms

from bdgd.classical import fbp
from bdgd.inference import reconstruct
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor, checkpoint, load, pretrained, save
from bdgd.operators import FanBeam, RayTransform

PROVENANCE = {"preset": "sparse30-mfvi", "seed": 7, "seconds": 98.5, "scores": {"psnr": [44.1, 46.0]}, "hardware": "two cores, über"}


def back_projection(A: Any, y: Tensor) -> Tensor:
    return 0.05 * A.T(y)


def assert_same(one: Reconstructor, other: Reconstructor) -> None:
    """The same weights and the same reconstruction, bit for bit."""
    assert type(one) is type(other) and one.arguments() == other.arguments()
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=0, atol=0, equal_nan=True)
    y = some_sinograms(one.A)
    expected, found = (reconstruct(model, y, draws=3, generator=torch.Generator().manual_seed(1)) for model in (one, other))
    assert torch.equal(expected.mean, found.mean) and torch.equal(expected.epistemic, found.epistemic)


# --- What is saved comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    model = small_model(name)
    model.provenance = PROVENANCE
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert_same(model, loaded)
    assert loaded.provenance == PROVENANCE
    assert loaded.A.geometry == model.A.geometry
    assert loaded.A.range_shape == model.A.range_shape
    save(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_noise_level_that_was_not_estimated_stays_unknown(kind: str, tmp_path: Path) -> None:
    model = DeepGradientDescent(small_transform(8), blocks=1, last_layer=kind)
    save(model, tmp_path / "model.safetensors")
    torch.testing.assert_close(load(tmp_path / "model.safetensors").noise_level, model.noise_level, equal_nan=True)


def test_all_arguments_and_any_geometry_come_back(tmp_path: Path) -> None:
    geometry = FanBeam(
        image_size=(9, 11), angles=[0.1, 1.3, 2.9, 4.0], detectors=17, detector_spacing=0.7, source_to_axis=20.0, source_to_detector=31.0
    )
    model = DeepGradientDescent(RayTransform(geometry), 3, "dropout", gradient_scale=12.5, misfit="poisson", attenuation=0.02)
    save(model, str(tmp_path / "model.safetensors"))  # a name as text will do
    loaded = load(str(tmp_path / "model.safetensors"))
    assert loaded.A.geometry == geometry
    assert loaded.arguments() == {
        "blocks": 3,
        "last_layer": "dropout",
        "gradient_scale": 12.5,
        "misfit": "poisson",
        "attenuation": 0.02,
        "value_scale": 1.0,
    }
    assert loaded.misfit.attenuation == 0.02 and loaded.misfit.scale == 12.5
    assert_same(model, loaded)


def test_the_header_is_plain_json(tmp_path: Path) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    with safetensors.safe_open(str(tmp_path / "model.safetensors"), "pt") as file:
        header = json.loads(file.metadata()["bdgd"])
    assert header["format"] == 1 and header["model"] == "DeepGradientDescent"
    assert header["domain_shape"] == [1, 16, 16] and header["geometry"]["beam"] == "parallel"


def test_loading_goes_where_it_is_asked(tmp_path: Path, device: torch.device) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", device=device)
    operator = RayTransform(loaded.A.geometry, device=device)
    for model in (loaded, load(tmp_path / "model.safetensors", operator=operator)):
        assert model.device.type == model.A.device.type == device.type


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(small_model("point"), path)
    save(small_model("primal_dual"), path)
    assert isinstance(load(path), LearnedPrimalDual)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


# --- Operators and starts of one's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_an_operator_of_ones_own(name: str, tmp_path: Path) -> None:
    model, path = small_model(name), tmp_path / "model.safetensors"
    save(model, path)
    bare = dense(small_transform())
    loaded = load(path, operator=bare, initial=back_projection)
    assert loaded.A is bare
    model.initial = back_projection
    y = some_sinograms(small_transform())
    expected, found = (reconstruct(one, y, draws=3).mean for one in (model, loaded))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_an_operator_without_geometry_must_be_passed_again(tmp_path: Path) -> None:
    path, bare = tmp_path / "model.safetensors", dense(small_transform())
    model = DeepGradientDescent(bare, blocks=1, initial=back_projection)
    save(model, path)
    with refusal(r"trained on an operator without a geometry; pass it with load\(path, operator=A\)"):
        load(path)
    loaded = load(path, operator=bare, initial=back_projection)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("other", [small_transform(12), small_transform(16, views=7)], ids=["another image", "other views"])
def test_an_operator_of_other_shapes_is_refused(other: RayTransform, tmp_path: Path) -> None:
    save(small_model(), tmp_path / "model.safetensors")
    with refusal(r"was trained with (domain|range)_shape \(1, .*\), but RayTransform.* has \(1, .*\)"):
        load(tmp_path / "model.safetensors", operator=other)


def test_a_start_of_ones_own_must_be_passed_again(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(DeepGradientDescent(small_transform(8), blocks=1, initial=back_projection), path)
    with refusal(r"trained from a start of its own; pass the same function with load\(path, initial=...\)"):
        load(path)
    assert load(path, initial=back_projection).initial is back_projection
    save(small_model(), path)
    assert load(path).initial is fbp


# --- Shipped models --------------------------------------------------------------------------------------------------


def test_shipped_models_load_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_weights", lambda: tmp_path)
    for name in ("second", "first"):
        save(small_model("point"), tmp_path / f"{name}.safetensors")
    (tmp_path / "README.md").write_text("not a model")
    assert pretrained() == ["first", "second"]
    assert_same(load("first"), small_model("point"))
    with refusal(r"there is no model third; .* shipped names: first, second"):
        load("third")


def test_there_may_be_no_shipped_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout without weights has no folder for them: git keeps no empty ones."""
    monkeypatch.setattr(checkpoint, "_weights", lambda: tmp_path / "weights")
    assert pretrained() == []
    with refusal("there is no model sparse30-mfvi; give a .safetensors file or one of the shipped names: none yet"):
        load("sparse30-mfvi")


@pytest.mark.parametrize("name", pretrained())
def test_a_shipped_model_is_trained_and_knows_its_preset(name: str) -> None:
    model = load(name)
    assert model.provenance["preset"] == name and model.provenance["stages"]
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values()) and 0 < float(model.noise_level) < 0.05


def test_shipped_models_stay_small_together() -> None:
    """They are most of what an installation copies."""
    weights = Path(checkpoint.__file__).parent / "weights"
    assert sum(path.stat().st_size for path in weights.glob("*.safetensors")) < 40e6
