"""The methods that can be scored, by name. Adding one is one line here.

A method comes as a function of the operator and a seed that prepares it: loads it, or chooses what is to be chosen
on validation scans.
"""

from __future__ import annotations

from collections.abc import Callable

from bdgd.checks import require_choice
from bdgd.evaluation.benchmark import Method
from bdgd.evaluation.classical import prepare_fbp, prepare_tv
from bdgd.operators import RayTransform

METHODS: dict[str, Callable[[RayTransform, int], Method]] = {
    "fbp": prepare_fbp,
    "tv": prepare_tv,
}


def find_method(name: str) -> Callable[[RayTransform, int], Method]:
    """The method of that name."""
    return METHODS[require_choice(name, tuple(METHODS), "METHOD")]
