"""bfloat16 inside the blocks, where it is faster: the image and what draws say of it must not notice. Float32 where it is asked for."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bdgd import backends
from bdgd.apps.memory import keep_freed_memory
from bdgd.backends import ExactConvolutions, fast_convolutions, training_precision
from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.inference import reconstruct
from bdgd.inference.sampling import _precision
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent, GradientBlock, LearnedPrimalDual, load, ray_transform
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.training import train_greedily
from bdgd.training.objective import BlockObjective, DirectObjective


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Training as on a CPU with instructions for bfloat16, until it is called with False; a CPU without them emulates it."""

    def use(fast: bool) -> None:
        monkeypatch.setattr(backends, "prefers_bfloat16", lambda device: fast)

    use(True)
    return use


def block_and_data(kind: str, generator: torch.Generator) -> tuple[GradientBlock, tuple[Tensor, Tensor, Tensor]]:
    A = RayTransform(ParallelBeam.sparse(image_size=32, views=9))
    x = random_ellipses(4, 32, generator=generator)
    state = DeepGradientDescent(A, 1).begin(simulate(A, x, GaussianNoise(0.01), generator=generator).sinograms)
    block = GradientBlock(kind)
    block.reset(generator)
    return block, (state.x, state.gradient, x)


@pytest.mark.parametrize("preferred", [True, False])
def test_bfloat16_is_for_devices_that_prefer_it(preferred: bool, bfloat16: Callable[[bool], None]) -> None:
    bfloat16(preferred)
    with fast_convolutions(torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu") == preferred
    expected = torch.bfloat16 if preferred else torch.float32
    assert training_precision(torch.device("cpu")) == expected
    assert training_precision(torch.device("cpu"), round_images=True) == torch.float32
    assert training_precision(torch.device("cuda"), round_images=True) == torch.bfloat16


@pytest.mark.parametrize(
    "answers", [{}, {"_is_avx512_bf16_supported": True}, {"_is_amx_tile_supported": True, "_is_avx512_bf16_supported": False}]
)
def test_a_cpu_is_asked_for_either_kind_of_instruction(answers: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)  # as in a PyTorch that does not know
        if name in answers:
            monkeypatch.setattr(torch.cpu, name, lambda answer=answers[name]: answer, raising=False)
    assert backends._cpu_has_bfloat16.__wrapped__() == any(answers.values())


@pytest.mark.parametrize("kind", ["point", "mean_field", "dropout", "full_covariance"])
def test_the_loss_and_its_gradients_are_those_of_float32_to_three_digits(
    kind: str, generator: torch.Generator, bfloat16: Callable[[bool], None]
) -> None:
    block, data = block_and_data(kind, generator)
    objective = BlockObjective(block, *data, 1.0, [])
    index, noise = torch.arange(4), objective.draw_noise(4, generator)

    def loss_and_gradients() -> tuple[Tensor, list[Tensor]]:
        loss = objective(index, noise)
        return loss.detach(), list(torch.autograd.grad(loss, list(objective.parameters())))

    fast, fast_gradients = loss_and_gradients()
    bfloat16(False)
    exact, gradients = loss_and_gradients()
    assert fast.dtype == torch.float32 and fast != exact  # it was in use
    torch.testing.assert_close(fast, exact, rtol=2e-3, atol=1e-3)
    for found, expected in zip(fast_gradients, gradients, strict=True):
        assert found.dtype == torch.float32
        assert (found - expected).norm() <= 0.03 * expected.norm()


def test_an_image_and_what_a_block_makes_of_it_are_never_rounded_to_eight_bits(
    generator: torch.Generator, bfloat16: Callable[[bool], None]
) -> None:
    block, (x, gradient, _) = block_and_data("mean_field", generator)
    with fast_convolutions(x.device):
        first, second, *_, last = block.activations(x, gradient)
        update = block.last.convolve(last, block.last.weight)
        spread = block.last.local_variance(last)  # type: ignore[operator]
    assert [t.dtype for t in (first, second, last)] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert update.dtype == spread.dtype == torch.float32
    torch.testing.assert_close(update, torch.nn.functional.conv2d(last.float(), block.last.weight, block.last.bias, padding=1))


def test_rounding_is_small_beside_what_the_weights_leave_open() -> None:
    """The spread of draws through a shipped cascade: rounding the image itself would more than double it."""
    model, generator = load("sparse30-mfvi"), torch.Generator().manual_seed(1)
    scans = simulate(ray_transform(model), random_ellipses(1, 128, generator=generator), GaussianNoise(0.01), generator=generator)
    exact, rounded = (reconstruct(model, scans.sinograms, 8, precision=precision) for precision in ("float32", "bfloat16"))
    assert not torch.equal(exact.mean, rounded.mean) and scans.images is not None
    assert float(rounded.epistemic.mean().sqrt()) == pytest.approx(float(exact.epistemic.mean().sqrt()), rel=0.1)
    torch.testing.assert_close(psnr(rounded.mean, scans.images), psnr(exact.mean, scans.images), rtol=0, atol=0.1)


def test_primal_dual_is_trained_in_float32_on_a_cpu(generator: torch.Generator, bfloat16: Callable[[bool], None]) -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=16, views=5))
    scans = simulate(A, random_ellipses(3, 16, generator=generator), GaussianNoise(0.01), generator=generator)
    model = LearnedPrimalDual(A, 2)
    objective, losses = DirectObjective(model, scans, model.start(scans.sinograms)), list[float]()
    for fast in (True, False):
        bfloat16(fast)
        losses.append(float(objective(torch.arange(3), []).detach()))
    assert losses[0] == losses[1]


def test_training_in_bfloat16_gives_as_good_a_cascade(generator: torch.Generator, bfloat16: Callable[[bool], None]) -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=24, views=8))
    scans = simulate(A, random_ellipses(24, 24, generator=generator), GaussianNoise(0.01), generator=generator)
    found = []
    for fast in (True, False):
        bfloat16(fast)
        model = DeepGradientDescent(A, 2)
        history = train_greedily(model, scans, epochs=8, batch=4, learning_rate=2e-3, generator=torch.Generator().manual_seed(0))
        found.append(history.stages[-1]["validation_psnr"])
    assert found[0] == pytest.approx(found[1], abs=0.3)


@pytest.mark.parametrize(
    "how",
    [{}, {"padding": 1, "stride": 2}, {"padding": (2, 1), "dilation": 2}, {"groups": 2}, {"padding": "same"}],
    ids=["plain", "stride", "dilation", "groups", "words"],
)
def test_exact_convolutions_are_the_plain_ones(how: dict[str, Any], generator: torch.Generator) -> None:
    x, bias = torch.randn(2, 4, 9, 11, generator=generator), torch.randn(6, generator=generator)
    weight = torch.randn(6, 4 // how.get("groups", 1), 3, 3, generator=generator)
    with ExactConvolutions():
        several, one = (torch.nn.functional.conv2d(images, weight, bias, **how) for images in (x, x[0]))
    assert torch.equal(several, torch.nn.functional.conv2d(x, weight, bias, **how))
    assert torch.equal(one, torch.nn.functional.conv2d(x[0], weight, bias, **how))


@pytest.mark.parametrize(("is_cuda", "fast", "exact"), [(True, False, True), (True, True, False), (False, False, False)])
def test_draws_in_float32_on_a_gpu_allow_no_tf32(is_cuda: bool, fast: bool, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, plain = list[bool](), torch._convolution

    def convolution(*arguments: Any, allow_tf32: bool) -> Tensor:
        allowed.append(allow_tf32)
        return plain(*arguments, allow_tf32=allow_tf32)

    monkeypatch.setattr(torch, "_convolution", convolution)
    layer, x = torch.nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 5, 5)
    with _precision(SimpleNamespace(device=torch.device("cpu"), is_cuda=is_cuda), fast):  # type: ignore[arg-type]
        layer(x)
    layer(x)
    assert allowed == [False] * exact


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_convolves_in_float32_where_it_is_asked_to(generator: torch.Generator) -> None:
    x, weight = (torch.randn(*shape, generator=generator).cuda() for shape in ((2, 16, 32, 32), (16, 16, 3, 3)))
    expected = torch.nn.functional.conv2d(x.double(), weight.double())
    with ExactConvolutions():
        exact = torch.nn.functional.conv2d(x, weight)
    assert float((exact - expected).norm() / expected.norm()) < 1e-5  # TF32 is off by some 3e-4


MAPPED = """
import ctypes, sys, torch
from bdgd.backends import expect_tensors

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2

alive = []

def mapped_for_a_tensor():  # MB that the C library fetches from the system for it alone, to be given back with it
    before = mallinfo2().hblkhd
    alive.append(torch.empty(24 << 20, dtype=torch.uint8))
    return (mallinfo2().hblkhd - before) >> 20

plain = mapped_for_a_tensor()
expect_tensors(torch.device("cpu"))
kept = mapped_for_a_tensor()
sys.exit(0 if (plain, kept) == (24, 0) else f"a tensor of 24 MB maps {plain} MB, {kept} MB after expect_tensors")
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc tells this since 2.33")
def test_memory_of_tensors_that_were_expected_is_not_fetched_again() -> None:
    """glibc maps large blocks one by one until it has seen one freed; page faults depend on what else lies in the heap."""
    done = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_freed_memory_is_kept_in_a_process_of_its_own() -> None:
    """Asked for in this process it would hold for all tests after it."""
    code = "from bdgd.apps.memory import keep_freed_memory; import sys; sys.exit(0 if keep_freed_memory() in (True, False) else 1)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_c_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory() is False
