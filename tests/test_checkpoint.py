"""Models in files: what is saved comes back, what cannot be read is refused in a sentence, and nothing is unpickled."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from toys import KINDS, MODELS, dense, small_model, small_transform, some_sinograms

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.inference import reconstruct
from bdgd.models import (
    DeepGradientDescent,
    LearnedPrimalDual,
    Reconstructor,
    checkpoint,
    load,
    pretrained,
    read_tensors,
    save,
    write_tensors,
)
from bdgd.operators import FanBeam, RayTransform

PROVENANCE = {"preset": "sparse30-mfvi", "seed": 7, "seconds": 98.5, "scores": {"psnr": [44.1, 46.0]}, "hardware": "two cores, über"}


def back_projection(A: Any, y: Tensor) -> Tensor:
    return 0.05 * A.T(y)


@contextlib.contextmanager
def refusal(message: str) -> Iterator[None]:
    """The block is refused by an InputError of one sentence."""
    with pytest.raises(InputError, match=message) as error:
        yield
    text = str(error.value)
    assert "\n" not in text and 20 < len(text) < 500, text


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


# What is saved comes back ------------------------------------------------------------------------------------------------


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


# Operators and starts of one's own ---------------------------------------------------------------------------------------


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


def test_only_known_models_are_saved(tmp_path: Path) -> None:
    class Mine(DeepGradientDescent):
        pass

    with refusal("save knows the models DeepGradientDescent, LearnedPrimalDual, got Mine"):
        save(Mine(small_transform(8), blocks=1), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


# Shipped models ----------------------------------------------------------------------------------------------------------


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


def test_the_shipped_models_are_models() -> None:
    assert all(isinstance(load(name), Reconstructor) for name in pretrained())


# What cannot be read -----------------------------------------------------------------------------------------------------


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(small_model(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "length", [0, 5, 200, -1000, -1], ids=["empty", "inside the length", "inside the header", "inside the weights", "last byte"]
)
def test_a_truncated_file_is_refused(saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with refusal("model.safetensors cannot be read as a safetensors file .* check that it was copied completely"):
        load(saved)


@pytest.mark.parametrize("dump", [pickle.dump, torch.save], ids=["pickle", "torch.save"])
def test_a_pickle_is_refused_and_not_executed(dump: Callable[..., None], tmp_path: Path) -> None:
    path, trace = tmp_path / "model.safetensors", tmp_path / "executed"
    with path.open("wb") as file:
        dump(Bomb(trace), file)
    with refusal("cannot be read as a safetensors file"):
        load(path)
    assert not trace.exists()


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for metadata in (None, {"format": "pt"}, {"bdgd": "[1, 2]"}):
        safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata=metadata)
        with refusal("is a safetensors file, but not one of bdgd: its header has no 'bdgd' entry"):
            load(path)
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata={"bdgd": "{broken"})
    with refusal("cannot be read as a safetensors file"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "is a bdgd file of format 4 with 'DeepGradientDescent', this version reads models of format 1, 2, 3"),
        ({"format": None}, "of format None"),
        ({"model": "Transformer"}, "with 'Transformer'"),
        ({"model": ["x"]}, "this version reads models"),
        ({"arguments": {"blocks": 3, "last_layer": "mean_field"}}, "does not fit this version of bdgd: .*Missing key"),
        ({"arguments": {"blocks": 2, "last_layer": "point"}}, "does not fit this version of bdgd: .*Unexpected key"),
        ({"arguments": {"depth": 2}}, "does not fit this version of bdgd: .*'depth'"),
        ({"arguments": {"blocks": -1}}, "blocks must be at least 1, got -1"),
        ({"arguments": None}, "does not fit this version of bdgd"),
        ({"geometry": {"beam": "cone"}}, "beam = 'parallel' or 'fan', got 'cone'"),
        ({"geometry": "parallel"}, "does not fit this version of bdgd"),
        ({"geometry": None}, "without a geometry"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(saved: Path, change: dict[str, Any], message: str) -> None:
    tensors, header = read_tensors(saved)
    write_tensors(saved, tensors, header | change)
    with refusal(message):
        load(saved)


def test_weights_that_do_not_fit_are_refused(saved: Path) -> None:
    tensors, header = read_tensors(saved)
    write_tensors(saved, tensors | {"blocks.0.last.weight": torch.zeros(1, 8, 3, 3)}, header)
    with refusal("does not fit this version of bdgd: .*size mismatch"):
        load(saved)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with refusal(f"{re.escape(str(tmp_path))} is a folder; give the .safetensors file of a model"):
        load(tmp_path)
    for missing in (tmp_path / "nothing.safetensors", "nothing", "../nothing"):
        with refusal(f"there is no model {re.escape(str(missing))}; give a .safetensors file or one of the shipped names"):
            load(missing)


# Writing -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full after `limit` bytes of a file, as the operating system has it."""
    resource = pytest.importorskip("resource", reason="this system cannot limit the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("existing", [True, False], ids=["over a model", "new"])
@pytest.mark.parametrize("failure", ["file too large", "no room for the bytes", "no room for the name", "no flushing"])
def test_a_failed_write_leaves_things_as_they_were(failure: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    if existing:
        save(small_model("point"), path)
    before = path.read_bytes() if existing else None
    model = small_model()
    if failure == "no room for the bytes":
        monkeypatch.setattr(Path, "write_bytes", no_room)
    elif failure == "no room for the name":
        monkeypatch.setattr(os, "replace", no_room)
    elif failure == "no flushing":
        monkeypatch.setattr(os, "fsync", no_room)
    limit = files_no_larger_than(5000) if failure == "file too large" else contextlib.nullcontext()
    with refusal(r"cannot write .*model.safetensors: (File too large|No space left on device); check that .* has room"), limit:
        save(model, path)
    assert [entry.name for entry in tmp_path.iterdir()] == (["model.safetensors"] if existing else [])
    assert not existing or path.read_bytes() == before


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    model = small_model("point")
    with refusal("cannot write .*missing/model.safetensors: No such file or directory; check that the folder exists"):
        save(model, tmp_path / "missing" / "model.safetensors")
    with refusal("it is a folder; give the name of a file in it"):
        save(model, tmp_path)
    (tmp_path / "file").write_text("")
    with refusal("Not a directory"):
        save(model, tmp_path / "file" / "model.safetensors")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_no_pickle_is_written_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was used")

    model = small_model()
    for module, names in ((pickle, ("dump", "dumps", "load", "loads", "Pickler", "Unpickler")), (torch, ("save", "load"))):
        for name in names:
            monkeypatch.setattr(module, name, never)
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors").state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())
