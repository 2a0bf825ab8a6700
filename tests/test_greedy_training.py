"""Greedy training: every last layer learns, a block starts where it should, and the generator alone decides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import TRAIN, VALIDATION, A, State, Watch, cascade, ellipse_scans, quickly, same, state_of
from torch import Tensor
from toys import KINDS, dense, seeded

from bdgd.classical import fbp
from bdgd.data import Scans
from bdgd.keyed import keyed_generator
from bdgd.metrics import mean_psnr, psnr
from bdgd.models import DeepGradientDescent, GradientBlock
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.training import finetune_jointly, greedy, train_greedily
from bdgd.training.frontier import Frontier
from bdgd.training.loop import Trainer


def scaled(scans: Scans, factor: float) -> Scans:
    assert scans.images is not None
    return replace(scans, sinograms=scans.sinograms * factor, images=scans.images * factor)


@pytest.mark.parametrize("kind", KINDS)
def test_every_last_layer_trains(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "ATTEMPTS", 1)
    model, losses = cascade(kind), []
    before = state_of(model)
    history = quickly(model, epochs=4, report=lambda record: losses.append(record.get("loss")))
    assert losses[3] < losses[0] and losses[8] < losses[5]  # four epochs, then the block's own record without a loss
    assert all(math.isfinite(value) for record in history.stages for value in record.values() if not isinstance(value, str))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value.nan_to_num(7), before[name].nan_to_num(7))}
    assert changed == set(before)
    assert float(model.noise_level) == pytest.approx(history["noise_level"][-1])


@pytest.mark.parametrize("kind", ["point", "dropout"])
@pytest.mark.parametrize("validation", [VALIDATION, None], ids=["validation", "training"])
def test_a_noise_level_that_is_not_trained_is_estimated(kind: str, validation: Scans | None) -> None:
    model = cascade(kind)
    history = quickly(model, validation=validation, epochs=1)
    for level, nll in zip(history["noise_level"], history["validation_nll"], strict=True):
        # the root mean square error is the level of the highest likelihood, and there half a nat is the error's part
        assert nll == pytest.approx(0.5 + math.log(level) + 0.5 * math.log(2 * math.pi), rel=1e-5)
    if kind == "point":
        frontier = Frontier.at_start(model, validation or TRAIN)
        for block in model.blocks:
            frontier.move(frontier.behind(model, block, seeded()))
        assert float((frontier.state.x - frontier.truth).square().mean().sqrt()) == pytest.approx(float(model.noise_level), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_starts_from_all_weights_of_the_block_before(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch, revived = cascade(kind, blocks=3), Watch(monkeypatch), []
    monkeypatch.setattr(greedy, "ATTEMPTS", 1)
    monkeypatch.setattr(GradientBlock, "revive", lambda block, x, gradient, generator: revived.append(len(x)))
    before = [state_of(block) for block in model.blocks]
    quickly(model, epochs=1, revive=True, first_noise_level=math.exp(-3))  # that of the block's own start
    assert same(watch.states[0], before[0])
    for k in (1, 2):
        assert same(watch.states[k], state_of(model.blocks[k - 1]))
        assert not same(state_of(model.blocks[k]), state_of(model.blocks[k - 1]))
    assert revived == [min(len(TRAIN), greedy.BATCH)] * 2, "dead channels are looked for before the second and the third block"


def test_a_fresh_block_starts_from_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = cascade(blocks=3), Watch(monkeypatch)
    before = [state_of(block) for block in model.blocks]
    quickly(model, epochs=1, initialise="fresh", first_noise_level=math.exp(-3))  # that of their own starts
    assert all(same(start, own) for start, own in zip(watch.states, before, strict=True))
    assert not same(before[0], before[1])


@pytest.mark.parametrize(("initialise", "set_in"), [("fresh", [0, 1, 2]), ("previous", [0])])
def test_the_first_noise_level_is_that_of_blocks_that_start_from_no_other(
    initialise: str, set_in: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    monkeypatch.setattr(greedy, "ATTEMPTS", 1)
    quickly(cascade(blocks=3), epochs=1, initialise=initialise, first_noise_level=1 / 128)
    starts = [float(state["log_noise"].exp()) for state in watch.states]
    assert [k for k, start in enumerate(starts) if start == pytest.approx(1 / 128)] == set_in
    quickly(cascade("point"), epochs=1, first_noise_level=1 / 128)  # has none to train, so nothing is set


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("initialise", ["fresh", "previous"])
def test_the_first_block_starts_from_the_error_of_the_first_images_where_its_noise_level_is_trained(
    kind: str, initialise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the unit that the network works in, and on the training images alone."""
    watch, model, scale = Watch(monkeypatch), cascade(kind, value_scale=0.02), 0.02
    monkeypatch.setattr(greedy, "ATTEMPTS", 1)
    own, second = state_of(model.blocks[0]), state_of(model.blocks[1])
    quickly(model, scaled(TRAIN, scale), validation=scaled(VALIDATION, scale), epochs=1, initialise=initialise)
    first = watch.states[0].pop("log_noise")
    if model.blocks[0].last.trains_noise_level:
        assert float(first.exp()) == pytest.approx(float((fbp(A, TRAIN.sinograms) - TRAIN.images).square().mean().sqrt()), rel=1e-4)
    else:
        assert first.isnan()
    own.pop("log_noise")
    assert same(watch.states[0], own), "and from its own weights"
    assert same(watch.states[1], second if initialise == "fresh" else watch.ends[0] | {"log_noise": watch.states[1]["log_noise"]})


def test_the_noise_level_of_the_first_block_is_about_its_error_after_a_short_training() -> None:
    """Of limited arcs the first error is large; the noise level moves by the learning rate per step at most."""
    arc = RayTransform(ParallelBeam.limited(image_size=16, degrees=20))
    scans = ellipse_scans(arc, "train", 12)
    model = DeepGradientDescent(arc, blocks=1, gradient_scale=30.0)
    history = quickly(model, scans, validation=scans, epochs=4)
    error = 10 ** (-history["validation_psnr"][0] / 20)
    assert error > 3 * math.exp(-3), "else this shows nothing"
    assert 0.7 * error < history["noise_level"][0] < 1.5 * error


def test_images_without_any_error_leave_the_noise_level_where_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, nothing = Watch(monkeypatch), Scans(torch.zeros_like(TRAIN.sinograms), None, images=torch.zeros_like(TRAIN.images))
    model = DeepGradientDescent(A, blocks=1, gradient_scale=30.0, initial=lambda operator, y: operator.T(y))
    quickly(model, nothing, epochs=1)
    assert float(watch.states[0]["log_noise"]) == -3.0


GAINS = {"first": (0.09, 0.05, -0.4), "second": (-0.4, 0.09, 0.05), "third": (-0.4, 0.05, 0.09)}


@pytest.mark.parametrize("best", GAINS)
def test_of_attempts_that_all_gain_too_little_the_best_stands(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, model = Watch(monkeypatch), cascade()
    gains = {"block-01": 1.0} | dict(zip(("block-02", "block-02-again-1", "block-02-again-2"), GAINS[best], strict=True))
    monkeypatch.setattr(greedy, "_gain", lambda *arguments: gains[watch.stages[-1]])
    quickly(model)
    assert watch.stages == list(gains)
    assert [same(state_of(model.blocks[1]), end) for end in watch.ends[1:]] == [best == name for name in GAINS]


def test_a_block_that_hardly_gains_is_trained_again_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "LEAST_GAIN", 1e6)  # nothing is enough
    watch = Watch(monkeypatch)
    reports: list[dict[str, Any]] = []
    history = quickly(cascade(), report=reports.append)
    assert watch.stages == ["block-01", "block-02", "block-02-again-1", "block-02-again-2"]
    assert same(watch.states[1], watch.states[2]) and same(watch.states[1], watch.states[3])
    assert [rate / watch.rates[0] for rate in watch.rates] == pytest.approx([1, 1, 0.5, 0.25])
    assert [report["stage"] for report in reports if "loss" in report] == [stage for stage in watch.stages for _ in range(2)]
    assert history["stage"] == ["block-01", "block-02"]


def test_a_fresh_block_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "LEAST_GAIN", 1e6)
    watch = Watch(monkeypatch)
    quickly(cascade(), initialise="fresh")
    assert watch.stages == ["block-01", "block-02"]


def test_the_generator_decides_and_nothing_else() -> None:
    def weights(**arguments: Any) -> State:
        model = cascade()
        quickly(model, **arguments)
        return state_of(model)

    torch.manual_seed(1)  # the global generator has no say
    first = weights(generator=seeded(3))
    torch.manual_seed(2)
    assert same(first, weights(generator=seeded(3)))
    assert not same(first, weights(generator=seeded(4)))
    assert same(weights(), weights(generator=None))


def test_training_leaves_the_scans_alone() -> None:
    before = (TRAIN.images.clone(), TRAIN.sinograms.clone(), VALIDATION.images.clone(), VALIDATION.sinograms.clone())
    quickly(cascade(), augment=True)
    after = (TRAIN.images, TRAIN.sinograms, VALIDATION.images, VALIDATION.sinograms)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_augmenting_changes_what_is_shown_but_not_what_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Tensor] = []
    fit = Trainer.fit

    def noting_fit(trainer: Trainer, *arguments: Any, **options: Any) -> None:
        begin = trainer.objective.begin_epoch
        trainer.objective.begin_epoch = lambda generator: (begin(generator), shown.append(trainer.objective.truth.clone()))
        fit(trainer, *arguments, **options)

    monkeypatch.setattr(Trainer, "fit", noting_fit)
    plain, augmented = cascade(blocks=1), cascade(blocks=1)
    quickly(plain)
    history = quickly(augmented, augment=True, epochs=8)
    assert all(torch.equal(truth, TRAIN.images) for truth in shown[:2])
    assert len({truth.numpy().tobytes() for truth in shown[2:]}) > 2
    frontier = Frontier.at_start(augmented, VALIDATION)
    frontier.move(frontier.behind(augmented, augmented.blocks[0], keyed_generator(0, "block-01", "validation")))
    assert mean_psnr(frontier.state.x, frontier.truth) == pytest.approx(history["validation_psnr"][0], abs=1e-5)


def test_an_operator_without_a_geometry_trains_too() -> None:
    bare = dense(A)

    def initial(operator: Any, y: Tensor) -> Tensor:
        return operator.T(y) / 100

    scans = Scans(TRAIN.sinograms, None, images=TRAIN.images)
    model = DeepGradientDescent(bare, blocks=1, gradient_scale=30.0, initial=initial)
    history = quickly(model, scans, validation=None, epochs=3, augment=True)
    start = float(psnr(initial(bare, TRAIN.sinograms), TRAIN.images).mean())
    assert history["validation_psnr"][0] > start


@pytest.mark.parametrize("train", [train_greedily, finetune_jointly])
def test_a_first_image_with_parameters_of_its_own_is_taken_as_it_is(train: Any) -> None:
    start = torch.nn.Conv2d(1, 1, 3, padding=1)
    model = DeepGradientDescent(A, 2, initial=lambda A, y: start(A.T(y)))
    train(model, TRAIN, epochs=2, batch=4, generator=seeded())
    assert all(parameter.grad is None for parameter in start.parameters())


def test_an_empty_slice_does_not_undo_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Air alone is matched exactly, at an infinite PSNR, and tells no gain; the block was restored to its start three times over."""
    assert TRAIN.images is not None
    images, sinograms = (tensor.index_fill(0, torch.tensor([3]), 0) for tensor in (TRAIN.images, TRAIN.sinograms))
    blank = replace(TRAIN, images=images, sinograms=sinograms)
    watch, model = Watch(monkeypatch), cascade()
    history = quickly(model, blank, validation=None)
    assert all(math.isfinite(value) for value in history["validation_psnr"])
    assert len(watch.stages) == 2 and not any("again" in stage for stage in watch.stages)
    assert same(state_of(model.blocks[0]), watch.ends[0]), "the block is as its training left it"
