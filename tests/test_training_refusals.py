"""What training refuses, before any work and without touching the model: scans, arguments, a share that does not divide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import TRAIN, VALIDATION, A, cascade, ellipse_scans, quickly, same, state_of
from toys import small_transform

from bdgd.checks import Diverged, InputError
from bdgd.data import Scans
from bdgd.models import LearnedPrimalDual, ScaleHead
from bdgd.operators import RayTransform
from bdgd.training import finetune_jointly, laplace, train_directly, train_greedily

OTHER_ANGLES = RayTransform(replace(A.geometry, angles=tuple(angle + 0.1 for angle in A.geometry.angles)))
BAD_SCANS = {
    "a-tensor": (TRAIN.sinograms, "training needs Scans, images with their sinograms, got Tensor; make them with bdgd.simulate"),
    "no-images": (Scans(TRAIN.sinograms, TRAIN.geometry), "training needs scans with their true images"),
    "other-angles": (ellipse_scans(OTHER_ANGLES, "train", 3), "another geometry than the model's"),
    "other-shape": (ellipse_scans(small_transform(size=16, views=5), "train", 3), r"the sinogram must have shape \(B, 1, 6, 25\)"),
    "other-images": (Scans(TRAIN.sinograms, None, images=TRAIN.images[..., :8]), r"the true image must have shape \(B, 1, 16, 16\)"),
    "float64": (Scans(TRAIN.sinograms.double(), TRAIN.geometry, images=TRAIN.images), "convert it with .float()"),
}
bad_scans = pytest.mark.parametrize(("scans", "message"), BAD_SCANS.values(), ids=BAD_SCANS.keys())


def trainings(scans: Scans, validation: Scans, **arguments: Any) -> Iterator[tuple[Any, ...]]:
    """Every way to train, as (function, model, scans, arguments)."""
    shared = {"validation": validation, "epochs": 1, "batch": 4, **arguments}
    yield train_greedily, cascade(), scans, shared
    yield finetune_jointly, cascade(), scans, shared
    yield train_directly, LearnedPrimalDual(A, iterations=1), scans, shared


@bad_scans
@pytest.mark.parametrize("which", ["training", "validation"])
def test_scans_that_do_not_fit_are_refused_before_any_work(scans: Scans, message: str, which: str, tmp_path: Path) -> None:
    pair = (scans, VALIDATION) if which == "training" else (TRAIN, scans)
    for train, model, first, arguments in trainings(*pair, run=tmp_path / "run", report=lambda record: pytest.fail("it trained")):
        before = state_of(model)
        with pytest.raises(InputError, match=message):
            train(model, first, **arguments)
        assert same(state_of(model), before)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("train", [train_greedily, finetune_jointly, laplace, train_directly])
def test_a_model_of_the_other_kind_is_refused(train: Any) -> None:
    model = cascade() if train is train_directly else LearnedPrimalDual(A, iterations=1)
    names = ("DeepGradientDescent", "LearnedPrimalDual")
    wanted, given = names[::-1] if train is train_directly else names
    with pytest.raises(InputError, match=f"is for a? ?{wanted}, got {given}; .* has bdgd.train_"):
        train(model, TRAIN)


def test_a_training_that_diverges_says_so_by_its_kind(tmp_path: Path) -> None:
    for number, (train, model, scans, arguments) in enumerate(trainings(TRAIN, VALIDATION, learning_rate=1e30, epochs=2)):
        run = tmp_path / str(number)
        with pytest.raises(Diverged, match=r"training diverged in (block-01|joint|direct), epoch 1: .* lower the learning rate"):
            train(model, scans, **arguments, run=run)
        assert issubclass(Diverged, InputError)  # so that a command answers in a sentence
        assert sorted(entry.name for entry in run.iterdir()) in (["settings.json"], ["metrics.jsonl", "settings.json"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initialise": "random"}, "initialise must be one of 'previous', 'fresh', got 'random'"),
        ({"kl_weight": 0.0}, "kl_weight must be above 0"),
        ({"kl_weight": math.inf}, "kl_weight must be finite"),
        ({"first_noise_level": 0.0}, "first_noise_level must be above 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quickly(cascade(), **arguments)


def test_a_batch_that_the_processes_cannot_share_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    for train, model, scans, arguments in trainings(TRAIN, VALIDATION, run=tmp_path / "run"):
        with pytest.raises(InputError, match="the batch of 4 cannot be shared by 3 processes; make it a multiple"):
            train(model, scans, **arguments)
    assert not (tmp_path / "run").exists()


def test_a_refused_training_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """Its error bars too, and for every reason: the scans, or a folder that is in use."""
    (tmp_path / "settings.json").write_text("{}")
    for reason in ({"scans": BAD_SCANS["no-images"][0]}, {"run": tmp_path}):
        scans, arguments = reason.get("scans", TRAIN), {key: value for key, value in reason.items() if key == "run"}
        for train, model, given, shared in trainings(scans, VALIDATION, **arguments):
            model.scale_head = ScaleHead(3)
            before = state_of(model)
            with pytest.raises(InputError):
                train(model, given, **shared)
            assert model.scale_head is not None and same(state_of(model), before)
