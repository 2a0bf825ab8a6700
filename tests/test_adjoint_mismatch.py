"""The adjoint test sees what it should: shifts, scales of a thousandth, a lost pixel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from geometries import GEOMETRIES
from linear_operators import ADJOINT, Dense, every_dtype
from torch import Tensor

from bdgd.checks import InputError
from bdgd.operators import LinearOperator, RayTransform, adjoint_mismatch


class Wrong(LinearOperator):
    """A ray transform whose transpose is followed by a change."""

    def __init__(self, of: LinearOperator, change: Callable[[Tensor], Tensor]):
        super().__init__(of.domain_shape, of.range_shape, of.device, of.dtype)
        self.of, self.change = of, change

    def _apply(self, x: Tensor) -> Tensor:
        return self.of._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.change(self.of._adjoint(y))


def one_pixel_lost(x: Tensor) -> Tensor:
    x = x.clone()
    x[..., x.shape[-2] // 2, x.shape[-1] // 2] = 0
    return x


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "shifted along x": lambda x: x.roll(1, -2),
    "shifted along y": lambda x: x.roll(1, -1),
    "scaled by 1.001": lambda x: 1.001 * x,
    "scaled by 0.999": lambda x: 0.999 * x,
    "turned": lambda x: x.rot90(2, (-2, -1)),
    "negative": lambda x: -x,
    "one pixel lost": one_pixel_lost,
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("name", ["parallel-sparse", "fan-full-circle"])
@every_dtype
def test_a_wrong_transpose_is_seen(name: str, change: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> None:
    right = RayTransform(GEOMETRIES[name], device, dtype)
    assert adjoint_mismatch(right) < ADJOINT[dtype]
    wrong = Wrong(right, change)
    assert min(adjoint_mismatch(wrong, torch.Generator().manual_seed(seed), trials=1) for seed in range(10)) > 10 * ADJOINT[torch.float32]


def test_the_size_of_a_scale_error_is_what_comes_back(device: torch.device) -> None:
    wrong = Wrong(RayTransform(GEOMETRIES["parallel-sparse"], device, torch.float64), lambda x: 1.001 * x)
    assert adjoint_mismatch(wrong) == pytest.approx(1e-3, rel=1e-6)


def test_adjoint_mismatch_repeats_itself_and_takes_a_generator(device: torch.device) -> None:
    operator = RayTransform(GEOMETRIES["fan-full-circle"], device)
    assert adjoint_mismatch(operator) == adjoint_mismatch(operator)
    generator = torch.Generator().manual_seed(5)
    assert adjoint_mismatch(operator, generator) != adjoint_mismatch(operator, generator)


def test_no_trial_is_no_judgement() -> None:
    with pytest.raises(InputError, match="trials"):
        adjoint_mismatch(Dense(torch.ones(3, 4)), trials=0)


def test_an_operator_without_rays_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="maps a random image to zero, so its transpose cannot be judged; check that"):
        adjoint_mismatch(Dense(torch.zeros(3, 4)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="or its transpose makes NaN or infinite values of a random vector"):
        adjoint_mismatch(Wrong(RayTransform(GEOMETRIES["parallel-sparse"]), lambda x: x * value))
