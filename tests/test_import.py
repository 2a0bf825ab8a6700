"""`import bdgd` is quick and quiet: it prints nothing, changes nothing and does not load what only some commands need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
HEAVY = ["matplotlib", "skimage", "h5py", "typer", "rich", "scipy", "triton"]
SECONDS_BEYOND_TORCH = 2.0  # what a user must not wait longer than, the measurement being the best of three

PROGRAM = """
import json, random, sys, time
import numpy, torch

def state():
    return {
        "torch seed": torch.get_rng_state().tolist(),
        "numpy seed": repr(numpy.random.get_state()),
        "random seed": repr(random.getstate()),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
    }

before = state()
start = time.perf_counter()
import bdgd
seconds = time.perf_counter() - start
after = state()
report = {"seconds": seconds, "changed": [key for key in before if before[key] != after[key]], "modules": list(sys.modules)}
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
"""


def import_once(folder: Path) -> dict[str, Any]:
    """What `import bdgd` does in a fresh interpreter, torch having been imported before it."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "report.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return {**report, "printed": done.stdout + done.stderr}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return import_once(tmp_path_factory.mktemp("import"))


def test_import_prints_nothing(report: dict[str, Any]) -> None:
    assert report["printed"] == ""


def test_import_changes_no_global_state(report: dict[str, Any]) -> None:
    assert report["changed"] == []


def test_import_leaves_heavy_packages_alone(report: dict[str, Any]) -> None:
    assert [name for name in HEAVY if name in report["modules"]] == []


def test_import_is_quick(report: dict[str, Any], tmp_path: Path) -> None:
    seconds = report["seconds"]
    for _ in range(2):  # a busy machine may be slow once, not three times
        if seconds >= SECONDS_BEYOND_TORCH:
            seconds = min(seconds, import_once(tmp_path)["seconds"])
    assert seconds < SECONDS_BEYOND_TORCH
