"""Processes of their own for tests that kill them or let several train together, and what every process of the tests computes with."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch

from bdgd import backends


def same_numbers_everywhere() -> None:
    """One thread per process: tests run side by side, and the bits of a sum depend on how many threads share it.

    And float32 on every CPU: training is compared with formulas to its last bits. test_fast_convolutions has bfloat16.
    """
    torch.set_num_threads(1)
    backends.prefers_bfloat16 = lambda device: device.type == "cuda"


def process_context() -> Any:
    """Where new processes come from: a server that has imported everything already, so that each starts at once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bdgd.training", "pytest", "torch._dynamo", "torch.distributed"])
    return context
