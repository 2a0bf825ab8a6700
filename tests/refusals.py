"""What is refused is refused in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bdgd.checks import InputError


@contextlib.contextmanager
def refusal(message: str) -> Iterator[None]:
    """The block is refused by an InputError of one sentence."""
    with pytest.raises(InputError, match=message) as error:
        yield
    text = str(error.value)
    assert "\n" not in text and 20 < len(text) < 500, text
