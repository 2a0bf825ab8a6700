"""The Triton kernels against what they replace: on a GPU as they are, elsewhere in Triton's interpreter; in float32."""

from __future__ import annotations

import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.keyed import keyed_generator
from bdgd.models import GradientBlock, fused, launches
from bdgd.models.primal_dual import _update
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform
from bdgd.operators.on_the_fly import OnTheFly, _countable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported, which happens in the tests below
pytest.importorskip("triton", reason="the kernels need Triton")

GEOMETRIES: list[Geometry] = [
    ParallelBeam.sparse(image_size=16, views=5),
    ParallelBeam(image_size=(12, 17), angles=[0, 0.3, math.pi / 4, math.pi / 2, 2, 3.5], detectors=25, detector_spacing=0.6,
                 detector_offset=0.3, pixel_size=0.9),
    FanBeam(image_size=(16, 20), angles=[0, 0.78, 1.5, 2.3, 4], detectors=28, detector_spacing=1.1, detector_offset=0.2, pixel_size=0.8,
            source_to_axis=20.0, source_to_detector=33.0),
]  # fmt: skip


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one program after the other; three are enough to see that partial sums add up."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(launches, "SPLITS", 3)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(DEVICE)


def assert_near(got: Tensor, expected: Tensor, tolerance: float = 3e-6) -> None:
    assert got.shape == expected.shape
    assert float((got - expected).detach().norm() / expected.detach().norm()) < tolerance


@pytest.mark.parametrize("size", [(17, 20), (16, 16)], ids=["odd", "even"])
def test_features_and_their_gradients_are_those_of_the_plain_block(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    block = GradientBlock("mean_field")
    block.reset(keyed_generator(1))
    block.to(DEVICE)
    layers = (*block.image_branch, *block.gradient_branch, *block.merge)
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    x, gradient = normal(2, 1, *size).requires_grad_(), normal(2, 1, *size, seed=1).requires_grad_()
    incoming = normal(2, 16, *size, seed=2)

    plain, quick = block.features(x, gradient), fused.features(x, gradient, parameters, torch.float32)
    assert_near(quick, plain)
    expected = torch.autograd.grad(plain, [x, gradient, *parameters], incoming)
    for got, wanted in zip(torch.autograd.grad(quick, [x, gradient, *parameters], incoming), expected, strict=True):
        assert_near(got, wanted)


@pytest.mark.parametrize("squared", [False, True])
def test_the_last_convolution_and_its_gradients_are_the_plain_ones(squared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    features, weights = normal(2, 16, 13, 18).requires_grad_(), normal(1, 16, 3, 3, seed=1).requires_grad_()
    incoming = normal(2, 1, 13, 18, seed=2)
    plain = F.conv2d(features**2 if squared else features, weights, padding=1)
    quick = fused.convolve_to_one(features, weights, squared)
    assert_near(quick, plain)
    expected = torch.autograd.grad(plain, [features, weights], incoming)
    for got, wanted in zip(torch.autograd.grad(quick, [features, weights], incoming), expected, strict=True):
        assert_near(got, wanted)


def test_each_image_may_have_its_own_last_weights() -> None:
    features, weights = normal(3, 16, 9, 11), normal(3, 16, 3, 3, seed=1)
    one_by_one = torch.cat([F.conv2d(features[n : n + 1], weights[n : n + 1], padding=1) for n in range(3)])
    assert_near(fused.convolve_to_one(features, weights), one_by_one, 1e-3 if DEVICE.type == "cuda" else 3e-6)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["paper", "offset", "fan"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_weights_on_the_fly_are_those_of_the_matrix(geometry: Geometry, dtype: torch.dtype) -> None:
    matrix = RayTransform(geometry, DEVICE, dtype, strategy="matrix")._strategy
    quick = OnTheFly(geometry, DEVICE, dtype)
    images = normal(math.prod(geometry.image_size), 3, dtype=dtype)
    sinograms = normal(geometry.views * geometry.detectors, 3, seed=1, dtype=dtype)
    tolerance = 1e-14 if dtype == torch.float64 else 2e-6
    assert_near(quick.forward(images), matrix.forward(images), tolerance)
    assert_near(quick.transpose(sinograms), matrix.transpose(sinograms), tolerance)


@pytest.mark.parametrize("images", [1, 2, 5, 16, 17])
def test_any_number_of_images_goes_through_the_kernels(images: int) -> None:
    geometry = ParallelBeam.sparse(image_size=16, views=13)  # so many that programs share them
    matrix, quick = RayTransform(geometry, DEVICE, strategy="matrix")._strategy, OnTheFly(geometry, DEVICE, torch.float32)
    x, y = normal(256, images), normal(geometry.views * geometry.detectors, images, seed=1)
    assert_near(quick.forward(x), matrix.forward(x))
    assert_near(quick.transpose(y), matrix.transpose(y))


def test_more_images_than_can_be_counted_go_through_in_parts() -> None:
    geometry = GEOMETRIES[0]
    matrix, quick = RayTransform(geometry, DEVICE, strategy="matrix")._strategy, OnTheFly(geometry, DEVICE, torch.float32)
    assert quick.most_images * max(256, geometry.views * geometry.detectors) < 2**31
    assert [_countable(2**power) for power in (20, 27, 28, 30)] == [2032, 4, 4, 1]
    quick.most_images = 2
    x, y = normal(256, 5), normal(geometry.views * geometry.detectors, 5, seed=1)
    assert_near(quick.forward(x), matrix.forward(x))
    assert_near(quick.transpose(y), matrix.transpose(y))


def test_no_ray_is_lost_where_the_fan_is_wide_and_detectors_are_fine() -> None:
    fan = FanBeam(image_size=10, angles=[0.2, 1.0], detectors=60, detector_spacing=0.5, pixel_size=1.0, source_to_axis=9.0,
                  source_to_detector=14.0)  # fmt: skip
    matrix, quick = RayTransform(fan, DEVICE, torch.float64, strategy="matrix")._strategy, OnTheFly(fan, DEVICE, torch.float64)
    sinograms = normal(2 * 60, 1, dtype=torch.float64)
    assert_near(quick.transpose(sinograms), matrix.transpose(sinograms), 1e-14)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
def test_a_gpu_takes_the_fast_paths_by_itself() -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=512, views=360), DEVICE)
    assert A.strategy == "matrix-free"
    assert isinstance(A._strategy, OnTheFly)
    with torch.autocast("cuda", torch.bfloat16):
        assert fused.usable(normal(1))
    assert not fused.usable(normal(1))


@pytest.mark.parametrize(("channels", "outputs"), [(6, 5), (7, 5)])
def test_the_updates_of_primal_dual_and_their_gradients_are_the_plain_ones(
    channels: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain = _update(channels, outputs)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in plain.parameters():  # slopes of either sign too
            parameter.uniform_(-0.3, 0.3, generator=generator)
    plain.to(DEVICE)
    x, incoming = normal(2, channels, 9, 13).requires_grad_(), normal(2, outputs, 9, 13, seed=1)
    wanted, got = plain(x), fused.stack(x, list(plain.parameters()), torch.float32)
    assert_near(got, wanted)
    variables = [x, *plain.parameters()]
    for g, w in zip(torch.autograd.grad(got, variables, incoming), torch.autograd.grad(wanted, variables, incoming), strict=True):
        assert_near(g, w)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
def test_on_a_gpu_updates_of_primal_dual_are_the_same_beside_others() -> None:
    """Products that are still under way when others use the GPU read what they were given (Triton's issue 9433)."""
    streams, graphs = [torch.cuda.Stream() for _ in range(4)], [torch.cuda.CUDAGraph() for _ in range(4)]
    update, x = _update(7, 5).to(DEVICE), normal(4, 7, 120, 183)
    wrong, results = torch.zeros(4, dtype=torch.int64, device=DEVICE), list[Tensor]()
    with torch.no_grad():
        expected = fused.stack(x, list(update.parameters()))
        for graph in graphs:
            with torch.cuda.graph(graph):
                results.append(fused.stack(x, list(update.parameters())))
    torch.cuda.synchronize()
    for _ in range(3000):
        for n, (stream, graph, result) in enumerate(zip(streams, graphs, results, strict=True)):
            with torch.cuda.stream(stream):
                graph.replay()
                wrong[n] += (result != expected).any()
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0, 0, 0]
