"""Writing a model is all or nothing, and never a pickle."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import files_no_larger_than, no_room
from refusals import refusal
from toys import small_model, small_transform

from bdgd.models import DeepGradientDescent, load, save


def test_only_known_models_are_saved(tmp_path: Path) -> None:
    class Mine(DeepGradientDescent):
        pass

    with refusal("save knows the models DeepGradientDescent, LearnedPrimalDual, got Mine"):
        save(Mine(small_transform(8), blocks=1), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


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
