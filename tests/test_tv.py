"""Total variation against closed forms, another solver, and its own promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import choose_tv_weight, solve_tv, tv
from bdgd.data import GaussianNoise, ellipse_images, simulate
from bdgd.operators import LinearOperator, ParallelBeam, RayTransform

Scanned = tuple[RayTransform, Tensor, Tensor]


class Identity(LinearOperator):
    """Denoising: A x = x."""

    def _apply(self, x: Tensor) -> Tensor:
        return x.clone()

    _adjoint = _apply


def identity(size: int, dtype: torch.dtype = torch.float64) -> Identity:
    return Identity((1, size, size), (1, size, size), dtype=dtype)


@pytest.fixture(scope="module")
def scanned() -> Scanned:
    """A small operator, four images and their noisy sinograms."""
    A = RayTransform(ParallelBeam.sparse(image_size=32, views=12), dtype=torch.float64)
    images = ellipse_images("validation", 4, 32).double()
    return A, images, simulate(A, images, GaussianNoise(0.01), generator=torch.Generator().manual_seed(0)).sinograms


def objective(A: LinearOperator, x: Tensor, y: Tensor, weight: float, isotropic: bool = True) -> float:
    """The minimised function, written out once more."""
    dx, dy = torch.zeros_like(x), torch.zeros_like(x)
    dx[..., :-1, :], dy[..., :-1] = x.diff(dim=-2), x.diff(dim=-1)
    length = torch.hypot(dx, dy) if isotropic else dx.abs() + dy.abs()
    return float(((A(x) - y) ** 2).sum() / (2 * A.norm() ** 2) + weight * length.sum())


@pytest.mark.parametrize("isotropic", [True, False])
def test_denoising_a_step_moves_its_levels_by_weight_times_perimeter_over_area(isotropic: bool) -> None:
    size, weight = 16, 0.4
    y = torch.full((1, 1, size, size), 1.0, dtype=torch.float64)
    y[..., 4:, :] = 3.0  # an edge of length 16 between 4 x 16 pixels and 12 x 16 pixels
    x = tv(identity(size), y, weight, isotropic=isotropic, tolerance=1e-7)
    assert torch.allclose(x[..., :4, :], torch.tensor(1.0 + weight / 4, dtype=torch.float64), atol=1e-3)
    assert torch.allclose(x[..., 4:, :], torch.tensor(3.0 - weight / 12, dtype=torch.float64), atol=1e-3)


def test_a_large_weight_leaves_the_mean() -> None:
    y = torch.rand(1, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(tv(identity(8), y, 100.0, tolerance=1e-8), y.mean(), atol=1e-3)


def test_the_minimum_is_that_of_another_solver() -> None:
    """Anisotropic TV as a smooth problem: x >= 0 and differences split into their positive and negative part (L-BFGS-B)."""
    size, weight = 6, 0.1
    y = torch.rand(1, 1, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    A, rows = identity(size), []
    grid = np.arange(size * size).reshape(size, size)
    for a, b in [*zip(grid[:-1].ravel(), grid[1:].ravel(), strict=True), *zip(grid[:, :-1].ravel(), grid[:, 1:].ravel(), strict=True)]:
        row = np.zeros(size * size)
        row[a], row[b] = -1, 1
        rows.append(row)
    D, target = np.array(rows), y.numpy().ravel()

    def dual(q: np.ndarray) -> tuple[float, np.ndarray]:  # min over |q| <= weight of |target - D'q|^2 / 2 gives x = target - D'q
        residual = target - D.T @ q
        return 0.5 * float(residual @ residual), -D @ residual

    q = minimize(dual, np.zeros(len(D)), jac=True, bounds=[(-weight, weight)] * len(D), options={"ftol": 1e-15, "gtol": 1e-12}).x
    expected = torch.from_numpy((target - D.T @ q).reshape(1, 1, size, size))
    assert (expected > 0).all()  # so that x >= 0 does not matter here
    found = tv(A, y, weight, isotropic=False, tolerance=1e-8)
    assert torch.allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("isotropic", [True, False])
def test_the_gap_bounds_the_distance_to_the_minimum(scanned: Scanned, isotropic: bool, nonnegative: bool) -> None:
    A, _, y = scanned
    options = {"isotropic": isotropic, "nonnegative": nonnegative}
    rough, exact = solve_tv(A, y, 1e-3, tolerance=1e-2, **options), solve_tv(A, y, 1e-3, tolerance=1e-6, most_iterations=20000, **options)
    assert rough.converged.all() and exact.converged.all()
    assert (rough.gap <= 1e-2 * rough.objective).all()
    assert (rough.objective - exact.objective <= rough.gap).all()
    assert (rough.objective >= exact.objective - exact.gap).all()
    for k in range(len(y)):
        assert objective(A, rough.image[k : k + 1], y[k : k + 1], 1e-3, isotropic) == pytest.approx(float(rough.objective[k]), rel=1e-6)
    assert bool((rough.image >= 0).all()) == nonnegative or not nonnegative


def test_images_do_not_depend_on_their_batch(scanned: Scanned) -> None:
    A, _, y = scanned
    together = tv(A, y, 3e-4)
    for k in range(len(y)):
        assert torch.allclose(together[k : k + 1], tv(A, y[k : k + 1], 3e-4), atol=1e-10)


def test_the_unit_of_length_does_not_matter(scanned: Scanned) -> None:
    A, _, y = scanned
    small = RayTransform(ParallelBeam.sparse(image_size=32, views=12, pixel_size=0.3), dtype=torch.float64)
    assert torch.allclose(tv(A, y, 3e-4, tolerance=1e-5), tv(small, 0.3 * y, 3e-4, tolerance=1e-5), atol=2e-3)


def test_brighter_images_take_a_larger_weight(scanned: Scanned) -> None:
    A, _, y = scanned
    assert torch.allclose(10 * tv(A, y, 3e-4, tolerance=1e-5), tv(A, 10 * y, 3e-3, tolerance=1e-5), atol=2e-2)


def test_a_warm_start_saves_iterations_and_keeps_the_result(scanned: Scanned) -> None:
    A, _, y = scanned
    cold = solve_tv(A, y, 3e-4, tolerance=1e-5)
    warm = solve_tv(A, y, 3e-4, tolerance=1e-5, start=cold.image)
    assert warm.iterations.sum() < cold.iterations.sum()
    assert torch.allclose(warm.image, cold.image, atol=2e-3)


def test_the_weight_is_chosen_on_the_curve(scanned: Scanned) -> None:
    A, images, _ = scanned
    scans = simulate(A, images, GaussianNoise(0.01), generator=torch.Generator().manual_seed(1))
    chosen = choose_tv_weight(A, scans, (1e-2, 1e-5, 1e-4, 1e-3))
    assert chosen.weights == (1e-5, 1e-4, 1e-3, 1e-2)
    assert chosen.weight == chosen.weights[int(np.argmax(chosen.psnr))]
    assert chosen.psnr[-1] < max(chosen.psnr) - 3  # far too smooth


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": 0.0}, "above 0"),
        ({"weight": float("nan")}, "finite"),
        ({"tolerance": -1.0}, "above 0"),
        ({"most_iterations": 0}, "at least 1"),
        ({"start": torch.zeros(4, 1, 8, 8, dtype=torch.float64)}, "shape"),
    ],
)
def test_wrong_arguments_are_named(scanned: Scanned, change: dict[str, object], words: str) -> None:
    A, _, y = scanned
    with pytest.raises(InputError, match=words):
        tv(A, y, **change)  # type: ignore[arg-type]


def test_wrong_sinograms_are_named(scanned: Scanned) -> None:
    A, _, y = scanned
    with pytest.raises(InputError, match="finite"):
        tv(A, y * float("nan"))
    with pytest.raises(InputError, match="shape"):
        tv(A, y[..., 1:])
    with pytest.raises(InputError, match="float32"):
        tv(A, y.float())
