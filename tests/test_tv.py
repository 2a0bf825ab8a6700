"""Total variation against closed forms, other solvers, and its own promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from skimage.restoration import denoise_tv_chambolle
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import choose_tv_weight, fbp, solve_tv, tv
from bdgd.data import GaussianNoise, Scans, ellipse_images, simulate
from bdgd.operators import FanBeam, Geometry, LinearOperator, ParallelBeam, RayTransform

Scanned = tuple[RayTransform, Tensor, Tensor]
SIZE, WEIGHT = 24, 3e-4


class Identity(LinearOperator):
    """Denoising: A x = x."""

    def _apply(self, x: Tensor) -> Tensor:
        return x.clone()

    def _adjoint(self, y: Tensor) -> Tensor:
        return y.clone()


def identity(height: int, width: int) -> Identity:
    return Identity((1, height, width), (1, height, width), dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scan(geometry: Geometry, dtype: torch.dtype = torch.float64) -> Scanned:
    """An operator, three images and their noisy sinograms."""
    A = RayTransform(geometry, dtype=dtype)
    images = ellipse_images("validation", 3, geometry.image_size[0]).to(dtype)
    return A, images, simulate(A, images, GaussianNoise(0.01), generator=torch.Generator().manual_seed(0)).sinograms


@pytest.fixture(scope="module")
def scanned() -> Scanned:
    return scan(ParallelBeam.sparse(image_size=SIZE, views=10))


def objective(A: LinearOperator, x: Tensor, y: Tensor, weight: float, isotropic: bool = True) -> Tensor:
    """The minimised function (B,), written out once more."""
    dx, dy = torch.zeros_like(x), torch.zeros_like(x)
    dx[..., :-1, :], dy[..., :-1] = x.diff(dim=-2), x.diff(dim=-1)
    length = torch.hypot(dx, dy) if isotropic else dx.abs() + dy.abs()
    return (A(x) - y).square().sum((1, 2, 3)) / (2 * A.norm() ** 2) + weight * length.sum((1, 2, 3))


# Against closed forms and other solvers


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("across_rows", [True, False])
def test_denoising_a_step_moves_its_levels_by_weight_times_perimeter_over_area(isotropic: bool, across_rows: bool) -> None:
    """An edge of length n between a x n and b x n pixels moves the levels towards each other by weight / a and weight / b."""
    weight = 0.4
    y = torch.full((1, 1, 16, 10), 1.0, dtype=torch.float64)
    y[..., 4:, :] = 3.0
    x = tv(identity(16, 10) if across_rows else identity(10, 16), y if across_rows else y.mT, weight, isotropic=isotropic, tolerance=1e-7)
    expected = torch.where(y < 2, y + weight / 4, y - weight / 12)
    torch.testing.assert_close(x if across_rows else x.mT, expected, atol=1e-3, rtol=0)


def test_a_large_weight_leaves_the_mean() -> None:
    y = noise(2, 1, 8, 8)
    torch.testing.assert_close(tv(identity(8, 8), y, 100.0, tolerance=1e-8), y.mean((2, 3), keepdim=True).expand_as(y), atol=1e-3, rtol=0)


def test_anisotropic_denoising_is_that_of_a_general_solver() -> None:
    """Its dual, min over |q| <= weight of |y - D'q|^2 / 2 with x = y - D'q, is a smooth problem with bounds, for L-BFGS-B."""
    size, weight = 6, 0.1
    y = noise(1, 1, size, size, seed=2)
    grid = np.arange(size * size).reshape(size, size)
    pairs = [*zip(grid[:-1].ravel(), grid[1:].ravel(), strict=True), *zip(grid[:, :-1].ravel(), grid[:, 1:].ravel(), strict=True)]
    D, target = np.zeros((len(pairs), size * size)), y.numpy().ravel()
    for row, (here, following) in zip(D, pairs, strict=True):
        row[here], row[following] = -1, 1

    def dual(q: np.ndarray) -> tuple[float, np.ndarray]:
        x = target - D.T @ q
        return 0.5 * float(x @ x), -D @ x

    q = minimize(dual, np.zeros(len(D)), jac=True, bounds=[(-weight, weight)] * len(D), options={"ftol": 1e-15, "gtol": 1e-12}).x
    expected = torch.from_numpy((target - D.T @ q).reshape(1, 1, size, size))
    assert (expected > 0).all()  # so that x >= 0 does not matter here
    torch.testing.assert_close(tv(identity(size, size), y, weight, isotropic=False, tolerance=1e-8), expected, atol=1e-3, rtol=0)


def test_isotropic_denoising_is_that_of_scikit_image() -> None:
    y, weight, A = noise(1, 1, 20, 14, seed=3), 0.1, identity(20, 14)
    theirs = torch.from_numpy(denoise_tv_chambolle(y[0, 0].numpy(), weight, eps=1e-12, max_num_iter=5000))[None, None]
    ours = tv(A, y, weight, tolerance=1e-6)
    torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=0)
    assert objective(A, ours, y, weight) <= objective(A, theirs, y, weight) * (1 + 1e-6)


# The gap and the stopping rule


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("isotropic", [True, False])
def test_the_gap_bounds_the_distance_to_the_minimum(scanned: Scanned, isotropic: bool, nonnegative: bool) -> None:
    A, _, y = scanned
    options: dict[str, Any] = {"isotropic": isotropic, "nonnegative": nonnegative}
    rough, exact = solve_tv(A, y, WEIGHT, tolerance=1e-2, **options), solve_tv(A, y, WEIGHT, tolerance=1e-5, **options)
    assert rough.converged.all() and exact.converged.all()
    assert (rough.gap <= 1e-2 * rough.objective).all() and (exact.gap <= 1e-5 * exact.objective).all()
    assert (rough.objective - exact.objective <= rough.gap).all()
    assert (exact.objective - exact.gap <= rough.objective).all()
    for result in (rough, exact):
        torch.testing.assert_close(result.objective, objective(A, result.image, y, WEIGHT, isotropic))
    assert bool((exact.image < 0).any()) == (not nonnegative)


def test_each_kind_minimises_its_own_variation(scanned: Scanned) -> None:
    A, _, y = scanned
    images = {isotropic: tv(A, y, WEIGHT, isotropic=isotropic, tolerance=1e-4) for isotropic in (True, False)}
    for isotropic in (True, False):
        assert (objective(A, images[isotropic], y, WEIGHT, isotropic) < objective(A, images[not isotropic], y, WEIGHT, isotropic)).all()


def test_iterations_end_where_they_are_told_to_and_say_so(scanned: Scanned) -> None:
    A, _, y = scanned
    stopped = solve_tv(A, y, WEIGHT, most_iterations=33)
    assert stopped.iterations.tolist() == [33] * 3 and not stopped.converged.any()
    assert stopped.image.isfinite().all() and (stopped.gap > 1e-3 * stopped.objective).all()


@pytest.mark.parametrize(
    ("geometry", "weight", "most"),
    [
        (ParallelBeam.sparse(image_size=48, views=15), 1e-4, 450),
        (ParallelBeam.limited(image_size=48, degrees=120)[::3], 1e-5, 900),  # a poor balance of the steps takes many thousands
        (
            FanBeam(
                image_size=(48, 48),
                angles=tuple((np.arange(20) * np.pi / 10).tolist()),
                detectors=80,
                detector_spacing=1.3,
                source_to_axis=100.0,
                source_to_detector=150.0,
            ),
            1e-4,
            450,
        ),
    ],
    ids=["sparse", "limited", "fan"],
)
def test_the_steps_are_balanced_for_every_kind_of_scan(geometry: Geometry, weight: float, most: int) -> None:
    A, images, y = scan(geometry, torch.float32)
    result = solve_tv(A, y, weight)
    assert result.converged.all() and int(result.iterations.max()) <= most
    assert (result.image - images).square().mean() < 0.3 * (fbp(A, y) - images).square().mean()


def test_a_zero_sinogram_gives_a_zero_image(scanned: Scanned) -> None:
    A, images, y = scanned
    result = solve_tv(A, torch.zeros_like(y))
    assert torch.equal(result.image, torch.zeros_like(images)) and result.converged.all()


def test_a_negative_sinogram_gives_a_zero_image(scanned: Scanned) -> None:
    """Nothing non-negative fits it better: the gap must see that, though c = 1.5 max(x) is 0 there."""
    A, _, y = scanned
    assert solve_tv(A, -y.abs()).converged.all() and float(tv(A, -y.abs()).max()) < 1e-6


# What the result does not depend on


def test_images_do_not_depend_on_their_batch(scanned: Scanned) -> None:
    A, _, y = scanned
    together = solve_tv(A, y, WEIGHT, tolerance=1e-4)
    assert len(set(together.iterations.tolist())) > 1  # so that some left the batch early
    for k in range(len(y)):
        alone = solve_tv(A, y[k : k + 1], WEIGHT, tolerance=1e-4)
        assert int(alone.iterations) == int(together.iterations[k])
        torch.testing.assert_close(together.image[k : k + 1], alone.image, atol=1e-9, rtol=0)


def test_the_unit_of_length_does_not_matter(scanned: Scanned) -> None:
    A, _, y = scanned
    small = RayTransform(ParallelBeam.sparse(image_size=SIZE, views=10, pixel_size=0.3), dtype=torch.float64)
    torch.testing.assert_close(tv(A, y, WEIGHT), tv(small, 0.3 * y, WEIGHT), atol=1e-6, rtol=0)


def test_more_views_of_the_same_image_need_no_other_weight(scanned: Scanned) -> None:
    """Every view twice doubles |A|^2 and the misfit alike."""
    A, _, y = scanned
    angles = tuple(angle for angle in A.geometry.angles for _ in range(2))
    twice = RayTransform(replace(A.geometry, angles=angles), dtype=torch.float64)
    torch.testing.assert_close(tv(twice, y.repeat_interleave(2, dim=2), WEIGHT), tv(A, y, WEIGHT), atol=1e-6, rtol=0)


def test_brighter_images_take_a_larger_weight(scanned: Scanned) -> None:
    A, _, y = scanned
    torch.testing.assert_close(tv(A, 10 * y, 10 * WEIGHT), 10 * tv(A, y, WEIGHT), atol=1e-5, rtol=0)


def test_a_warm_start_saves_iterations_and_keeps_the_result(scanned: Scanned) -> None:
    A, _, y = scanned
    cold = solve_tv(A, y, WEIGHT, tolerance=1e-4)
    for start in (cold.image, tv(A, y, 1.2 * WEIGHT, tolerance=1e-4), fbp(A, y)):
        warm = solve_tv(A, y, WEIGHT, tolerance=1e-4, start=start)
        assert ((warm.objective - cold.objective).abs() <= torch.maximum(warm.gap, cold.gap)).all()
        torch.testing.assert_close(warm.image, cold.image, atol=2e-2, rtol=0)
        if start is cold.image:
            assert (warm.iterations < cold.iterations).all()


def test_any_operator_will_do(scanned: Scanned) -> None:
    """`domain_shape`, `range_shape`, `A(x)` and `A.T(y)` are all that is asked for; a precision other than float32 is told by `dtype`."""
    A, _, y = scanned

    class Plain:
        domain_shape, range_shape, dtype = A.domain_shape, A.range_shape, A.dtype

        def __call__(self, x: Tensor) -> Tensor:
            return A(x)

        def T(self, y: Tensor) -> Tensor:
            return A.T(y)

    plain: Any = Plain()
    torch.testing.assert_close(tv(plain, y, WEIGHT), tv(A, y, WEIGHT))


# Choosing the weight


def test_the_weight_is_chosen_on_the_curve(scanned: Scanned) -> None:
    A, images, y = scanned
    chosen = choose_tv_weight(A, Scans(y, A.geometry, images), (1e-2, 1e-5, 1e-4, 1e-3))
    assert chosen.weights == (1e-5, 1e-4, 1e-3, 1e-2)
    assert chosen.weight == chosen.weights[int(np.argmax(chosen.psnr))]
    assert chosen.psnr[-1] < max(chosen.psnr) - 3  # far too smooth
    for weight, value in zip(chosen.weights, chosen.psnr, strict=True):
        error = (tv(A, y, weight) - images).square().mean((1, 2, 3))
        assert float(-10 * error.log10().mean()) == pytest.approx(value, abs=0.05)  # the warm starts leave no trace


def test_a_weight_cannot_be_chosen_without_truth_or_grid(scanned: Scanned) -> None:
    A, images, y = scanned
    with pytest.raises(InputError, match="true images"):
        choose_tv_weight(A, Scans(y, A.geometry))
    with pytest.raises(InputError, match="empty"):
        choose_tv_weight(A, Scans(y, A.geometry, images), ())
    with pytest.raises(InputError, match="above 0"):
        choose_tv_weight(A, Scans(y, A.geometry, images), (1e-3, 0.0))


# Bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": 0.0}, "above 0"),
        ({"weight": float("nan")}, "finite"),
        ({"tolerance": -1.0}, "above 0"),
        ({"most_iterations": 0}, "at least 1"),
        ({"start": torch.zeros(3, 1, 8, 8, dtype=torch.float64)}, "shape"),
        ({"start": torch.zeros(2, 1, SIZE, SIZE, dtype=torch.float64)}, "one image per sinogram"),
        ({"start": torch.full((3, 1, SIZE, SIZE), torch.nan, dtype=torch.float64)}, "finite"),
    ],
)
def test_wrong_arguments_are_named(scanned: Scanned, change: dict[str, Any], words: str) -> None:
    A, _, y = scanned
    with pytest.raises(InputError, match=words):
        tv(A, y, **change)


def test_wrong_sinograms_are_named(scanned: Scanned) -> None:
    A, _, y = scanned
    with pytest.raises(InputError, match="finite"):
        tv(A, y * float("nan"))
    with pytest.raises(InputError, match="shape"):
        tv(A, y[..., 1:])
    with pytest.raises(InputError, match="float32"):
        tv(A, y.float())


def test_an_operator_on_something_else_than_images_is_named() -> None:
    with pytest.raises(InputError, match=r"images \(1, H, W\)"):
        tv(Identity((5,), (5,)), torch.zeros(1, 5))


def test_images_that_are_matched_exactly_do_not_choose_the_weight() -> None:
    A, images, y = scan(ParallelBeam.sparse(image_size=SIZE, views=12))
    weights, empty = (3e-5, 1e-3), torch.zeros_like(images[:1])
    chosen = choose_tv_weight(A, Scans(y, A.geometry, images=images), weights)
    with_air = Scans(torch.cat((y, A(empty))), A.geometry, images=torch.cat((images, empty)))
    assert choose_tv_weight(A, with_air, weights) == chosen
    with pytest.raises(InputError, match="none tells which is best; take scans with an object in them"):
        choose_tv_weight(A, with_air[3:], weights)
