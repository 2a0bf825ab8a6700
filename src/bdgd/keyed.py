"""Randomness by key, below every layer: what is drawn depends on what it is for, not on what was drawn before.

A training step, a Monte-Carlo draw or an image set names its key, such as (seed, "noise", block, step), and gets a
generator of its own. So work may be cut into batches, chunks, processes and resumed runs without changing a number.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager

import torch

from bdgd.checks import require_generator

Key = int | str


def keyed_generator(*key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device`, seeded by the SHA-256 of the key."""
    digest = hashlib.sha256("\n".join(f"{type(part).__name__} {part}" for part in key).encode()).digest()
    # 32 bits, since torch's CPU generator ignores the higher ones.
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:4], "big"))


def seed_from(generator: torch.Generator | None) -> int:
    """A seed for keys, drawn from a generator; 0 without one."""
    if generator is None:
        return 0
    require_generator(generator)
    return int(torch.randint(0, 2**31 - 1, (), generator=generator, device=generator.device))


def own_random_state() -> AbstractContextManager[None]:
    """Inside, PyTorch's global random state may be used, and outside nobody notices: layers that are made fill their weights from it."""
    return torch.random.fork_rng(devices=[])
