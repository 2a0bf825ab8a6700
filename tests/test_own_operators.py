"""Operators of one's own: whatever class they are, they keep their precision and their tensors, and any shape of sinogram will do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import Tensor, nn
from toys import KINDS, MODELS, DenseOperator, same_posterior, seeded, small_model

import bdgd
from bdgd import backends
from bdgd.inference.witnesses import witnesses_of
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor

IMAGE, SINOGRAM = (1, 6, 8), (1, 5, 6)
MATRIX = torch.randn(30, 48, generator=torch.Generator().manual_seed(0)) / 10


class Exact(bdgd.LinearOperator):
    """The matrix as the library has its operators: inside autocast it stays in its own precision."""

    def __init__(self) -> None:
        super().__init__(IMAGE, SINOGRAM)

    def _apply(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ MATRIX.T).reshape(-1, *SINOGRAM)

    def _adjoint(self, y: Tensor) -> Tensor:
        return (y.flatten(1) @ MATRIX).reshape(-1, *IMAGE)


class Learned(nn.Module):
    """The matrix as a module, with weights that could be trained."""

    domain_shape, range_shape = IMAGE, SINOGRAM

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.matrix = nn.Parameter(factor * MATRIX)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix.T).reshape(-1, *SINOGRAM)

    @property
    def T(self) -> DenseOperator:
        return DenseOperator(self.matrix.T, SINOGRAM, IMAGE)


def bare(shape: tuple[int, ...] = SINOGRAM) -> DenseOperator:
    return DenseOperator(MATRIX, IMAGE, shape)


def start(A: bdgd.LinearOperator, y: Tensor) -> Tensor:
    return 0.3 * A.T(y)


def model_of(name: str, A: bdgd.LinearOperator) -> Reconstructor:
    model = small_model(name, A)
    if isinstance(model, DeepGradientDescent):
        model.initial = start
    return model


def scans_of(shape: tuple[int, ...] = SINOGRAM, count: int = 6) -> bdgd.Scans:
    images = torch.rand(count, *IMAGE, generator=seeded(3))
    return bdgd.simulate(bare(shape), images, bdgd.GaussianNoise(0.01), generator=seeded(4))


@pytest.mark.parametrize("name", MODELS)
def test_a_bare_operator_is_not_rounded_by_bfloat16(name: str) -> None:
    """Neither where draws ask for it, nor where the caller does."""
    y = scans_of().sinograms
    one, other = model_of(name, bare()), model_of(name, Exact())
    expected = bdgd.reconstruct(other, y, draws=3, precision="bfloat16")
    assert same_posterior(bdgd.reconstruct(one, y, draws=3, precision="bfloat16"), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert same_posterior(bdgd.reconstruct(one, y, draws=3, precision="bfloat16"), expected)


@pytest.mark.parametrize("misfit", ["gaussian", "poisson"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cascade_is_trained_jointly_on_a_bare_operator_as_on_one_of_the_library(
    kind: str, misfit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the convolutions of a training are in bfloat16 too."""
    monkeypatch.setattr(backends, "prefers_bfloat16", lambda device: True)
    found = []
    for A in (bare(), Exact()):
        model = DeepGradientDescent(A, blocks=2, last_layer=kind, initial=start, gradient_scale=3.0, misfit=misfit)
        bdgd.finetune_jointly(model, scans_of(), epochs=1, batch=3, generator=seeded())
        found.append(model.fingerprint())
    assert found[0] == found[1]


class Foreign(DenseOperator):
    """What NumPy or another program computes: nothing is differentiated through it."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.detach())

    @property
    def T(self) -> DenseOperator:
        return Foreign(self.matrix.T, self.range_shape, self.domain_shape)


def test_an_operator_without_gradients_is_for_greedy_training_alone(tmp_path: Path) -> None:
    """Through it the other two would follow gradients that are wrong, and say nothing."""
    A = Foreign(MATRIX, IMAGE, SINOGRAM)
    found = []
    for operator in (A, bare()):
        model = DeepGradientDescent(operator, blocks=2, initial=start, gradient_scale=3.0)
        bdgd.train_greedily(model, scans_of(), epochs=1, generator=seeded())
        found.append(model.fingerprint())
    assert found[0] == found[1]
    with_weights = Foreign(nn.Parameter(MATRIX), IMAGE, SINOGRAM)  # whose own gradients say nothing of those of its input
    for operator in (A, with_weights):
        for train, name in ((bdgd.finetune_jointly, "mean_field"), (bdgd.train_directly, "primal_dual")):
            with pytest.raises(bdgd.InputError, match=r"which gives no gradients; make it a bdgd\.LinearOperator"):
                train(model_of(name, operator), scans_of(), run=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("train", "name"), [(bdgd.finetune_jointly, "mean_field"), (bdgd.train_directly, "primal_dual")])
def test_training_through_the_operator_does_not_depend_on_the_default_precision(train: Any, name: str) -> None:
    found, before = [], torch.get_default_dtype()
    for default in (torch.float32, torch.float64):
        model, scans = model_of(name, Exact()), scans_of()
        try:
            torch.set_default_dtype(default)
            train(model, scans, epochs=1, batch=3, generator=seeded())
        finally:
            torch.set_default_dtype(before)
        found.append(model.fingerprint())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["point", "primal_dual"])
def test_an_operator_that_is_a_module_is_no_part_of_the_model(name: str, tmp_path: Path) -> None:
    """Training does not change it, files do not have it, and loading does not overwrite it."""
    A, scans, path = Learned(), scans_of(), tmp_path / "model.safetensors"
    model = model_of(name, A)
    train = bdgd.finetune_jointly if isinstance(model, DeepGradientDescent) else bdgd.train_directly
    train(model, scans, epochs=1, learning_rate=1e-2, last_learning_rate=1e-3)  # type: ignore[arg-type]
    assert model.A is A and torch.equal(A.matrix, MATRIX)
    bdgd.save(model, path)
    mine = Learned(1.1)
    loaded = bdgd.load(path, operator=mine, initial=start)  # type: ignore[arg-type]
    assert loaded.A is mine and torch.equal(mine.matrix, 1.1 * MATRIX)
    assert loaded.fingerprint() == model.fingerprint()


def test_an_operator_may_call_something_else_its_geometry(tmp_path: Path) -> None:
    class Cone(DenseOperator):
        geometry = "cone"

    model = model_of("mean_field", Cone(MATRIX, IMAGE, SINOGRAM))
    assert isinstance(model, DeepGradientDescent) and model.geometry is None
    bdgd.train_greedily(model, scans_of(count=20), epochs=1, augment=True, run=tmp_path / "run")
    calibration = bdgd.calibrate(model, scans_of(count=20), draws=2)
    bdgd.save(model.with_calibration(calibration), tmp_path / "model.safetensors")
    assert bdgd.load(tmp_path / "model.safetensors", operator=model.A, initial=start).calibration == calibration


@pytest.mark.parametrize("shape", [(30,), (5, 6), (2, 5, 3), (2, 1, 5, 3)], ids=str)
def test_a_scale_head_takes_sinograms_of_any_shape(shape: tuple[int, ...]) -> None:
    model, scans = model_of("mean_field", bare(shape)), scans_of(shape)
    assert isinstance(model, DeepGradientDescent)
    bdgd.train_scale_head(model, scans, epochs=1, draws=2)
    posterior = bdgd.reconstruct(model, scans.sinograms, draws=2)
    alone = bdgd.reconstruct(model, scans.sinograms[3:4], draws=2)
    assert posterior.std.shape == (6, *IMAGE) and torch.equal(posterior.std[3:4], alone.std)


@pytest.mark.parametrize("shape", [(30,), (2, 5, 3), (2, 1, 5, 3)], ids=str)
def test_learned_primal_dual_says_which_sinograms_it_takes(shape: tuple[int, ...]) -> None:
    with pytest.raises(bdgd.InputError, match=r"learned primal-dual needs an operator to sinograms of shape \(1, V, D\)"):
        LearnedPrimalDual(bare(shape), 1)


@pytest.mark.parametrize("noise", [bdgd.GaussianNoise(0.01), None], ids=["known noise", "unknown noise"])
@pytest.mark.parametrize("shape", [(30,), (1, 5, 6), (2, 1, 5, 3)], ids=str)
def test_calibration_and_alarm_take_sinograms_of_any_shape(shape: tuple[int, ...], noise: bdgd.GaussianNoise | None) -> None:
    """With the same rays in the same order they say the same, but for what a detector's neighbours are."""
    scans = replace(scans_of(shape, 40), noise=noise)
    model = model_of("mean_field", bare(shape))
    model.blocks[-1].log_noise.data.fill_(-2.0)
    model = model.with_calibration(bdgd.calibrate(model, scans, draws=2, generator=seeded(5)))
    posterior = bdgd.reconstruct(model, scans.sinograms[:3], draws=2)
    found = bdgd.alarm(model, scans.sinograms[:3], posterior)
    assert set(found.values) == {"misfit", "structure", "uncertainty", "invisible", "detail"}
    expected = witnesses_of(model_of("mean_field", bare()), scans.sinograms[:3].reshape(3, *SINOGRAM), posterior, noise)
    for name in ("invisible", "uncertainty", "detail") + (("misfit",) if noise else ()):
        torch.testing.assert_close(found.values[name], expected[name], rtol=1e-4, atol=1e-7)


class Careless(Exact):
    """Gives what it should not."""

    def __init__(self, wrong: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.wrong = wrong

    def _apply(self, x: Tensor) -> Tensor:
        return self.wrong(super()._apply(x))


@pytest.mark.parametrize(
    ("wrong", "got"),
    [(lambda y: y[:, 0], r"torch.float32 of shape \(2, 5, 6\)"), (Tensor.double, r"torch.float64 of shape \(2, 1, 5, 6\)")],
    ids=["shape", "precision"],
)
def test_what_an_operator_gives_is_checked(wrong: Callable[[Tensor], Tensor], got: str) -> None:
    with refusal(rf"what Careless.* gives must be torch.float32 of shape \(2, 1, 5, 6\), got {got}; correct the method"):
        Careless(wrong)(torch.zeros(2, *IMAGE))


@pytest.mark.parametrize("use", [DeepGradientDescent, lambda A: bdgd.tv(A, torch.zeros(1, 1, 5, 25))], ids=["model", "tv"])
def test_a_geometry_is_no_operator(use: Callable[[Any], Any]) -> None:
    with refusal(r"needs an operator such as bdgd.RayTransform\(geometry\), .* got ParallelBeam"):
        use(bdgd.ParallelBeam.sparse(image_size=16, views=5))


def test_operators_are_applied_by_a_call_and_start_from_a_function() -> None:
    with refusal(r"A @ B is for two operators, got Tensor; A\(x\) applies one to images"):
        Exact() @ torch.zeros(2, *IMAGE)  # type: ignore[operator]
    with refusal(r"initial must be a function of \(A, y\) that gives x_0, such as bdgd.fbp, got 'fbp'"):
        DeepGradientDescent(Exact(), initial="fbp")  # type: ignore[arg-type]


class Sampled(bdgd.LinearOperator):
    """Sees half of the pixels: its transpose fits the data exactly, as a pseudo-inverse does."""

    def __init__(self) -> None:
        super().__init__((1, 8, 8), (32,))
        self.seen = torch.randperm(64, generator=seeded())[:32]

    def _apply(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, self.seen]

    def _adjoint(self, y: Tensor) -> Tensor:
        return torch.zeros(len(y), 64).index_copy_(1, self.seen, y).reshape(-1, 1, 8, 8)


def trained_from(start: Callable[[Any, Tensor], Tensor]) -> bdgd.training.History:
    A, generator = Sampled(), seeded()
    scans = bdgd.simulate(A, torch.rand(24, 1, 8, 8, generator=generator), bdgd.GaussianNoise(0.05), generator=generator)
    model = DeepGradientDescent(A, blocks=1, initial=start, gradient_scale=1.0)
    return bdgd.train_greedily(model, scans, epochs=20, batch=8, learning_rate=5e-3, generator=generator)


def test_a_start_that_fits_the_data_exactly_is_never_left_and_said() -> None:
    with pytest.warns(UserWarning, match="block 1 leaves every image as it was: .* give the model another `initial`"):
        stuck = trained_from(lambda A, y: A.T(y))
    moved = trained_from(lambda A, y: 0.5 * A.T(y))
    assert moved["validation_psnr"][-1] > stuck["validation_psnr"][-1] + 1
