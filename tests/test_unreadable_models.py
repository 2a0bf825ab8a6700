"""Files that are no model: cut off, foreign, pickled or of another shape, each refused in a sentence, and nothing executed."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from refusals import refusal
from toys import small_model

from bdgd.models import load, read_tensors, save, write_tensors


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


def test_flipped_bytes_are_noticed(saved: Path) -> None:
    raw = bytearray(saved.read_bytes())
    raw[-5000] ^= 0x40
    saved.write_bytes(raw)
    with refusal("model.safetensors is damaged: its weights are not those that were saved; copy it again"):
        load(saved)
    tensors, header = read_tensors(saved)
    del header["weights"]  # as files had it before they knew
    write_tensors(saved, tensors, header)
    load(saved)


def test_weights_that_are_no_numbers_are_refused(saved: Path) -> None:
    """The cascade's guard would undo every update that they make, and give the filtered back-projection without any variance."""
    model = small_model()
    model.blocks[0].merge[0].weight.data[0] = torch.nan  # type: ignore[index]
    header = read_tensors(saved)[1] | {"weights": model.fingerprint()}
    write_tensors(saved, model.state_dict(), header)
    with refusal("model.safetensors has weights that are NaN or infinite; its training failed, take an earlier one"):
        load(saved)


@pytest.mark.parametrize(
    ("source", "device", "message"),
    [(5, None, "a model is given by its name or the path of its file, got 5"), ("sparse30-dgd", "bogus", "device must be one such as")],
)
def test_what_is_no_name_and_no_device_is_said(source: Any, device: Any, message: str) -> None:
    with refusal(message):
        load(source, device=device)
