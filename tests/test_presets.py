"""Presets: a complete experiment in one file, read strictly, and trained as it says."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from bdgd.apps.presets import _KEYS, CALLED, changes_since, parse_preset, preset_names, read_preset, with_seed
from bdgd.apps.training import epochs_of, make_model, make_scans, require_same_preset, train_preset
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, PoissonNoise
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, load
from bdgd.operators import FanBeam, ParallelBeam, RayTransform

CPU = torch.device("cpu")
TINY = """
seed = 3
[geometry]
beam = "sparse"
image_size = 16
views = 5
[data]
train = 8
validation = 3
noise = { kind = "gaussian", relative = 0.02 }
[model]
kind = "cascade"
blocks = 2
last_layer = "mean_field"
gradient_scale = 30.0
[training]
epochs = 1
batch = 4
[finetuning]
epochs = 1
batch = 4
"""
SPARSE = 'beam = "sparse"\nimage_size = 16\nviews = 5\n'
PRIMAL_DUAL = """
[geometry]
beam = "limited"
image_size = 16
degrees = 7
[data]
train = 6
noise = { kind = "poisson", photons = 1e4, attenuation = 0.05 }
[model]
kind = "primal-dual"
iterations = 1
[training]
epochs = 2
batch = 3
"""


@pytest.mark.parametrize("name", preset_names())
def test_every_shipped_preset_can_be_read(name: str) -> None:
    preset = read_preset(name)
    assert preset.name == name and preset.text.startswith("#")
    assert preset.geometry.image_size[0] == preset.geometry.image_size[1]  # what images are drawn for
    # complete: nothing that decides the result is left to a default
    assert {"epochs", "batch", "learning_rate", "last_learning_rate", "weight_decay"} <= set(preset.training)
    expected = {"blocks", "last_layer", "gradient_scale"} if preset.kind == "cascade" else {"iterations"}
    assert set(preset.model) - {"value_scale", "start"} == expected
    if name.endswith("-paper") and preset.kind == "cascade":
        assert (preset.training["epochs"], preset.training["batch"], preset.training["initialise"]) == (150, 128, "fresh")
        # Point weights have no KL, and dropout's squared error is not divided by a trained variance.
        authors = math.prod(preset.geometry.image_size) if preset.model["last_layer"] == "mean_field" else 1.0
        assert preset.training["kl_weight"] == authors
        # Adam sees the decay beside the loss: 1e-3 of theirs, a sum over the batch, and over pixels where no variance divides it.
        summed = 128 if preset.model["last_layer"] == "mean_field" else 128 * 128**2
        assert preset.training["weight_decay"] == pytest.approx(1e-3 / summed, rel=1e-3)


def test_the_preset_of_the_main_result() -> None:
    preset = read_preset("sparse30-mfvi")
    assert preset.geometry == ParallelBeam.sparse(image_size=128, views=30)
    assert (preset.train, preset.noise, preset.seed) == (4000, GaussianNoise(0.01), 0)
    assert preset.kind == "cascade" and preset.model == {"blocks": 10, "last_layer": "mean_field", "gradient_scale": 61.0}
    assert preset.training["kl_weight"] == 100.0 and preset.training["initialise"] == "previous" and preset.training["batch"] == 16


def test_changes_of_a_preset_are_told_but_not_those_of_comments_and_seed() -> None:
    now = parse_preset(TINY, "tiny")
    assert changes_since("# another comment\n" + TINY.replace("seed = 3", "seed = 4"), now) == []
    assert changes_since(TINY.replace("blocks = 2", "blocks = 3"), now) == ["blocks 3, now 2"]
    assert changes_since(TINY.replace("blocks = 2\n", ""), now) == ["blocks not given, now 2"]


def test_the_limited_view_preset() -> None:
    preset = read_preset("limited120-mfvi")
    assert preset.geometry == ParallelBeam.limited(image_size=128, degrees=120)
    assert preset.model == {"blocks": 20, "last_layer": "mean_field", "gradient_scale": 123.0}


def test_a_file_of_ones_own_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TINY)
    assert read_preset(str(path)) == parse_preset(TINY, "mine")
    (tmp_path / "sparse30-mfvi").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    assert read_preset("sparse30-mfvi").seed == 3


def test_any_geometry_will_do() -> None:
    fan = 'beam = "fan"\nimage_size = 16\nangles = [0.0, 1.0]\ndetectors = 20\nsource_to_axis = 40.0\nsource_to_detector = 60.0\n'
    preset = parse_preset(TINY.replace(SPARSE, fan), "fan")
    assert preset.geometry == FanBeam(image_size=16, angles=[0.0, 1.0], detectors=20, source_to_axis=40.0, source_to_detector=60.0)


def test_what_is_left_out() -> None:
    preset = parse_preset(PRIMAL_DUAL, "lpd")
    assert (preset.seed, preset.validation, preset.finetuning, preset.kind) == (0, 100, None, "primal-dual")
    assert preset.noise == PoissonNoise(1e4, 0.05)
    assert parse_preset(TINY.replace('kind = "cascade"\n', ""), "tiny").kind == "cascade"


WRONG = {
    "not-toml": (TINY, "seed = 3", "seed = = 3", r"the preset wrong is not valid TOML: .*line 2"),
    "unknown-key": (TINY, "seed = 3", "seed = 3\nsead = 4", "unknown key 'sead'; known are seed, geometry"),
    "unknown-section": (TINY, "[finetuning]", "[fine-tuning]", "unknown key 'fine-tuning'"),
    "unknown-data-key": (TINY, "train = 8", "train = 8\ntest = 3", r"unknown key 'test' in \[data\]; known are train, validation, noise"),
    "no-table-as-correction": (TINY, "train = 8", "train = 8\ncorrection = 0.27", r"preset wrong: a correction must be a table"),
    "unknown-correction": (TINY, "train = 8", "train = 8\ncorrection = { hard = 1 }", r"preset wrong: unknown key 'hard' in a correction"),
    "unknown-model-key": (TINY, "blocks = 2", "blocks = 2\nwidth = 32", r"unknown key 'width' in \[model\]"),
    "unknown-training-key": (TINY, "epochs = 1\nbatch = 4\n[f", "epoch = 1\n[f", r"unknown key 'epoch' in \[training\]; known are epochs"),
    "unknown-finetuning-key": (TINY, "[finetuning]\n", "[finetuning]\naugment = true\n", r"unknown key 'augment' in \[finetuning\]"),
    "unknown-geometry-key": (TINY, "views = 5", "view = 5", r"unknown key in \[geometry\]; .*knows image_size, views, pixel_size"),
    "unknown-beam": (TINY, 'beam = "sparse"', 'beam = "cone"', "a geometry needs beam"),
    "unknown-kind": (TINY, '"cascade"', '"unet"', "kind in .model. .* must be one of 'cascade', 'primal-dual', got 'unet'"),
    "kind-of-kind": (TINY, '"cascade"', "[1]", "must be one of 'cascade', 'primal-dual'"),
    "unknown-noise": (TINY, '"gaussian"', '"salt"', "a noise needs kind = 'gaussian' or 'poisson'"),
    "noise-no-table": (TINY, '{ kind = "gaussian", relative = 0.02 }', "0.02", r"needs a table as noise in \[data\]"),
    "no-noise": (TINY, 'noise = { kind = "gaussian", relative = 0.02 }', "", r"needs 'noise' in \[data\]; add it"),
    "blocks-in-words": (TINY, "blocks = 2", 'blocks = "three"', r"blocks in \[model\] of the preset .* whole number, got 'three'"),
    "epochs-in-words": (TINY, "epochs = 1", 'epochs = "many"', r"epochs in \[training\] of the preset wrong must be a whole number"),
    "empty-batches": (TINY, "batch = 4", "batch = 0", r"batch in \[training\] of the preset wrong must be at least 1, got 0"),
    "rate-in-quotes": (TINY, "batch = 4", 'learning_rate = "1e-3"', r"learning_rate in \[training\] .* a number, got '1e-3'; write"),
    "endless-rate": (TINY, "batch = 4", "learning_rate = inf", r"learning_rate in \[training\] .* must be finite"),
    "word-as-flag": (TINY, "batch = 4", 'augment = "yes"', r"augment in \[training\] .* must be true or false, got 'yes'"),
    "number-as-word": (TINY, "batch = 4", "initialise = 3", r"initialise in \[training\] .* must be a word in quotes, got 3"),
    "scale-as-list": (TINY, "gradient_scale = 30.0", "gradient_scale = [1.0]", r"gradient_scale in \[model\] .* must be a number"),
    "iterations-for-none": (PRIMAL_DUAL, "iterations = 1", "iterations = 0", r"iterations in \[model\] .* must be at least 1"),
    "nested": (TINY, "seed = 3", "seed = 3\nx = " + "[" * 10**5, "the preset wrong is not valid TOML"),
    "no-images": (TINY, "train = 8", "", r"needs 'train' in \[data\]; add it"),
    "zero-images": (TINY, "train = 8", "train = 0", "train must be at least 1"),
    "half-a-seed": (TINY, "seed = 3", "seed = 0.5", "seed must be a whole number"),
    "negative-seed": (TINY, "seed = 3", "seed = -1", "seed must be at least 0"),
    "section-no-table": (TINY, f"[geometry]\n{SPARSE}", "geometry = 3\n", r"needs a section \[geometry\]"),
    "cascade-key-for-primal-dual": (PRIMAL_DUAL, "epochs = 2", "epochs = 2\nkl_weight = 1.0", r"unknown key 'kl_weight' in \[training\]"),
    "blocks-for-primal-dual": (PRIMAL_DUAL, "iterations = 1", "blocks = 1", r"unknown key 'blocks' in \[model\]; .*kind, iterations"),
    "finetuning-for-primal-dual": (PRIMAL_DUAL + "[finetuning]\n", "", "", "of a primal-dual model, has an unknown key 'finetuning'"),
}


@pytest.mark.parametrize(("text", "old", "new", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_preset_is_refused_with_one_sentence(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(InputError, match=message) as caught:
        parse_preset(text.replace(old, new, 1), "wrong")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["geometry", "data", "model", "training"])
def test_a_missing_section_is_named(section: str) -> None:
    start = TINY.index(f"[{section}]")
    end = TINY.index("[", start + 1)
    with pytest.raises(InputError, match=rf"needs a section \[{section}\]; add it, or start from one of .*sparse30-mfvi"):
        parse_preset(TINY[:start] + TINY[end:], "short")


@pytest.mark.parametrize("source", ["sparse31-mfvi", "nowhere/sparse30-mfvi", "../presets/sparse30-mfvi", "", "."])
def test_an_unknown_name_lists_the_known_ones(source: str) -> None:
    with pytest.raises(InputError, match=r"there is no preset .*give a TOML file or one of .*sparse30-mfvi"):
        read_preset(source)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read the preset"):
        read_preset(str(tmp_path / "bytes.toml"))


# --- trained -------------------------------------------------------------------------------------------------------


def test_scans_and_model_are_what_the_preset_says() -> None:
    preset = parse_preset(TINY, "tiny")
    A = RayTransform(preset.geometry)
    train, validation = make_scans(preset, A, "train"), make_scans(preset, A, "validation")
    assert (len(train), len(validation), train.noise, train.geometry) == (8, 3, GaussianNoise(0.02), preset.geometry)
    assert not any(torch.equal(a, b) for a in train.images for b in validation.images)
    assert torch.equal(make_scans(preset, A, "train").sinograms, train.sinograms)
    assert not torch.equal(make_scans(replace(preset, seed=4), A, "train").images, train.images)
    model = make_model(preset, A)
    assert isinstance(model, DeepGradientDescent) and len(model.blocks) == 2 and model.misfit.scale == 30.0
    assert isinstance(make_model(parse_preset(PRIMAL_DUAL, "lpd"), A), LearnedPrimalDual)


def weights_in(run: Path) -> dict[str, Any]:
    return {name: value.numpy().tobytes() for name, value in load(run / "model.safetensors").state_dict().items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "tiny"
    train_preset(parse_preset(TINY, "tiny"), run, CPU)
    return run


def test_a_run_has_everything(trained: Path) -> None:
    files = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    blocks = {"block-01.safetensors", "block-02.safetensors"}
    own = {"preset.toml", "environment.json", "settings.json", "metrics.jsonl", "model.safetensors"}
    assert files == own | blocks | {"joint/settings.json", "joint/metrics.jsonl", "joint/joint.safetensors"}
    assert (trained / "preset.toml").read_text() == TINY
    assert json.loads((trained / "environment.json").read_text())["seed"] == 3
    model = load(trained / "model.safetensors")
    assert [record["stage"] for record in model.provenance["stages"]] == ["block-01", "block-02", "joint"]
    assert model.provenance["preset"] == "tiny" and model.provenance["preset_text"] == TINY
    assert model.provenance["precision"] == "float32"
    assert isinstance(model, DeepGradientDescent) and model.A.geometry == parse_preset(TINY, "tiny").geometry


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("stage", ["block-01", "block-02", "joint"])
def test_a_preset_that_was_interrupted_resumes_with_the_same_result(tmp_path: Path, trained: Path, stage: str) -> None:
    def stop(report: dict[str, Any]) -> None:
        if report["stage"] == stage:
            raise Interrupted

    preset = parse_preset(TINY, "tiny")
    with pytest.raises(Interrupted):
        train_preset(preset, tmp_path / "run", CPU, report=stop)
    assert (tmp_path / "run" / "preset.toml").read_text() == TINY  # it is there from the start
    assert (tmp_path / "run" / "environment.json").exists() and not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(InputError, match="already holds a run of this preset; add --resume to go on with it"):
        train_preset(preset, tmp_path / "run", CPU)
    train_preset(preset, tmp_path / "run", CPU, resume=True)
    assert weights_in(tmp_path / "run") == weights_in(trained)


OTHERS = [("relative = 0.02", "relative = 0.01"), ("seed = 3", "seed = 2"), ("[finetuning]\nepochs = 1", "[finetuning]\nepochs = 2")]


@pytest.mark.parametrize(("old", "new"), OTHERS)
def test_a_run_of_another_preset_is_refused(trained: Path, old: str, new: str) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    for resume in (False, True):
        with pytest.raises(InputError, match=r"holds a run of another preset than other, see .*preset.toml; choose another folder"):
            train_preset(parse_preset(TINY.replace(old, new), "other"), trained, CPU, resume=resume)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_a_preset_that_was_refused_can_be_corrected_in_the_same_folder(tmp_path: Path) -> None:
    wrong = PRIMAL_DUAL + "learning_rate = 1e-3\nlast_learning_rate = 1e-2\n"
    with pytest.raises(InputError, match="last_learning_rate must lie between"):
        train_preset(parse_preset(wrong, "lpd"), tmp_path / "run", CPU)
    train_preset(parse_preset(PRIMAL_DUAL, "lpd"), tmp_path / "run", CPU)
    assert (tmp_path / "run" / "preset.toml").read_text() == PRIMAL_DUAL


def test_another_comment_is_not_another_preset(trained: Path) -> None:
    before = weights_in(trained)
    train_preset(parse_preset("# mine\n" + TINY, "renamed"), trained, CPU, resume=True)
    assert weights_in(trained) == before and (trained / "preset.toml").read_text() == TINY


def test_primal_dual_trains_from_a_preset(tmp_path: Path) -> None:
    model = train_preset(replace(parse_preset(PRIMAL_DUAL, "lpd"), validation=2), tmp_path / "run", CPU)
    assert math.isfinite(float(model.noise_level))
    again = load(tmp_path / "run" / "model.safetensors")
    assert isinstance(again, LearnedPrimalDual) and again.provenance["stages"][0]["stage"] == "direct"


WITHOUT_EPOCHS = {
    "cascade": TINY[: TINY.index("[finetuning]")].replace("epochs = 1\n", ""),
    "finetuned": TINY.replace("batch = 4\n[finetuning]\nepochs = 1\n", "batch = 4\n[finetuning]\n"),
    "primal-dual": PRIMAL_DUAL.replace("epochs = 2\n", ""),
}


@pytest.mark.parametrize("name", WITHOUT_EPOCHS)
def test_epochs_that_are_not_given_are_counted_as_they_are_trained(tmp_path: Path, name: str) -> None:
    preset, trained = replace(parse_preset(WITHOUT_EPOCHS[name], name), validation=2), list[str]()
    train_preset(preset, tmp_path, CPU, report=lambda record: trained.append(record["stage"]) if "loss" in record else None)
    assert epochs_of(preset) == sum("-again-" not in stage for stage in trained)
    assert "epochs" not in (preset.finetuning or preset.training), "the preset itself is as it was written"


def test_what_is_not_given_has_the_default_of_what_is_called() -> None:
    joint, direct = (parse_preset(text, "short") for text in (WITHOUT_EPOCHS["finetuned"], WITHOUT_EPOCHS["primal-dual"]))
    assert (joint.epochs("training"), joint.epochs("finetuning"), direct.epochs("training")) == (1, 10, 50)
    assert direct.epochs("finetuning") == 0
    assert (joint.argument("model", "value_scale"), joint.argument("training", "learning_rate")) == (1.0, 1e-3)
    for kind, sections in _KEYS.items():
        for section, keys in sections.items():
            assert set(keys) - {"kind"} <= set(signature(CALLED[kind][section]).parameters)


@pytest.mark.parametrize(("section", "given"), [("training", "epochs = 20\n"), ("finetuning", "epochs = 10\n")])
def test_a_preset_that_gives_a_default_is_still_another_than_one_that_does_not(tmp_path: Path, section: str, given: str) -> None:
    """A run was kept with what its preset says, not with what the defaults were at the time."""
    left_out = TINY.replace(f"[{section}]\nepochs = 1\n", f"[{section}]\n")
    (tmp_path / "preset.toml").write_text(left_out)
    (tmp_path / "settings.json").write_text("{}")
    require_same_preset(parse_preset("# mine\n" + left_out, "same"), tmp_path)
    other = parse_preset(left_out.replace(f"[{section}]\n", f"[{section}]\n{given}"), "other")
    with pytest.raises(InputError, match="holds a run of another preset than other"):
        require_same_preset(other, tmp_path)
    assert changes_since(left_out, other) == [f"epochs not given, now {given.split()[-1]}"]


def test_a_folder_that_is_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="it is a file, not a folder"):
        train_preset(parse_preset(TINY, "tiny"), tmp_path / "file", CPU)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", preset_names())
def test_another_seed_changes_the_seed_alone(name: str) -> None:
    preset, other = read_preset(name), with_seed(read_preset(name), 7)
    assert other.seed == 7 and parse_preset(other.text, name) == other
    assert dataclasses.replace(other, seed=preset.seed, text=preset.text) == preset
