"""The errors of a scanner against their formulas, and their independence of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys import seeded

from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Mismatch, disc, mismatch_from_dict, simulate
from bdgd.operators import ParallelBeam, RayTransform

A = RayTransform(ParallelBeam.sparse(image_size=24, views=6))


@pytest.fixture
def clean() -> torch.Tensor:
    return A(torch.cat([disc(24, radius) for radius in (4, 7, 10, 10.5)])) / 10


def test_none_of_it_changes_nothing(clean: torch.Tensor) -> None:
    assert torch.equal(Mismatch()(clean, generator=seeded()), clean)


def test_air_is_off_by_a_constant_of_its_range(clean: torch.Tensor) -> None:
    error = Mismatch(air_offset=(0.1, 0.3))(clean, generator=seeded()) - clean
    assert float(error.std((1, 2, 3)).max()) < 1e-6
    means = error.mean((1, 2, 3))
    assert (means > 0.1).all() and (means < 0.3).all() and len(means.unique()) == 4
    both = Mismatch(air_offset=0.2)(clean.repeat(25, 1, 1, 1), generator=seeded()) - clean.repeat(25, 1, 1, 1)
    assert float(both.min()) < -0.1 and float(both.max()) > 0.1


def test_hardening_shortens_long_paths_and_keeps_the_best_fitting_multiple(clean: torch.Tensor) -> None:
    y = Mismatch(hardening=(0.08, 0.08))(clean, generator=seeded())
    torch.testing.assert_close((y * clean).sum((1, 2, 3)), clean.square().sum((1, 2, 3)), rtol=1e-4, atol=0)
    typical = (clean**3).sum((1, 2, 3), keepdim=True) / (clean**2).sum((1, 2, 3), keepdim=True)
    torch.testing.assert_close(y, clean - 0.08 * clean * (clean - typical))
    longest = clean.flatten(1).argmax(1, keepdim=True)
    assert (y.flatten(1).gather(1, longest) < clean.flatten(1).gather(1, longest)).all()


def test_a_hardened_beam_obeys_its_law(clean: torch.Tensor) -> None:
    many = clean.repeat(25, 1, 1, 1)
    p = Mismatch(beam=(0.2, 0.3))(many, generator=seeded())
    b = ((many - p) / p.square()).flatten(1).gather(1, many.flatten(1).argmax(1, keepdim=True))  # p + b p^2 = q, where it is largest
    assert 0.2 <= float(b.min()) < 0.22 and 0.28 < float(b.max()) <= 0.3
    torch.testing.assert_close(p + b[:, :, None, None] * p.square(), many, rtol=1e-4, atol=1e-5)
    assert Mismatch(beam=0.3) == Mismatch(beam=(0.0, 0.3))


def test_a_beam_changes_nothing_that_was_drawn_without_one(clean: torch.Tensor) -> None:
    errors = {"air_offset": (0.1, 0.3), "axis_shift": 0.4, "gain": 0.01}
    generator = seeded()
    numbers = [(torch.rand(3, generator=generator), torch.randn(clean.shape[-1], generator=generator)) for _ in clean]
    offsets = torch.stack([0.1 + 0.2 * uniform[0] for uniform, _ in numbers])
    air = Mismatch(**errors)(torch.zeros_like(clean), generator=seeded())  # type: ignore[arg-type]
    stripes = torch.stack([0.01 * normal for _, normal in numbers])
    torch.testing.assert_close(air[:, 0, 0], offsets[:, None] + stripes)
    beam = Mismatch(**errors, beam=0.1)(torch.zeros_like(clean), generator=seeded())  # type: ignore[arg-type]
    assert torch.equal(beam[0], air[0])  # the first image's other numbers come first
    few = Mismatch(**errors, beam=0.1)(clean[:2], generator=seeded())  # type: ignore[arg-type]
    assert torch.equal(few, Mismatch(**errors, beam=0.1)(clean, generator=seeded())[:2])  # type: ignore[arg-type]


def test_a_shift_of_the_axis_is_that_of_the_detector(clean: torch.Tensor) -> None:
    whole = Mismatch(axis_shift=(2, 2))(clean, generator=seeded())
    torch.testing.assert_close(whole[..., 2:], clean[..., :-2])
    half = Mismatch(axis_shift=(-0.5, -0.5))(clean, generator=seeded())
    torch.testing.assert_close(half[..., :-1], (clean[..., :-1] + clean[..., 1:]) / 2)


def test_stripes_are_the_same_in_all_views(clean: torch.Tensor) -> None:
    many = clean.repeat(50, 1, 1, 1)
    error = Mismatch(gain=0.02)(many, generator=seeded()) - many
    assert float(error.std(2).max()) < 1e-6
    assert float(error[:, 0, 0].std()) == pytest.approx(0.02, rel=0.05)


def test_scans_with_it_do_not_depend_on_the_batch_and_keep_their_noise() -> None:
    images, noise = torch.cat([disc(24, radius) for radius in (3, 5, 8, 9, 10)]), GaussianNoise(0.01)
    mismatch = Mismatch(air_offset=0.1, hardening=0.01, axis_shift=0.4, gain=0.01)
    one, other = (simulate(A, images, noise, generator=seeded(3), batch=batch, mismatch=mismatch) for batch in (2, 256))
    torch.testing.assert_close(one.sinograms, other.sinograms)
    plain = simulate(A, images, noise, generator=seeded(3))
    assert one.images is not None and torch.equal(one.images, images) and not torch.allclose(one.sinograms, plain.sinograms)


def test_it_survives_being_written_down() -> None:
    mismatch = Mismatch(air_offset=(0.0, 0.03), hardening=0.2, axis_shift=0.25, gain=0.001)
    assert mismatch.to_dict() == {
        "air_offset": [0.0, 0.03],
        "hardening": [0.0, 0.2],
        "axis_shift": [-0.25, 0.25],
        "gain": 0.001,
        "beam": [0.0, 0.0],
    }
    assert mismatch_from_dict(mismatch.to_dict()) == mismatch and hash(mismatch) == hash(mismatch_from_dict(mismatch.to_dict()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"air": 1}, "unknown key 'air' in mismatch; known are air_offset"),
        ({"air_offset": [1, 2, 3]}, "one number or a range"),
        ({"air_offset": [2, 1]}, "swap the two numbers"),
        ({"axis_shift": "much"}, "axis_shift must be a number"),
        ({"hardening": -0.1}, "hardening must be a range from low to high"),
        ({"beam": [-0.1, 0.2]}, "beam must be at least 0"),
        ({"gain": -1}, "gain must be at least 0"),
        ({"gain": [0, 1]}, "gain must be a number"),
    ],
)
def test_what_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mismatch_from_dict(values)


def test_it_needs_a_batch() -> None:
    with pytest.raises(InputError, match=r"sinograms of shape \(B, 1, V, D\), got \(3, 4\)"):
        Mismatch()(torch.rand(3, 4), generator=seeded())
