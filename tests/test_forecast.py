"""What is known before a training starts: whether it fits into memory, and how long it will take."""

from __future__ import annotations

import os

import pytest
import torch
from tiny_presets import CPU, TINY

from bdgd.apps import forecast
from bdgd.apps.forecast import Pace, in_words, memory_needed, rehearse, require_memory
from bdgd.apps.presets import parse_preset, read_preset
from bdgd.apps.training import make_model
from bdgd.checks import InputError
from bdgd.models import DeepGradientDescent
from bdgd.operators import RayTransform


def test_what_does_not_fit_is_said_with_numbers_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = read_preset("htc60views-mfvi")
    needed = memory_needed(preset, CPU)
    assert 8e9 < needed < 40e9
    monkeypatch.setattr(forecast, "memory_there", lambda device: (4e9, 8e9))
    with pytest.raises(InputError, match=r"needs about .* GB of memory, and 4 GB are free: .*try --images 1500 or --size 128"):
        require_memory(preset, CPU)
    assert "GB are free" in require_memory(parse_preset(TINY, "tiny"), CPU)


def test_the_memory_of_this_machine_is_known() -> None:
    free, total = forecast.memory_there(CPU)
    assert 0 < free <= total


def test_where_the_system_does_not_tell_its_memory_8_gb_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which has no os.sysconf."""
    monkeypatch.delattr(os, "sysconf")
    free, total = forecast.memory_there(CPU)
    assert free > 0 and 0 < total <= 8e9


def test_a_rehearsal_leaves_the_model_alone_and_gives_a_pace() -> None:
    preset = parse_preset(TINY, "tiny")
    model = make_model(preset, RayTransform(preset.geometry))
    assert isinstance(model, DeepGradientDescent)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pace = rehearse(model, 4)
    assert pace.step > 0 and pace.push > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_pace_is_that_of_all_steps_and_of_all_images_pushed() -> None:
    # 2 blocks of two epochs of 6 steps, and 24 + 2 * 3 images pushed
    assert Pace(2.0, 0.5).total(parse_preset(TINY, "tiny")) == pytest.approx(2 * (12 * 2.0 + 30 * 0.5))


def test_a_pace_counts_finetuning_with_the_epochs_and_batch_that_it_has_unless_given() -> None:
    joint = Pace(2.0, 0.5).total(parse_preset(TINY + "[finetuning]\n", "joint")) - Pace(2.0, 0.5).total(parse_preset(TINY, "tiny"))
    assert joint == pytest.approx(2 * (10 * 24 / 16 * 2.0 + 10 * 24 * 2 * 0.5))  # 10 epochs of 24 images, batches of 16, two blocks


def test_times_are_said_in_the_unit_that_fits() -> None:
    assert [in_words(s) for s in (0.2, 75, 600, 9000)] == ["1 s", "75 s", "10 minutes", "2.5 hours"]
