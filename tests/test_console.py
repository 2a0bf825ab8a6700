"""What the commands share: progress bars, tables, ticks, and the provenance of what they write."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bdgd.apps import console, provenance
from bdgd.apps.console import Output


def test_an_interrupt_leaves_no_hdf5_file_open_whoever_holds_it(tmp_path: Path) -> None:
    """One that outlives the job would be closed while Python is being taken down, which ends in tracebacks or a crash."""
    code = """
import sys, h5py
from bdgd.apps.console import run
from bdgd.storage import PatientFile

def job():
    file = h5py.File(PatientFile(sys.argv[1], "x+"), "w")
    PatientFile.kept = file, file.create_dataset("values", (3,), "f4")
    raise KeyboardInterrupt

sys.exit(run(job))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.h5")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 130 and done.stderr.splitlines() == ["bdgd: interrupted; files that were already written are complete"]


def test_progress_is_a_bar_on_a_terminal_plain_lines_elsewhere_and_nothing_when_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", 0.0)
    for quiet in (False, True):
        with Output(quiet).waiting("choosing [a weight]"):
            pass
        with Output(quiet).progress("TV", 4) as step:
            step(1, figure="38.4 dB")
            step(3, figure="38.5 dB")
    lines = capsys.readouterr().err.splitlines()
    assert lines.pop(0) == "choosing [a weight]"
    assert [re.sub(r"\d+ s", "n s", line) for line in lines] == ["TV: 1/4, n s left, 38.4 dB", "TV: 4/4, n s, 38.5 dB"]

    out, screen = Output(), io.StringIO()
    out._progress = Console(file=screen, force_terminal=True, width=100)
    with out.waiting("choosing [a weight]"):
        pass
    assert "choosing [a weight]" in screen.getvalue()
    with out.progress("TV", 4) as step:
        step(1, figure="38.4 dB")
    assert "1/4" in screen.getvalue() and "38.4 dB" in screen.getvalue() and "━" in screen.getvalue()


def test_tables_are_boxes_on_a_terminal_and_plain_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    out, screen = Output(), io.StringIO()
    out.table(("name", "dB"), [("[tv]", "9.5"), ("fbp", "10.25")], "title", right=("dB",))
    assert capsys.readouterr().out == "title\nname     dB\n[tv]    9.5\nfbp   10.25\n"
    out._results = Console(file=screen, force_terminal=True, width=100)
    out.table(("name", "dB"), [("[tv]", "9.5")], "title")
    assert "[tv]" in screen.getvalue() and "─" in screen.getvalue()


@pytest.mark.parametrize("width", [30, 50, 51, 100])
def test_no_terminal_is_so_narrow_that_a_number_is_cut_off(width: int) -> None:
    out, screen = Output(), io.StringIO()
    out._results = Console(file=screen, force_terminal=True, width=width)
    columns = ["scan", "largest value", "mean std", "residual / noise", "PSNR (dB)"]
    rows = [["my scan.h5", "1.003", "0.000304", "1.01", "65.43"]]
    out.table(columns, rows, "title", right=columns[1:])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert all(word in shown.split() for cell in (*columns, *rows[0]) for word in cell.split()) and "…" not in shown
    assert ("─" in shown) == (width >= 51)  # else the plain lines, which the terminal wraps
    assert width < 51 or max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize(("encoding", "marks"), [("utf-8", ["✓", "✗"]), ("ascii", ["ok", "NO"])])
def test_an_output_without_ticks_gets_words(encoding: str, marks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", screen)
    out = Output()
    assert [out.mark(good) for good in (True, False)] == marks
    out.say("128² pixels")  # is shown as well as it can be
    screen.flush()
    assert screen.buffer.getvalue().startswith(b"128")  # type: ignore[attr-defined]


def test_provenance_is_plain_data_and_knows_a_foreign_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = provenance.provenance(5, "cpu")
    assert json.loads(json.dumps(found)) == found and found["seed"] == 5
    answers = {"ls-files": "provenance.py", "rev-parse": "abc", "status": " M cli.py"}
    monkeypatch.setattr(provenance, "_git", lambda folder, command, *rest: answers[command])
    assert provenance.commit() == "abc-modified"
    answers |= {"status": ""}
    assert provenance.commit() == "abc"
    answers |= {"ls-files": None}  # git does not know this file: the checkout around it is somebody else's
    assert provenance.commit() is None
