"""The named sets of images: fixed by name and seed, and without an image in common."""

from __future__ import annotations

import pytest
import torch

from bdgd.checks import InputError
from bdgd.data import sets
from bdgd.data.phantoms import shepp_logan


def test_the_sets_share_no_image() -> None:
    images = torch.cat([sets.ellipse_images(name, 200, 24, seed=seed) for name in sets.SETS for seed in (0, 1)])
    assert len({image.numpy().tobytes() for image in images}) == 8 * 200


def test_no_two_sets_start_from_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "_hashed", lambda name, seed: 2**32 - 1)  # even if all hashes were one
    first = torch.cat([sets.ellipse_images(name, 5, 24) for name in sets.SETS])
    assert len({image.numpy().tobytes() for image in first}) == 20


def test_sets_are_fixed_by_name_and_seed() -> None:
    assert torch.equal(sets.ellipse_images("train", 9, 24)[:4], sets.ellipse_images("train", 4, 24))
    assert not torch.equal(sets.ellipse_images("train", 4, 24, seed=1), sets.ellipse_images("train", 4, 24))
    a, b, c = (torch.rand(3, generator=sets.named_generator(*key)) for key in (("noise", 0), ("noise", 1), ("other", 0)))
    assert len({tuple(v.tolist()) for v in (a, b, c)}) == 3
    assert torch.equal(a, torch.rand(3, generator=sets.named_generator("noise", 0)))


def test_the_test_set_of_the_tables_never_changes() -> None:
    images = sets.table_images()
    assert images.shape == (101, 1, 128, 128)
    assert torch.equal(images[100:], shepp_logan(128))
    assert torch.equal(images[:100], sets.ellipse_images("test", 100))
    means = images.double().mean((1, 2, 3))
    torch.testing.assert_close(means[[0, 1, 99]], torch.tensor([0.3458339, 0.5076467, 0.2165734], dtype=torch.float64), rtol=0, atol=1e-6)


def test_bad_sets_are_named() -> None:
    with pytest.raises(InputError, match="set_name must be one of 'train', 'validation', 'calibration', 'test', got 'dev'"):
        sets.ellipse_images("dev", 1)
    with pytest.raises(InputError, match="seed must be at least 0"):
        sets.named_generator("noise", -1)
    with pytest.raises(InputError, match="name must be a string"):
        sets.named_generator(3, 0)  # type: ignore[arg-type]
