"""What docs/scans.md shows runs, in the order of the page, and reads back what it wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

import bdgd
from bdgd.data.formats import FORMATS
from bdgd.data.scanner import read_scanner

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "scans.md").read_text()


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), names)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "torch.Size([3, 1, 90, 96]) mm 0.5" and said[1] == "True" and said[2] == "3"
    assert "interpolated between neighbours: 1 dead detector (17)" in said[3]
    assert abs(names["found"].geometry.detector_offset) < 0.1 * names["geometry"].detector_spacing
    assert names["shifted"].geometry == names["geometry"] and said[-2] == "3 0.5 mm"
    assert len(names["notes"]) == 2 and names["fitting"].geometry == names["model_geometry"]
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    Path("hand.toml").write_text(toml)
    tifffile.imwrite("hand.tif", names["y"], photometric="minisblack")
    geometry = bdgd.read_scans("hand.tif").geometry
    assert geometry == bdgd.read_geometry("hand.toml") == read_scanner(Path("hand.toml")).geometry
    assert geometry is not None and np.allclose(geometry.angles, names["geometry"].angles)


def test_every_suffix_is_on_the_page() -> None:
    for suffix in FORMATS:
        assert f"`{suffix}`" in PAGE
