"""A disk without room, as the operating system has it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full after `limit` bytes of a file."""
    resource = pytest.importorskip("resource", reason="this system cannot limit the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_room(*_: Any, **__: Any) -> None:
    """In place of a function that writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
