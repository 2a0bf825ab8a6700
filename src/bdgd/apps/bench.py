"""`bdgd bench`: how fast projecting, training and sampling are here, beside what others offer, in one run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from bdgd.apps.console import Output
from bdgd.apps.options import Device, choose_device, require_writable
from bdgd.apps.provenance import hardware, provenance
from bdgd.evaluation.speed import Timing, projector_timings, sampling_timings, training_timings
from bdgd.storage import write_json


def bench(
    out: Output,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file for the numbers.")] = None,
    large: Annotated[bool, typer.Option("--large", help="Also 512 x 512 pixels with 360 views, which needs 3 GB.")] = False,
    device: Device = "auto",
) -> None:
    """Measure the inner loops: the projector against ASTRA and scikit-image, a training step against a plain loop, sampling."""
    where = choose_device(device)
    if output is not None:
        require_writable(output)
    timings = _measure(out, where, large)
    columns = ("what", "by", "images per second", "times faster")
    rows = [(t.what, t.by, _rate(t), f"{t.ratio:.1f} than {t.against}" if t.ratio else "") for t in timings]
    out.table(columns, rows, f"on {hardware(where)}", right=columns[2:3])
    if output is not None:
        write_json(output, {"timings": [asdict(t) for t in timings], "provenance": provenance(0, where)})
        out.say(f"wrote {output}")


def _measure(out: Output, where: torch.device, large: bool) -> list[Timing]:
    on_gpu = where.type == "cuda"
    cases = [(128, 30, 1), (128, 30, 64), (256, 60, 16)] + ([(512, 360, 4)] if large else [])
    timings: list[Timing] = []
    with out.progress("measuring", 3) as step:
        timings += projector_timings(where, cases)
        step(1, "projector")
        timings += training_timings(where, [128, 32, 16] if on_gpu else [16], images=4096 if on_gpu else 64)
        step(1, "training")
        timings += sampling_timings(where, images=101 if on_gpu else 1)
        step(1, "sampling")
    return timings


def _rate(timing: Timing) -> str:
    return "not installed" if timing.per_second is None else f"{timing.per_second:,.1f}"
