"""What the README shows runs: its Python example, and the commands it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bdgd.apps.cli import COMMANDS

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    quality = re.search(r"tensor\(\[(.*?)\]", capsys.readouterr().out)
    assert quality is not None and float(quality.group(1)) > 45  # dB, on Shepp-Logan with shipped weights


def test_the_commands_exist() -> None:
    named = set(re.findall(r"^bdgd (\w+)", README, re.MULTILINE))
    assert named and named <= {command.__name__ for command in COMMANDS}
