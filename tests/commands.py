"""The command line as a user types it: in this process, in one of its own, and the one sentence it has for what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from bdgd.apps import cli

SOURCE = Path(__file__).resolve().parents[1] / "src"


def bdgd(*arguments: object) -> Any:
    """The result of a command run in this process."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="bdgd")


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process that is to find this checkout's package first."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **changes}


def bdgd_process(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
    """The result of a command run in a process of its own; `changes` are to its environment."""
    command = [sys.executable, "-m", "bdgd", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**changes), timeout=300)


def assert_one_sentence(result: Any, code: int = 2) -> str:
    """The one line on stderr of a command that failed with `code`."""
    lines = result.stderr.splitlines()
    assert result.exit_code == code, result.output
    assert len(lines) == 1 and lines[0].startswith("bdgd: "), result.stderr
    return lines[0]
