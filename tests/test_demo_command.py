"""`bdgd demo`: what it writes, the paper's FBP value among it, and that its seed alone decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commands import bdgd
from typer.main import get_command

from bdgd.apps import demo as demo_command
from bdgd.apps.cli import app


def test_the_demo_says_how_to_reach_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert demo_command._activation() == []  # no environment that could be entered
    (tmp_path / ".venv/bin/activate").touch()
    assert [line for line, _ in demo_command._activation()] == ["source .venv/bin/activate"]


def test_demo_writes_what_it_says(tmp_path: Path) -> None:
    result = bdgd("demo", "-o", tmp_path / "new" / "demo", "--device", "cpu", "--draws", 3)
    assert result.exit_code == 0, result.output
    assert "the intervals are not calibrated: the calibration holds for 100 draws, not 3; take --draws 100" in result.stderr
    folder = tmp_path / "new" / "demo"
    assert sorted(path.name for path in folder.iterdir()) == ["demo.json", "demo.png", "report.html"]
    assert str(folder / "demo.png") in result.output and "Try next" in result.output
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((folder / "demo.json").read_text())
    assert written["provenance"]["seed"] == 0 and written["provenance"]["torch"] == torch.__version__
    quality = {(row["phantom"], row["method"]): row["psnr"] for row in written["results"]}
    assert quality["Shepp-Logan", "FBP"] == pytest.approx(18.5, abs=0.3)  # the paper: 18.47
    for phantom in ("Shepp-Logan", "ellipses"):
        assert quality[phantom, "bdgd"] - 5 > quality[phantom, "TV"] > quality[phantom, "FBP"] + 8


def test_demo_depends_on_its_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "tv", lambda A, y, **_: demo_command.fbp(A, y, filter="hann"))
    for pictures in ("_report", "panels", "save_figure"):  # of the same numbers
        monkeypatch.setattr(demo_command, pictures, lambda *_, **__: None)
    results = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert bdgd("demo", "-o", tmp_path / folder, "--device", "cpu", "--draws", 2, "--seed", seed).exit_code == 0
        results.append(json.loads((tmp_path / folder / "demo.json").read_text())["results"])
    assert results[0] == results[1] != results[2]


def test_open_is_a_flag_like_the_others() -> None:
    option = next(option for option in get_command(app).commands["demo"].params if option.name == "open")  # type: ignore[attr-defined]
    assert option.is_flag and option.default is False
