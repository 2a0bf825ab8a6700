"""The image sets of the experiments, each a stream of its own that a name and a seed fix.

The four sets are disjoint by construction: the two lowest bits of the seed of a set's generator are the set's number, so no two sets
ever start from the same state, whatever their seeds, and each is as long as wanted.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from bdgd.checks import InputError, require_choice, require_count
from bdgd.data.phantoms import Ellipses, draw_ellipses, random_ellipses, rasterise, shepp_logan, shepp_logan_ellipses

SETS = ("train", "validation", "calibration", "test")


def named_generator(name: str, seed: int = 0) -> torch.Generator:
    """A CPU generator for one purpose, seeded by the SHA-256 of its name and the seed: a new name is a new stream."""
    return torch.Generator().manual_seed(_hashed(name, seed))


def ellipse_images(set_name: str, count: int, size: int = 128, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """(count, 1, size, size): the first images of the set "train", "validation", "calibration" or "test" of random ellipses.

    A smaller count gives the first images of a larger one. No image of one set is in another, for any two seeds.
    """
    return random_ellipses(count, size, generator=_set_generator(set_name, seed), device=device)


def ellipse_parameters(set_name: str, count: int, seed: int = 0) -> Ellipses:
    """What `ellipse_images` draws, before its values are shifted and scaled to [0, 1]: where each ellipse lies."""
    return draw_ellipses(count, _set_generator(set_name, seed))


def table_images(size: int = 128) -> Tensor:
    """(101, 1, size, size): the fixed test set of the tables, the first 100 images of the set "test" with seed 0, then Shepp-Logan.

    Report [:100] and [100:] apart, as the paper does. The set is for the last evaluation only: choose everything on "validation".
    """
    return torch.cat((ellipse_images("test", 100, size, seed=0), shepp_logan(size)))


def head_images(set_name: str, count: int, size: int = 128, seed: int = 0) -> Tensor:
    """(count, 1, size, size): Shepp-Logan's relatives, for what must be chosen for it without looking at it.

    Half-axes and values vary by a tenth, centres by 0.02, rotations by 0.1 (standard deviations); values end in [0, 1].
    """
    require_choice(set_name, SETS, "set_name")
    phantom, generator = shepp_logan_ellipses(), named_generator(f"heads {set_name}", seed)
    normal = torch.randn(require_count(count, "count"), phantom.value.shape[1], 6, generator=generator, dtype=torch.float64)
    normal[:, 1, 1:] = normal[:, 0, 1:]  # skull and brain move together, or the skull would open
    heads = Ellipses(
        phantom.value * torch.where(torch.arange(10) < 2, 1.0, 1 + 0.1 * normal[..., 0]),
        phantom.half_axes * (1 + 0.1 * normal[..., 1:3].clamp(-2, 2) * torch.where(torch.arange(10) < 2, 0.3, 1.0)[:, None]),
        phantom.centre + 0.02 * normal[..., 3:5] * torch.where(torch.arange(10) < 2, 0.5, 1.0)[:, None],
        phantom.rotation + 0.1 * normal[..., 5],
    )
    return rasterise(heads, size).clamp(0, 1)


def _set_generator(set_name: str, seed: int) -> torch.Generator:
    number = SETS.index(require_choice(set_name, SETS, "set_name"))
    return torch.Generator().manual_seed(_hashed("ellipses", seed) // 4 * 4 + number)


def _hashed(name: str, seed: int) -> int:
    """32 bits, since torch's CPU generator ignores the higher ones."""
    if not isinstance(name, str):
        raise InputError(f"name must be a string, got {type(name).__name__}")
    digest = hashlib.sha256(f"{name}\n{require_count(seed, 'seed', least=0)}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
