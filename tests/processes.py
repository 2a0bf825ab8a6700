"""Processes of their own for tests that kill them or let several train together."""

from __future__ import annotations

import multiprocessing
from typing import Any


def process_context() -> Any:
    """Where new processes come from: a server that has imported everything already, so that each starts at once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bdgd.training", "pytest", "torch._dynamo", "torch.distributed"])
    return context
