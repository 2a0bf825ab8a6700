"""What `bdgd evaluate --scans FILE` does: methods scored on the scans of a file that holds the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from bdgd.apps.console import Output, Step
from bdgd.apps.provenance import digest, printable, provenance
from bdgd.checks import InputError
from bdgd.data import read_scans
from bdgd.evaluation import FULL
from bdgd.evaluation.known_truth import TV_WEIGHTS, ScanScores, scans_for, score_on_scans
from bdgd.operators import RayTransform
from bdgd.storage import write_json


def evaluate_file(
    out: Output, path: Path, methods: Sequence[str], *, draws: int, seed: int, device: torch.device, output: Path | None
) -> None:
    """Score the methods on the scans in `path`; a table, and a file with every scan's values where `output` is given."""
    whole = read_scans(path)
    try:
        scans = scans_for(whole, methods).to(device)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for note in scans.notes:
        out.note(f"{path.name}: {note}")
    assert scans.geometry is not None
    A, results = RayTransform(scans.geometry, device), {}
    for name in methods:
        steps = len(scans) * (len(TV_WEIGHTS) if name == "tv" else 1)
        with out.progress(name, steps) as step:
            tell = partial(_tell, step)
            results[name] = score_on_scans(name, A, scans, seed=seed, effort=replace(FULL, draws=draws), report=tell)
    columns = ["method", "PSNR / dB", "SSIM", "95 % interval covers", "its width", "seconds"]
    rows = [_row(name, scores) for name, scores in results.items()]
    count = f"mean of {len(scans)} scans" if len(scans) > 1 else "one scan"
    unit = f"; width in 1/{scans.unit}" if scans.unit else ""
    title = f"{printable(path.name)}, seed {seed}: {count}{unit}; intervals are counted on the object's pixels"
    out.table(columns, rows, title, right=columns[1:])
    if output is not None:
        described = {"scans": printable(path.name), "scans_sha256": digest(path), "notes": list(scans.notes), "unit": scans.unit}
        described["intervals_on"] = "the object's pixels"
        found = {name: scores.to_dict() for name, scores in results.items()}
        write_json(output, {**described, "provenance": provenance(seed, device), "methods": found})
        out.say(f"wrote {output}")


def _tell(step: Step, done: int, mean: float) -> None:
    step(done, f"{mean:.2f} dB")


def _row(name: str, scores: ScanScores) -> list[str]:
    means = scores.to_dict()
    covered = f"{means['mean_coverage']:.1%}" if "mean_coverage" in means else ""
    width = f"{means['mean_width']:.3g}" if "mean_width" in means else ""
    return [name, f"{means['mean_psnr']:.2f}", f"{means['mean_ssim']:.4f}", covered, width, f"{scores.seconds:.1f}"]
