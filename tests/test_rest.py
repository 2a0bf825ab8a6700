"""The smooth rest of a scan: against the dense solution, and what it does to images that explain their scans or do not."""

from __future__ import annotations

import pytest
import torch
from refusals import refusal

import bdgd
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.inference import explain_rest, reconstruct
from bdgd.inference.rest import EDGE, smooth_rest
from bdgd.models import DeepGradientDescent
from bdgd.operators import ParallelBeam, RayTransform, operator_norm

SIZE = 16


def make_model(value_scale: float = 1.0) -> DeepGradientDescent:
    return DeepGradientDescent(RayTransform(ParallelBeam.sparse(image_size=SIZE, views=12)), blocks=2, value_scale=value_scale)


@pytest.mark.parametrize("value_scale", [1.0, 0.05])
def test_it_solves_the_dense_system(value_scale: float, generator: torch.Generator) -> None:
    """The normal equations of the module's formula, built pixel pair by pixel pair."""
    model, pixels = make_model(value_scale), SIZE * SIZE
    mean = value_scale * random_ellipses(1, SIZE, generator=generator)
    y = model.A(mean) + value_scale * torch.rand((1, *model.A.range_shape), generator=generator)
    columns = model.A(torch.eye(pixels).reshape(pixels, 1, SIZE, SIZE)).flatten(1).T.double()
    norm, matrix = operator_norm(model.A), torch.zeros(pixels, pixels, dtype=torch.float64)
    values, number = mean.flatten().double(), torch.arange(pixels).reshape(SIZE, SIZE)
    neighbours = (number[1:], number[:-1]), (number[:, 1:], number[:, :-1])
    pairs = torch.cat([torch.stack((a.flatten(), b.flatten()), 1) for a, b in neighbours])
    for i, j in pairs.tolist():
        g = 1 / (1 + ((values[i] - values[j]) / (EDGE * value_scale)) ** 2)
        matrix[i, i], matrix[j, j], matrix[i, j], matrix[j, i] = matrix[i, i] + g, matrix[j, j] + g, matrix[i, j] - g, matrix[j, i] - g
    right = columns.T @ (y - model.A(mean)).flatten().double() / norm**2
    exact = torch.linalg.solve(columns.T @ columns / norm**2 + 0.1 * matrix, right)
    found = smooth_rest(model, y, mean, weight=0.1).flatten().double()
    assert float((found - exact).norm() / exact.norm()) < 1e-3


def test_an_image_that_explains_its_scan_has_no_rest_and_a_batch_is_its_images(generator: torch.Generator) -> None:
    model, x = make_model(), random_ellipses(3, SIZE, generator=generator)
    assert float(smooth_rest(model, model.A(x), x).abs().max()) < 1e-4
    y = model.A(x) + torch.rand((3, *model.A.range_shape), generator=generator)
    together = smooth_rest(model, y, x)
    alone = torch.cat([smooth_rest(model, y[b : b + 1], x[b : b + 1]) for b in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=1e-4)


def test_what_a_model_does_not_know_comes_back_with_its_edges(generator: torch.Generator) -> None:
    """The truth is a disc of 0.9 with a hole of 0.1; the mean says 1 and 0. The rest finds both steps, and blurs neither."""
    model = make_model()
    x = torch.arange(SIZE) - 7.5
    radius = (x[:, None] ** 2 + x[None] ** 2).sqrt()[None, None]
    disc, hole = radius < 7, radius < 3.5
    mean = (disc & ~hole).float()
    truth = torch.where(hole, 0.1, torch.where(disc, 0.9, 0.0))
    rest = smooth_rest(model, model.A(truth), mean, weight=0.01)
    assert float((mean + rest - truth).abs().max()) < 0.3 * float((mean - truth).abs().max())


def test_a_posterior_moves_with_its_draws_and_keeps_its_variances(generator: torch.Generator) -> None:
    model = make_model()
    y = model.A(random_ellipses(2, SIZE, generator=generator))
    before = reconstruct(model, y, 4, generator=generator)
    after = explain_rest(model, y, before)
    torch.testing.assert_close(torch.stack(list(after.draws())).mean(0), after.mean, rtol=1e-4, atol=1e-5)
    assert torch.equal(after.std, before.std) and float(after.mean.min()) >= 0
    missed = [(model.A(posterior.mean) - y).norm() for posterior in (before, after)]
    assert float(missed[1]) < 0.5 * float(missed[0])
    with pytest.raises(InputError, match="weight"):
        explain_rest(model, y, before, weight=0.0)


def test_what_was_moved_is_not_calibrated_any_more(generator: torch.Generator) -> None:
    model = make_model()
    scans = simulate(model.A, random_ellipses(22, SIZE, generator=generator), GaussianNoise(0.01), generator=generator)
    model = model.with_calibration(bdgd.calibrate(model, scans[:20], draws=2))
    before = reconstruct(model, scans.sinograms[20:], 2)
    after = explain_rest(model, scans.sinograms[20:], before)
    assert before.calibrated and not after.calibrated
    widths = [upper - lower for lower, upper in (posterior.interval(0.5) for posterior in (before, after))]
    inside = (before.interval(0.5)[0] > 0) & (after.interval(0.5)[0] > 0)
    torch.testing.assert_close(widths[0][inside], widths[1][inside], rtol=1e-3, atol=1e-4)
    with refusal("not with a rest added"):
        after.interval(0.5, calibrated=True)


def test_every_posterior_needs_its_own_sinogram(generator: torch.Generator) -> None:
    model, x = make_model(), random_ellipses(3, SIZE, generator=generator)
    posterior = reconstruct(model, model.A(x), draws=2)
    with refusal("there are 1 sinograms and 3 posteriors; pass each posterior with its own sinogram"):
        explain_rest(model, model.A(x[:1]), posterior)
    with refusal("the model works in torch.float32, the sinogram is torch.float64"):
        explain_rest(model, model.A(x).double(), posterior)
