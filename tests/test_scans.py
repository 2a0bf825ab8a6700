"""Scans: sliced like a batch, split without overlap, simulated as operator plus noise, and every bad one named."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from few_scans import PARALLEL, some_scans

from bdgd.checks import InputError
from bdgd.data.noise import GaussianNoise, PoissonNoise
from bdgd.data.scans import Scans, simulate
from bdgd.operators.geometry import Geometry


class Sums:
    """A small operator with a geometry: every ray measures the sum of the image times its own number."""

    def __init__(self, geometry: Geometry):
        self.geometry, self.device = geometry, torch.device("cpu")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        ray = torch.arange(self.geometry.views * self.geometry.detectors, dtype=x.dtype)
        return x.sum((2, 3), keepdim=True) * ray.reshape(1, 1, self.geometry.views, self.geometry.detectors)


def test_scans_slice_like_a_batch(device: torch.device) -> None:
    scans = some_scans().to(device)
    assert len(scans) == 10 and scans.sinograms.device.type == device.type
    for which, numbers in ((slice(3, 7), [3, 4, 5, 6]), ([0, 5], [0, 5]), (2, [2]), (-1, [9]), (np.int64(4), [4])):
        part = scans[which]
        assert torch.equal(part.sinograms, scans.sinograms[numbers]) and part.images is not None and scans.images is not None
        assert torch.equal(part.images, scans.images[numbers])
        assert part.geometry == scans.geometry and part.noise == scans.noise
    assert [len(scan) for scan in scans] == [1] * 10  # iterating ends, too


@pytest.mark.parametrize(
    ("parts", "counts"), [((7, 3), [7, 3]), ((2, 1), [2, 1]), ((0.8, 0.2), [8, 2]), ((1 / 3,) * 3, [3, 4, 3]), ((0.5,), [5])]
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_split_is_disjoint(parts: tuple[float, ...], counts: list[int], shuffled: bool) -> None:
    scans = some_scans()
    got = scans.split(*parts, generator=torch.Generator().manual_seed(0) if shuffled else None)
    assert [len(part) for part in got] == counts
    keys = [float(value) for part in got for value in part.sinograms[:, 0, 0, 0]]
    known = scans.sinograms[:, 0, 0, 0].tolist()
    assert len(set(keys)) == len(keys) and set(keys) <= set(known)
    assert (keys == known[: len(keys)]) is not shuffled
    for part in got:  # images stay with their sinograms
        assert part.images is not None and scans.images is not None
        for sinogram, image in zip(part.sinograms, part.images, strict=True):
            assert torch.equal(image, scans.images[known.index(float(sinogram[0, 0, 0]))])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "at least one part"),
        ((8, 3), r"cannot split 10 scans into parts of \[8, 3\]"),
        ((0.9, 0.2), "sum to at most 1"),
        ((0.5, -0.1), "above 0"),
        ((math.nan,), "sum to at most 1"),
        ((5, 0.5), "do not mix"),
        ((0,), "at least 1"),
        ((0.01, 0.5), "every part needs at least one"),
    ],
)
def test_bad_splits_are_named(parts: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        some_scans().split(*parts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Scans(torch.zeros(2, 1, 3, 10), PARALLEL),
            r"shape \(B, 1, 3, 11\), got \(2, 1, 3, 10\).*views x detectors is 3 x 11",
        ),
        (lambda: Scans(torch.zeros(2, 3, 11), PARALLEL), r"add the channel axis with \[:, None\]"),
        (lambda: Scans(torch.zeros(0, 1, 3, 11), PARALLEL), "empty"),
        (lambda: Scans(torch.full((2, 1, 3, 11), math.nan), PARALLEL), "sinograms must be finite"),
        (lambda: Scans(torch.zeros(2, 1, 3, 11), PARALLEL, torch.zeros(2, 1, 7, 6)), "images must have shape.*image_size is 6 x 7"),
        (lambda: Scans(torch.zeros(2, 1, 3, 11), PARALLEL, torch.zeros(3, 1, 6, 7)), "3 images and 2 sinograms"),
        (lambda: Scans(torch.zeros(2, 1, 3, 11), PARALLEL, torch.full((2, 1, 6, 7), math.inf)), "images must be finite"),
        (lambda: Scans(np.zeros((2, 1, 3, 11)), PARALLEL), "torch.as_tensor"),  # type: ignore[arg-type]
        (lambda: Scans(torch.zeros(2, 1, 3, 11), "parallel"), "geometry must be"),  # type: ignore[arg-type]
        (lambda: Scans(torch.zeros(2, 1, 3, 11), PARALLEL, noise=lambda y, generator: y), r"by to_dict\(\), which function has not"),  # type: ignore[arg-type]
        (lambda: Scans(torch.zeros(3), None), r"batch \(B, ...\), got torch.float32 \(3,\)"),
        (lambda: some_scans()[10:], "empty"),
    ],
)
def test_bad_scans_are_named(make: Callable[[], Scans], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_simulate_measures_then_adds_noise() -> None:
    x, operator = torch.rand(7, 1, 6, 7), Sums(PARALLEL)
    noise = GaussianNoise(0.1)
    scans = simulate(operator, x, noise, generator=torch.Generator().manual_seed(1))
    assert torch.equal(scans.sinograms, noise(operator(x), generator=torch.Generator().manual_seed(1)))
    assert scans.images is x and scans.geometry == PARALLEL and scans.noise == noise
    again = simulate(operator, x, noise, generator=torch.Generator().manual_seed(1), batch=3)
    assert torch.equal(again.sinograms, scans.sinograms)
    assert torch.equal(simulate(operator, x, None, generator=torch.Generator()).sinograms, operator(x))


def test_simulate_works_with_any_operator(generator: torch.Generator) -> None:
    scans = simulate(lambda x: 2 * x[..., ::2], torch.ones(3, 1, 4, 4), PoissonNoise(photons=1e6), generator=generator)
    assert scans.geometry is None and scans.sinograms.shape == (3, 1, 4, 2) and len(scans[1:]) == 2
    with pytest.raises(InputError, match="x must be finite"):
        simulate(lambda x: x, torch.full((1, 1, 2, 2), math.nan), None, generator=generator)
    with pytest.raises(InputError, match="x must be a batch"):
        simulate(lambda x: x, torch.zeros(0, 1, 2, 2), None, generator=generator)
