"""What a missing model would cost: the preset's numbers over the measured speed, and a sentence that can be followed."""

from __future__ import annotations

import pytest

from bdgd.apps.costs import BLOCK_IMAGES_PER_SECOND, UNROLLED_IMAGES_PER_SECOND, training_cost, training_seconds
from bdgd.apps.presets import parse_preset, preset_names, read_preset
from bdgd.models import load, pretrained


def test_a_cascade_costs_blocks_times_epochs_times_images() -> None:
    preset = read_preset("sparse30-mfvi")
    assert training_seconds(preset) == pytest.approx(10 * 25 * 4000 / BLOCK_IMAGES_PER_SECOND[16])
    joint = parse_preset(preset.text + "\n[finetuning]\nepochs = 16\n", "joint")
    assert training_seconds(joint) - training_seconds(preset) == pytest.approx(10 * 16 * 4000 / UNROLLED_IMAGES_PER_SECOND)


def test_primal_dual_costs_iterations_times_epochs_times_images() -> None:
    assert training_seconds(read_preset("sparse30-lpd")) == pytest.approx(10 * 50 * 4000 / UNROLLED_IMAGES_PER_SECOND)


def test_epochs_that_are_not_given_cost_as_many_as_are_trained() -> None:
    direct = read_preset("sparse30-lpd")
    assert training_seconds(parse_preset(direct.text.replace("epochs = 50\n", ""), "direct")) == pytest.approx(training_seconds(direct))
    text = read_preset("sparse30-mfvi").text
    given, left_out = (parse_preset(f"{text}\n[finetuning]\n{line}", "joint") for line in ("epochs = 10\n", ""))
    assert training_seconds(given) == pytest.approx(training_seconds(left_out))


@pytest.mark.parametrize("name", [name for name in pretrained() if name in preset_names() and name.endswith("mfvi")])
def test_no_training_is_said_to_take_longer_than_the_shipped_one_took(name: str) -> None:
    """Weights may have been trained before the code got faster, not before it got slower."""
    assert 10 < training_seconds(read_preset(name)) <= 1.3 * load(name).provenance["seconds"]


def test_the_sentence_names_the_command_and_the_seconds() -> None:
    told = training_cost("sparse30-dgd", seed=3).told()
    assert "bdgd train sparse30-dgd -o runs/sparse30-dgd-seed3 --seed 3" in told and "about 53 s on one NVIDIA H200" in told
    assert "no preset" in training_cost("sparse30-magic").told()
