"""Training: the loop, greedy training of every last layer, joint fine-tuning, direct training, and what they refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import KINDS, dense, seeded, small_transform

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.data import GaussianNoise, Scans, ellipse_images, simulate
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, GradientBlock, LearnedPrimalDual
from bdgd.operators import LinearOperator, ParallelBeam, RayTransform
from bdgd.training import History, finetune_jointly, greedy, train_directly, train_greedily
from bdgd.training.greedy import Frontier
from bdgd.training.loop import Trainer
from bdgd.training.objective import CascadeObjective
from bdgd.training.run import RunFolder

COLUMNS = {"stage", "validation_psnr", "validation_nll", "noise_level"}
State = dict[str, Tensor]


def ellipse_scans(A: LinearOperator, which: str, count: int) -> Scans:
    images = ellipse_images(which, count, A.domain_shape[-1])
    return simulate(A, images, GaussianNoise(0.01), generator=torch.Generator().manual_seed(count))


A = small_transform(size=16, views=6)
TRAIN, VALIDATION = ellipse_scans(A, "train", 12), ellipse_scans(A, "validation", 5)


def cascade(last_layer: str = "mean_field", blocks: int = 2, **arguments: Any) -> DeepGradientDescent:
    return DeepGradientDescent(A, blocks=blocks, last_layer=last_layer, gradient_scale=30.0, **arguments)


def quickly(model: DeepGradientDescent, scans: Scans = TRAIN, **arguments: Any) -> History:
    """Greedy training that takes a moment."""
    return train_greedily(model, scans, **{"validation": VALIDATION, "epochs": 2, "batch": 4, **arguments})


def state_of(module: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name].nan_to_num(7), other[name].nan_to_num(7)) for name in one)


# --- greedy training -----------------------------------------------------------------------------------------------


class Watch:
    """Notes with what each fit of a block starts: its stage, the block's weights, and the images it is trained on."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.stages: list[str] = []
        self.states: list[State] = []
        self.images: list[Tensor] = []
        self.rates: list[float] = []
        fit = Trainer.fit

        def noting_fit(trainer: Trainer, stage: str, *arguments: Any, **options: Any) -> None:
            self.stages.append(stage)
            self.states.append(state_of(trainer.objective.block))
            self.images.append(trainer.objective.x.clone())
            fit(trainer, stage, *arguments, **options)
            self.rates.append(trainer.optimiser.param_groups[0]["lr"])

        patch.setattr(Trainer, "fit", noting_fit)


@dataclass(frozen=True)
class Trained:
    """A tiny cascade that was really trained, with all that its training said and wrote."""

    model: DeepGradientDescent
    train: Scans
    validation: Scans
    history: History
    reports: list[dict[str, Any]]
    run: Path
    watch: Watch


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    A = RayTransform(ParallelBeam.sparse(image_size=24, views=10))
    train, validation = ellipse_scans(A, "train", 96), ellipse_scans(A, "validation", 24)
    model = DeepGradientDescent(A, blocks=3, gradient_scale=30.0)
    run, reports = tmp_path_factory.mktemp("runs") / "tiny", []
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(patch)
        history = train_greedily(
            model, train, validation=validation, epochs=6, batch=8, learning_rate=2e-3, run=run, report=reports.append, generator=None
        )
    return Trained(model, train, validation, history, reports, run, watch)


def test_a_tiny_cascade_gains_three_decibels_over_fbp(trained: Trained) -> None:
    y, truth = trained.validation.sinograms, trained.validation.images
    start = float(psnr(fbp(trained.model.A, y), truth).mean())
    assert trained.history["validation_psnr"][-1] > start + 3
    assert float(psnr(reconstruct(trained.model, y, draws=3, generator=seeded()).mean, truth).mean()) > start + 3


def test_every_block_improves(trained: Trained) -> None:
    for column, sign in (("validation_psnr", 1), ("validation_nll", -1)):
        values = [sign * value for value in trained.history[column]]
        assert values == sorted(values) and len(set(values)) == 3


def test_the_history_has_one_record_per_block(trained: Trained) -> None:
    assert [set(record) for record in trained.history.stages] == [COLUMNS] * 3
    assert trained.history["stage"] == ["block-01", "block-02", "block-03"]
    assert trained.history["no such column"] == [None] * 3


def test_every_epoch_and_every_block_is_reported(trained: Trained) -> None:
    stages = [record for record in trained.reports if "loss" not in record]
    epochs = [record for record in trained.reports if "loss" in record]
    assert stages == trained.history.stages
    assert [(record["stage"], record["epoch"], record["step"]) for record in epochs] == [
        (f"block-{k:02d}", epoch, 12 * epoch) for k in (1, 2, 3) for epoch in range(1, 7)
    ]
    for k in range(3):
        assert epochs[6 * k + 5]["loss"] < epochs[6 * k]["loss"]


def test_blocks_stay_as_they_were_when_images_were_pushed_through(trained: Trained) -> None:
    """Every block was trained on what the blocks of the finished model make of the images, with one draw per image."""
    model, watch = trained.model, trained.watch
    train, held_out = Frontier.at_start(model, trained.train), Frontier.at_start(model, trained.validation)
    assert watch.stages == trained.history["stage"]
    for stage, block, images, quality in zip(watch.stages, model.blocks, watch.images, trained.history["validation_psnr"], strict=True):
        assert torch.equal(train.state.x, images)
        train.move(train.behind(model, block, keyed_generator(0, stage, "push")))
        held_out.move(held_out.behind(model, block, keyed_generator(0, stage, "validation")))
        assert held_out.quality() == quality


def test_the_run_folder_has_the_same_blocks_and_numbers(trained: Trained) -> None:
    folder = RunFolder(trained.run, settings_in(trained.run), resume=True)
    for stage, block in zip(trained.history["stage"], trained.model.blocks, strict=True):
        weights = folder.finished(stage)
        assert weights is not None and same(weights, state_of(block))
    assert folder.records() == [{key: value for key, value in record.items() if key != "epochs"} for record in trained.reports]


def settings_in(run: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((run / "settings.json").read_text())
    return settings


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
    quickly(model, epochs=1, revive=True)
    assert same(watch.states[0], before[0])
    for k in (1, 2):
        assert same(watch.states[k], state_of(model.blocks[k - 1]))
        assert not same(state_of(model.blocks[k]), state_of(model.blocks[k - 1]))
    assert revived == [min(len(TRAIN), greedy.BATCH)] * 2, "dead channels are looked for before the second and the third block"


def test_a_fresh_block_starts_from_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = cascade(blocks=3), Watch(monkeypatch)
    before = [state_of(block) for block in model.blocks]
    quickly(model, epochs=1, initialise="fresh")
    assert all(same(start, own) for start, own in zip(watch.states, before, strict=True))
    assert not same(before[0], before[1])


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
    assert frontier.quality() == history["validation_psnr"][0]


def test_an_operator_without_a_geometry_trains_too() -> None:
    bare = dense(A)

    def initial(operator: Any, y: Tensor) -> Tensor:
        return operator.T(y) / 100

    scans = Scans(TRAIN.sinograms, None, images=TRAIN.images)
    model = DeepGradientDescent(bare, blocks=1, gradient_scale=30.0, initial=initial)
    history = quickly(model, scans, validation=None, epochs=3, augment=True)
    start = float(psnr(initial(bare, TRAIN.sinograms), TRAIN.images).mean())
    assert history["validation_psnr"][0] > start


# --- the whole model -----------------------------------------------------------------------------------------------


def test_joint_finetuning_lowers_the_loss_of_the_cascade(trained: Trained) -> None:
    model, losses = DeepGradientDescent(trained.model.A, blocks=3, gradient_scale=30.0), []
    model.load_state_dict(trained.model.state_dict())
    objective = CascadeObjective(model, trained.train, model.start(trained.train.sinograms), 1.0)
    index, noise = torch.arange(96), objective.draw_noise(96, seeded())
    with torch.no_grad():
        before = float(objective(index, noise))
    schedule = {"epochs": 2, "batch": 8, "learning_rate": 1e-4}
    history = finetune_jointly(model, trained.train, validation=trained.validation, **schedule, report=losses.append, generator=seeded())
    with torch.no_grad():
        assert float(objective(index, noise)) < before - 0.003
    assert history["stage"] == ["joint"] and set(history.stages[0]) == COLUMNS
    assert history["validation_psnr"][0] > trained.history["validation_psnr"][-1]
    assert losses[1]["loss"] < losses[0]["loss"] and losses[2] == history.stages[0]
    assert not any(same(state_of(a), state_of(b)) for a, b in zip(model.blocks, trained.model.blocks, strict=True))


def test_joint_finetuning_estimates_the_noise_level_where_it_is_not_trained() -> None:
    model = cascade("point")
    quickly(model, epochs=1)
    before = float(model.noise_level)
    history = finetune_jointly(model, TRAIN, validation=VALIDATION, epochs=2, batch=4, learning_rate=1e-3)
    error = reconstruct(model, VALIDATION.sinograms).mean - VALIDATION.images
    assert float(model.noise_level) == pytest.approx(float(error.square().mean().sqrt()), rel=1e-4) != pytest.approx(before, rel=1e-4)
    assert history["noise_level"] == [pytest.approx(float(model.noise_level))]


def test_learned_primal_dual_trains_directly() -> None:
    model, records = LearnedPrimalDual(A, iterations=2), []
    assert math.isnan(float(model.noise_level))
    history = train_directly(model, TRAIN, validation=VALIDATION, epochs=6, batch=4, report=records.append, generator=seeded())
    assert records[5]["loss"] < 0.8 * records[0]["loss"] and records[6] == history.stages[0]
    assert history["stage"] == ["direct"] and set(history.stages[0]) == COLUMNS
    images = reconstruct(model, VALIDATION.sinograms).mean
    assert float(model.noise_level) == pytest.approx(float((images - VALIDATION.images).square().mean().sqrt()), rel=1e-4)
    assert history["validation_psnr"] == [pytest.approx(float(psnr(images, VALIDATION.images).mean()), abs=1e-3)]


# --- what is refused -----------------------------------------------------------------------------------------------

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


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    for number, (train, model, scans, arguments) in enumerate(trainings(TRAIN, VALIDATION, learning_rate=1e30, epochs=2)):
        run = tmp_path / str(number)
        with pytest.raises(InputError, match=r"training diverged in (block-01|joint|direct), epoch 1: .* lower the learning rate"):
            train(model, scans, **arguments, run=run)
        assert sorted(entry.name for entry in run.iterdir()) in (["settings.json"], ["metrics.jsonl", "settings.json"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initialise": "random"}, "initialise must be one of 'previous', 'fresh', got 'random'"),
        ({"kl_weight": 0.0}, "kl_weight must be above 0"),
        ({"kl_weight": math.inf}, "kl_weight must be finite"),
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
