"""Checks of what comes in from outside, below every layer: each failure is one sentence with the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class InputError(ValueError):
    """Something the caller passed cannot be used; the message names what was expected, what came and what to do."""


class Diverged(InputError):
    """A training whose loss explodes, or whose loss or weights are no longer finite."""


def require_batch(value: Tensor, item_shape: Sequence[int], name: str) -> None:
    """Raise unless `value` is a floating-point tensor of shape (B, *item_shape) with B >= 1."""
    expected = "(B, " + ", ".join(str(n) for n in item_shape) + ")"
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a torch tensor of shape {expected}, got {type(value).__name__}; convert it with torch.as_tensor")
    if not value.is_floating_point():
        raise InputError(f"{name} must be floating point, got {value.dtype}; convert it with .to(torch.float32)")
    if value.ndim != len(item_shape) + 1 or tuple(value.shape[1:]) != tuple(item_shape):
        raise InputError(f"{name} must have shape {expected}, got {tuple(value.shape)}{_shape_remedy(value, item_shape)}")
    if value.shape[0] == 0:
        raise InputError(f"{name} is empty: shape {tuple(value.shape)} holds no image; pass a batch of at least one")


def _shape_remedy(value: Tensor, item_shape: Sequence[int]) -> str:
    if tuple(value.shape) == tuple(item_shape):
        return "; add the batch axis with [None]"
    if tuple(value.shape) == tuple(item_shape[1:]):
        return "; add batch and channel axes with [None, None]"
    if value.ndim == len(item_shape) and tuple(value.shape[1:]) == tuple(item_shape[1:]):
        return "; add the channel axis with [:, None]"
    return "; check that it belongs to this operator"


def require_operator(A: object, user: str) -> None:
    """Raise unless A is a linear operator: a geometry alone, which is easily passed instead, is none."""
    if not all(hasattr(A, name) for name in ("domain_shape", "range_shape", "T")) or not callable(A):
        raise InputError(
            f"{user} needs an operator such as bdgd.RayTransform(geometry), with domain_shape, range_shape, A(x) and A.T(y), got"
            f" {type(A).__name__}"
        )


def require_finite(value: Tensor, name: str) -> None:
    """Raise if `value` holds a NaN or an infinity (waits for the device)."""
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise InputError(f"{name} must be finite, but {bad} of its {value.numel()} values are NaN or infinite; mask or repair them first")


def require_positive(value: float, name: str) -> float:
    """`value` as a float; raise unless it is a finite number above zero."""
    number = require_number(value, name)
    if number <= 0:
        raise InputError(f"{name} must be above 0, got {value!r}")
    return number


def require_number(value: float, name: str) -> float:
    """`value` as a float; raise unless it is a finite real number."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # float would read it
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # the last by a tensor of several values
        shape = tuple(getattr(value, "shape", ()))
        got = f"{type(value).__name__} of shape {shape}" if shape else repr(value)
        raise InputError(f"{name} must be a number, got {got}") from None
    except OverflowError:  # of a whole number that is too long to be shown
        raise InputError(f"{name} must be a finite number, got one with more digits than a float can have; write a smaller one") from None
    if not math.isfinite(number):
        raise InputError(f"{name} must be finite, got {value!r}")
    return number


def require_count(value: int, name: str, least: int = 1) -> int:
    """`value` as an int; raise unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    number = value.__index__()
    if number < least:
        raise InputError(f"{name} must be at least {least}, got {number}")
    return number


def require_generator(generator: torch.Generator) -> None:
    """Raise unless it is a generator of random numbers."""
    if not isinstance(generator, torch.Generator):
        raise InputError(f"generator must be a torch.Generator, got {generator!r}; make one with torch.Generator().manual_seed(0)")


def require_device(device: torch.device | str) -> torch.device:
    """The device; raise unless PyTorch knows it and has memory there."""
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device must be one such as 'cpu' or 'cuda', got {device!r}") from None
    if known.type == "meta":
        raise InputError("device must be one that computes, such as 'cpu' or 'cuda', got 'meta'")
    return known


def require_choice(value: str, choices: Sequence[str], name: str) -> str:
    """`value`; raise unless it is one of `choices`."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
