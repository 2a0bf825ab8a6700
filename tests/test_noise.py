"""Noise against its moments, and its independence of batches and devices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bdgd.checks import InputError
from bdgd.data import random_ellipses, simulate
from bdgd.data.noise import GaussianNoise, Noise, PoissonNoise, noise_from_dict

NOISES: list[Noise] = [GaussianNoise(0.05), PoissonNoise(photons=1000, attenuation=0.02)]


def test_gaussian_level_is_relative_to_the_mean_of_each_image(generator: torch.Generator) -> None:
    clean = torch.stack((torch.full((1, 200, 300), 2.0), torch.linspace(-10, 30, 60000).reshape(1, 200, 300)))
    error = (GaussianNoise(0.03)(clean, generator=generator) - clean).double()
    level = 0.03 * clean.double().abs().mean((1, 2, 3))
    torch.testing.assert_close(error.std((1, 2, 3)), level, rtol=0.015, atol=0)
    assert (error.mean((1, 2, 3)).abs() < 4 * level / math.sqrt(60000)).all()


def test_gaussian_zero_is_clean(generator: torch.Generator) -> None:
    clean = torch.rand(2, 1, 5, 6)
    assert torch.equal(GaussianNoise(0)(clean, generator=generator), clean)


@pytest.mark.parametrize("integral", [0.0, 20.0, 60.0])
def test_poisson_counts_have_their_mean_as_variance(integral: float, generator: torch.Generator) -> None:
    noise = PoissonNoise(photons=1e4, attenuation=0.05)
    noisy = noise(torch.full((1, 1, 200, 300), integral, dtype=torch.float64), generator=generator)
    counts = 1e4 * torch.exp(-0.05 * noisy)
    expected = 1e4 * math.exp(-0.05 * integral)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-6)
    assert abs(float(counts.mean()) - expected) < 5 * math.sqrt(expected / 60000)
    assert float(counts.var()) == pytest.approx(expected, rel=0.03)


def test_poisson_without_a_count_is_half_a_count(generator: torch.Generator) -> None:
    noisy = PoissonNoise(photons=100, attenuation=0.5)(torch.full((1, 1, 4, 4), 1000.0), generator=generator)
    torch.testing.assert_close(noisy, torch.full((1, 1, 4, 4), math.log(200) / 0.5))


@pytest.mark.parametrize("noise", NOISES)
def test_noise_does_not_depend_on_the_batch(noise: Noise) -> None:
    clean = 10 * torch.rand(7, 1, 5, 9, generator=torch.Generator().manual_seed(1))
    whole = noise(clean, generator=torch.Generator().manual_seed(2))
    stream = torch.Generator().manual_seed(2)
    assert torch.equal(torch.cat([noise(part, generator=stream) for part in clean.split(3)]), whole)
    assert not torch.equal(noise(clean, generator=stream), whole)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_is_the_same_on_every_device(noise: Noise, device: torch.device, generator: torch.Generator) -> None:
    clean = 10 * torch.rand(3, 1, 5, 9, generator=torch.Generator().manual_seed(1))
    noisy = noise(clean.to(device), generator=generator)
    assert noisy.device.type == device.type and noisy.dtype == clean.dtype
    torch.testing.assert_close(noisy.cpu(), noise(clean, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("noise", NOISES)
def test_noise_goes_through_a_dict(noise: Noise) -> None:
    assert noise_from_dict(noise.to_dict()) == noise


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "kind = 'gaussian' or 'poisson', got None"),
        ({"kind": ["gaussian"]}, "kind"),
        ({"kind": "gaussian", "level": 1}, "unknown key 'level'"),
        ({"kind": "gaussian"}, "needs 'relative'"),
        ({"kind": "poisson", "attenuation": 1.0}, "needs 'photons'"),
        ({"kind": "gaussian", "relative": -0.1}, "relative noise must be at least 0"),
        ({"kind": "gaussian", "relative": "x"}, "relative noise must be a number"),
        ({"kind": "poisson", "photons": 0}, "photons must be above 0"),
        ({"kind": "poisson", "photons": 10, "attenuation": math.inf}, "attenuation must be finite"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        noise_from_dict(values)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("clean", "message"),
    [
        (torch.full((1, 1, 2, 2), math.nan), "must be finite"),
        (torch.ones(2, 2, dtype=torch.int64), "floating point"),
        (torch.ones(5), r"got torch.float32 \(5,\)"),
        ([1.0], "got list"),
    ],
)
def test_bad_sinograms_are_named(noise: Noise, clean: torch.Tensor, message: str, generator: torch.Generator) -> None:
    with pytest.raises(InputError, match=message):
        noise(clean, generator=generator)


def test_poisson_refuses_an_infinite_count(generator: torch.Generator) -> None:
    with pytest.raises(InputError, match="expected photon count must be finite"):
        PoissonNoise(photons=10)(torch.full((1, 1, 2, 2), -1e4), generator=generator)


def test_poisson_refuses_counts_that_cannot_be_drawn(generator: torch.Generator) -> None:
    with pytest.raises(InputError, match=r"a ray would count 6\.07e\+19 photons, more than can be drawn; take fewer, or noise=None"):
        PoissonNoise(photons=1e20)(torch.full((1, 1, 2, 2), 0.5), generator=generator)


def test_not_even_the_last_bit_depends_on_the_batch(generator: torch.Generator) -> None:
    """The mean of a whole batch is summed in another order than that of a part, or of another layout of memory."""
    clean = torch.rand(16, 1, 30, 93, generator=generator)
    whole = GaussianNoise(0.01)(clean, generator=torch.Generator().manual_seed(2))
    columns = clean.reshape(16, -1).T.contiguous().T.reshape(clean.shape)
    again = torch.Generator().manual_seed(2)
    parts = torch.cat([GaussianNoise(0.01)(part, generator=again) for part in columns.split(7)])
    assert torch.equal(parts, whole)


@pytest.mark.parametrize(
    ("noise", "generator", "message"),
    [(0.01, torch.Generator(), "noise must be one such as bdgd.GaussianNoise"), (None, 3, "generator must be a torch.Generator, got 3")],
)
def test_simulating_needs_a_noise_and_a_generator(noise: Any, generator: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(torch.clone, torch.rand(2, 1, 4, 4), noise, generator=generator)


def test_ellipses_need_a_generator() -> None:
    with pytest.raises(InputError, match=r"generator must be a torch\.Generator, got None"):
        random_ellipses(2, 8, generator=None)  # type: ignore[arg-type]
