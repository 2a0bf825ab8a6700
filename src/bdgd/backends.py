"""Whether the kernels written in Triton can be used: they make things fast, and nothing depends on them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def triton_works(device: torch.device) -> bool:
    """Whether this is a GPU on which a Triton kernel compiles and runs; found out once."""
    return device.type == "cuda" and _probe(device.index or 0)


@cache
def _probe(index: int) -> bool:
    """Old GPUs lack bfloat16, and Triton needs a C compiler: what fails here would fail later in the middle of the work."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(index) < (8, 0):
        return False
    try:
        return _adds_one(torch.device("cuda", index))
    except Exception:  # whatever the reason, there is a way without Triton
        return False


def _adds_one(device: torch.device) -> bool:
    """Whether the smallest kernel does what it says. Triton is slow to import, so it is imported here."""
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(values, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
        place = values + tl.arange(0, COUNT)
        tl.store(place, tl.load(place) + 1)

    values = torch.zeros(16, device=device)
    add_one[(1,)](values, COUNT=16)
    return bool((values == 1).all())
