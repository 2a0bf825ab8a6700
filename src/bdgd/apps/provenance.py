"""Where a result comes from: plain data that goes into every file a command writes."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

import bdgd
from bdgd.evaluation.pages import short_commit


def provenance(seed: int | None, device: torch.device | str) -> dict[str, Any]:
    """Versions, commit, hardware, date and seed of a result."""
    return {
        "bdgd": bdgd.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": hardware(device),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
    }


def measured_on(origin: dict[str, Any]) -> str:
    """Where a result comes from, in one sentence for a page."""
    took = f" in {origin['seconds']:.0f} s" if "seconds" in origin else ""
    made = f"seed {origin['seed']}, commit {short_commit(str(origin['commit']))}, {origin['date'][:10]}"
    return f"Measured on {origin['hardware']}{took}, {made}."


def version_of(package: str) -> str | None:
    """The installed version; None if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the source, with "-modified" if code differs from it; None where the source is not a git checkout of its own.

    Shipped weights are no code: results name the models they come from, each with the commit that trained it.
    """
    here = Path(__file__).resolve()
    # A package installed below somebody else's checkout is not part of it: git must know this very file.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None or (revision := _git(here.parent, "rev-parse", "HEAD")) is None:
        return None
    return revision + ("-modified" if _git(here.parents[1], "status", "--porcelain", "--", ".", ":(exclude)models/weights") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says there, without the variables by which a git hook points elsewhere; None if it fails or is not installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hardware(device: torch.device | str) -> str:
    """The name of the GPU, or of the processor with its number of cores."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores"


def file_name(device: str) -> str:
    """The name of a device as the name of a file: small letters, numbers and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def printable(name: str) -> str:
    """A file's name with a question mark for every byte of it that is no text."""
    return name.encode("utf-8", "replace").decode()


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
