"""The command line: its commands and their order, and one line with an exit code for whatever goes wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import assert_one_sentence, bdgd, bdgd_process, environment

from bdgd.apps import cli
from bdgd.apps import demo as demo_command
from bdgd.checks import InputError

ORDER = ["demo", "doctor", "reconstruct", "train", "simulate", "evaluate", "calibrate", "stress", "measured", "reproduce", "bench", "serve"]


# --- The list of commands --------------------------------------------------------------------------------------------


def test_help_lists_the_commands_in_the_order_of_the_design() -> None:
    result = bdgd("--help")
    assert result.exit_code == 0
    listed = re.findall(r"^│ ([a-z]+)  ", result.output, re.MULTILINE)
    assert listed == [command.__name__ for command in cli.COMMANDS]
    assert listed == [name for name in ORDER if name in listed]


@pytest.mark.parametrize("command", [command.__name__ for command in cli.COMMANDS])
def test_every_command_has_help_and_the_shared_options(command: str) -> None:
    result = bdgd(command, "--help")
    assert result.exit_code == 0
    assert "--quiet" in result.output and "--debug" in result.output
    assert "bool" not in result.output.lower()  # a flag takes no value
    assert not re.search(r"\.\.\.[}\]]", result.output)  # that a name may be given several times is said once, behind its brackets


def test_the_module_runs_as_a_program() -> None:
    done = bdgd_process("--version")
    assert done.returncode == 0 and done.stdout.startswith("bdgd ") and done.stderr == ""


def test_an_unknown_option_is_an_error() -> None:
    result = bdgd("demo", "--nonsense")
    assert result.exit_code == 2 and "No such option" in result.stderr and "--nonsense" in result.stderr


# --- Wrong inputs ----------------------------------------------------------------------------------------------------


WRONG = [
    (("demo", "--device", "abacus"), "--device must be"),
    (("demo", "--device", "cuda:99"), "CUDA devices"),
    (("doctor", "--device", "mps"), "--device must be"),
    (("simulate", "-o", "{tmp}"), "it is a folder"),
    (("simulate", "-o", "{tmp}/none/scan.h5"), "No such file or directory"),
    (("simulate", "-o", "{tmp}/a.h5", "--views", "0"), "--views must be at least 1"),
    (("simulate", "-o", "{tmp}/a.h5", "--size", "-3"), "--size must be at least 1"),
    (("simulate", "-o", "{tmp}/a.h5", "--count", "0"), "--count must be at least 1"),
    (("simulate", "-o", "{tmp}/a.h5", "--views", "3", "--degrees", "3"), "exclude each other"),
    (("simulate", "-o", "{tmp}/a.h5", "--noise", "0.1", "--photons", "10"), "exclude each other"),
    (("simulate", "-o", "{tmp}/a.h5", "--noise", "-1"), "at least 0"),
    (("simulate", "-o", "{tmp}/a.h5", "--noise", "nan"), "finite"),
    (("simulate", "-o", "{tmp}/a.h5", "--photons", "0"), "above 0"),
    (("simulate", "-o", "{tmp}/a.h5", "--attenuation", "1"), "--photons"),
    (("simulate", "-o", "{tmp}/a.h5", "--geometry", "{tmp}/none.toml"), "No such file or directory"),
    (("simulate", "-o", "{tmp}/a.h5", "--geometry", "{tmp}/file"), "not valid"),
    (("simulate", "-o", "{tmp}/a.h5", "--geometry", "{tmp}/file", "--size", "9"), "exclude each other"),
    (("simulate", "-o", "{tmp}/a.h5", "--phantom", "text", "--text", ""), "text"),
    (("simulate", "-o", "{tmp}/a.npz"), "would be read as another format"),
    (("simulate", "-o", "{tmp}/a.TIF"), "would be read as another format"),
    (("evaluate", "magic"), "METHOD must be one of"),
    (("evaluate", "fbp", "--images", "1"), "from 2 to 101"),
    (("evaluate", "fbp", "--images", "102"), "from 2 to 101"),
    (("evaluate", "fbp", "--images", "2", "-o", "{tmp}/none/e.json"), "No such file or directory"),
    (("evaluate", "sparse30-dgd", "limited120-dgd", "--images", "2"), "limited120-dgd was trained for another geometry"),
    (("evaluate", "sparse30-dgd", "--setting", "limited60"), "sparse30-dgd was trained for another geometry"),
    (("evaluate", "sparse30-mfvi", "--uncertainty", "--figure", "{tmp}/a.jpgg"), "must end in one of"),
    (("stress", "sparse30-mfvi", "--figure", "{tmp}/a"), "must end in one of"),
    (("stress", "sparse30-mfvi", "--draws", "2"), "the calibration holds for 100 draws, not 2; take --draws 100, or leave it out"),
    (("demo", "-o", "{tmp}/file"), "it is a file"),
    (("demo", "-o", "{tmp}/file/demo"), "cannot write"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_a_wrong_input_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("this is not [ TOML")
    assert expected in assert_one_sentence(bdgd(*(argument.format(tmp=tmp_path) for argument in arguments)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left behind"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
@pytest.mark.parametrize("arguments", [("demo", "-o"), ("simulate", "-o"), ("evaluate", "fbp", "-o")], ids=lambda value: value[0])
def test_a_folder_without_permission_is_one_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in assert_one_sentence(bdgd(*arguments, tmp_path / "result"))


def test_a_wrong_input_in_a_process_of_its_own() -> None:
    done = bdgd_process("simulate", "-o", "/nowhere/at/all.h5", PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("bdgd: cannot write /nowhere/at/all.h5") and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_disk_that_is_full_is_one_sentence_and_no_crash(tmp_path: Path) -> None:
    """HDF5 that cannot close its file takes the process down with it; so it is written through a file that never fails."""
    limited = "import resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (2**17, 2**17)); from bdgd.apps.cli import main; main()"
    command = [sys.executable, "-c", limited, "simulate", "-o", str(tmp_path / "scan.h5"), "--count", "20", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"bdgd: cannot write {tmp_path / 'scan.h5'}: File too large") and list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback() -> None:
    result = bdgd("demo", "--device", "abacus", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr and result.stderr.splitlines()[-1].startswith("bdgd: --device must be")


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (InputError("expected this,\n got that"), 2, "bdgd: expected this, got that"),
        (FileNotFoundError(2, "No such file or directory", "scan.h5"), 2, "bdgd: scan.h5: No such file or directory"),
        (OSError("disc full"), 2, "bdgd: disc full"),
        (KeyboardInterrupt(), 130, "bdgd: interrupted"),
        (MemoryError("Unable to allocate 3 TiB"), 1, "bdgd: there is not enough memory; take fewer or smaller images"),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "bdgd: there is not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "bdgd: there is not enough memory"),
        (ZeroDivisionError("division by zero"), 1, "bdgd: this should not have happened (ZeroDivisionError: division by zero)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_becomes_one_line_and_an_exit_code(
    error: BaseException, code: int, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(demo_command, "simulate", fail)
    assert assert_one_sentence(bdgd("demo", "-o", tmp_path), code).startswith(expected)
