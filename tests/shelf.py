"""Small stand-ins for the shipped models, and small settings to go with them, for what is made from shipped weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import small_model

from bdgd.evaluation import SETTINGS
from bdgd.models import checkpoint, save
from bdgd.operators import ParallelBeam, RayTransform

SIZE = 64  # pixels: the least that leaves flat pixels beside the faint ellipse
GEOMETRIES = {
    "sparse30": ParallelBeam.sparse(image_size=SIZE, views=5),
    "limited120": ParallelBeam.limited(image_size=SIZE, degrees=12),
    "limited60": ParallelBeam.limited(image_size=SIZE, degrees=6),
}
KINDS = {"mfvi": "mean_field", "mcdo": "dropout", "dgd": "point", "lpd": "primal_dual", "best": "mean_field", "mfvi-paper": "mean_field"}


class Shelf:
    """A folder in place of that of the shipped weights."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        folder.mkdir()
        monkeypatch.setattr(checkpoint, "_weights", lambda: folder)
        for name, geometry in GEOMETRIES.items():
            monkeypatch.setitem(SETTINGS, name, geometry)

    def add(self, *names: str, seed: int = 0, path: Path | None = None) -> None:
        """Ship untrained models of these names, with three blocks, and a provenance."""
        for name in names:
            setting, kind = name.split("-", 1)
            model = small_model(KINDS[kind], RayTransform(GEOMETRIES[setting]), blocks=3)
            model.provenance = {"preset": name, "seed": seed, "commit": "c0ffee", "date": "today", "hardware": "a machine", "seconds": 1.0}
            save(model, path or self.folder / f"{name}.safetensors")
