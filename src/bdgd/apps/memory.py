"""Memory of a long computation on a CPU, for commands to ask for: it holds for the whole process, so no library should decide it."""

from __future__ import annotations

import ctypes

# The names and numbers of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Have the C library keep the memory that tensors give back, instead of returning it to the system; whether it can.

    Training and sampling make and drop the same large tensors over and over. glibc hands tensors of over 32 MB to the system each time,
    which has to clear every page again when the next step asks for it. Libraries have `bdgd.backends.expect_tensors` for smaller ones.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
