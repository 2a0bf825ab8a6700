"""What the cases of all formats share: a right scan, and how a file of it is cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bdgd.operators import ParallelBeam

GEOMETRY = ParallelBeam(image_size=6, angles=[0.1, 0.7, 2.0], detectors=11)
Y = np.random.default_rng(0).random((2, 3, 11), dtype=np.float32)


class Case(NamedTuple):
    """A file, how it is written, and what the sentence about it says."""

    file: str
    write: Callable[[Path], Any]
    message: str


def truncated(write: Callable[[Path], Any], keep: float) -> Callable[[Path], None]:
    """What `write` writes, without its end."""

    def cut(path: Path) -> None:
        write(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(keep * len(whole))])

    return cut
