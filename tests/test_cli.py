"""The command line: its commands and their order, what they write, and what they say when something is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bdgd.apps import cli, console, doctor, provenance, simulate
from bdgd.apps import demo as demo_command
from bdgd.apps.console import Output
from bdgd.checks import InputError
from bdgd.data import PoissonNoise, read_scans, shepp_logan
from bdgd.evaluation import SETTINGS, Method, classical, score, table_scans
from bdgd.operators import FanBeam, ParallelBeam, RayTransform

SOURCE = Path(__file__).resolve().parents[1] / "src"
ORDER = ["demo", "doctor", "reconstruct", "train", "simulate", "evaluate", "calibrate", "stress", "measured", "reproduce", "bench", "serve"]


def bdgd(*arguments: object) -> Any:
    """The result of a command run in this process."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="bdgd")


def bdgd_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "bdgd", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **environment}, timeout=300)


def assert_one_sentence(result: Any, code: int = 2) -> str:
    """The one line on stderr of a command that failed with `code`."""
    lines = result.stderr.splitlines()
    assert result.exit_code == code, result.output
    assert len(lines) == 1 and lines[0].startswith("bdgd: "), result.stderr
    return lines[0]


@pytest.fixture
def small_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROJECTORS", {"small": (ParallelBeam.sparse(image_size=24, views=5), 2)})
    monkeypatch.setattr(doctor._rate, "__defaults__", (0.0,))


# The list of commands


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


def test_the_module_runs_as_a_program() -> None:
    done = bdgd_process("--version")
    assert done.returncode == 0 and done.stdout.startswith("bdgd ") and done.stderr == ""


def test_an_unknown_option_is_an_error() -> None:
    assert bdgd("demo", "--nonsense").exit_code == 2


# doctor


@pytest.mark.usefixtures("small_doctor")
def test_doctor_passes_and_says_what_is_live() -> None:
    result = bdgd("doctor", "--device", "cpu")
    assert result.exit_code == 0, result.output
    for wanted in ("torch", "live device", "matrix, because", "adjoint mismatch", "FBP scale, parallel", "FBP scale, fan", "per second"):
        assert wanted in result.output
    assert "✓" in result.output and "All is well" in result.output
    assert "✗" not in result.output


@pytest.mark.usefixtures("small_doctor")
def test_doctor_fails_with_a_sentence_when_the_adjoint_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "adjoint_mismatch", lambda A, trials: 1e-3)
    result = bdgd("doctor", "--device", "cpu")
    assert result.exit_code == 1
    assert "✗" in result.output and "adjoint mismatch: 1.0e-03, at most 1e-05" in result.output.splitlines()[-1]


@pytest.mark.usefixtures("small_doctor")
def test_doctor_goes_on_after_a_check_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(doctor, "fbp", broken)
    result = bdgd("doctor", "--device", "cpu")
    assert result.exit_code == 1
    assert "RuntimeError: no such kernel" in result.output and "adjoint mismatch" in result.output


def test_the_real_doctor_examines_the_papers_geometry_and_a_large_one() -> None:
    sizes = [(geometry.image_size, geometry.views) for geometry, _ in doctor.PROJECTORS.values()]
    assert sizes == [((128, 128), 30), ((512, 512), 360)]


# demo


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
    folder = tmp_path / "new" / "demo"
    assert sorted(path.name for path in folder.iterdir()) == ["demo.json", "demo.png", "report.html"]
    assert str(folder / "demo.png") in result.output and "Try next" in result.output
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((folder / "demo.json").read_text())
    assert written["provenance"]["seed"] == 0 and written["provenance"]["torch"] == torch.__version__
    quality = {(row["phantom"], row["method"]): row["psnr"] for row in written["results"]}
    assert quality["Shepp-Logan", "FBP"] == pytest.approx(18.5, abs=0.3)  # the paper: 18.47
    assert quality["Shepp-Logan", "TV"] > 36 and quality["ellipses", "TV"] > quality["ellipses", "FBP"] + 5


def test_demo_depends_on_its_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "tv", lambda A, y, **_: demo_command.fbp(A, y, filter="hann"))
    results = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert bdgd("demo", "-o", tmp_path / folder, "--device", "cpu", "--draws", 2, "--seed", seed).exit_code == 0
        results.append(json.loads((tmp_path / folder / "demo.json").read_text())["results"])
    assert results[0] == results[1] != results[2]


# simulate


def test_simulate_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "scan.h5"
    result = bdgd("simulate", "-o", path, "--phantom", "shepp-logan", "--count", 2, "--size", 32, "--views", 7)
    assert result.exit_code == 0, result.output
    assert str(path) in result.output and "7 views x 47 detectors" in result.output
    scans = read_scans(path)
    assert scans.geometry == ParallelBeam.sparse(image_size=32, views=7) and len(scans) == 2
    assert torch.equal(scans.images, shepp_logan(32).repeat(2, 1, 1, 1))
    assert not torch.equal(scans.sinograms[0], scans.sinograms[1]), "every scan has noise of its own"
    with h5py.File(path) as file:
        assert json.loads(file["sinogram"].attrs["provenance"])["seed"] == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("phantom", list(simulate.Phantom))
def test_simulate_depends_on_its_seed_alone(phantom: str, tmp_path: Path) -> None:
    sinograms = []
    for name, seed in (("a.h5", 3), ("b.h5", 3), ("c.h5", 4)):
        assert bdgd("simulate", "-o", tmp_path / name, "--phantom", phantom, "--size", 24, "--degrees", 9, "--seed", seed).exit_code == 0
        sinograms.append(read_scans(tmp_path / name).sinograms)
    assert torch.equal(sinograms[0], sinograms[1]) and not torch.equal(sinograms[0], sinograms[2])


@pytest.mark.parametrize("phantom", list(simulate.Phantom))
def test_simulate_takes_any_geometry_and_counts_photons(phantom: str, tmp_path: Path) -> None:
    fan = FanBeam(image_size=(20, 26), angles=(0.0, 1.0, 2.0), detectors=41, source_to_axis=60, source_to_detector=90)
    (tmp_path / "fan.toml").write_text(fan.to_toml())
    result = bdgd("simulate", "-o", tmp_path / "s.h5", "--phantom", phantom, "--geometry", tmp_path / "fan.toml", "--photons", 1e4)
    assert result.exit_code == 0, result.output
    scans = read_scans(tmp_path / "s.h5")
    assert scans.geometry == fan and scans.images.shape == (1, 1, 20, 26)
    assert scans.noise == PoissonNoise(1e4, attenuation=2.5 / 26)


def test_simulate_without_noise_is_the_operator(tmp_path: Path) -> None:
    assert bdgd("simulate", "-o", tmp_path / "s.h5", "--size", 16, "--views", 3, "--noise", 0, "--device", "cpu").exit_code == 0
    scans = read_scans(tmp_path / "s.h5")
    assert scans.noise is None
    assert torch.allclose(scans.sinograms, RayTransform(scans.geometry)(scans.images), atol=1e-5)


# evaluate


def test_evaluate_writes_every_images_values_and_chooses_on_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classical, "TV_WEIGHTS", (1e-4, 1e-2))
    monkeypatch.setattr(classical, "TV_VALIDATION_IMAGES", 1)
    monkeypatch.setattr(classical, "TV_VALIDATION_HEADS", 1)
    for name in ("choose_tv_weight", "tv"):  # far from converged: the test is about what is written
        monkeypatch.setattr(classical, name, partial(getattr(classical, name), most_iterations=100))
    result = bdgd("evaluate", "--images", 2, "-o", tmp_path / "e.json", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert re.search(r"chosen ellipses (an)?isotropic 0.0001, heads (an)?isotropic 0.0001", result.output)
    written = json.loads((tmp_path / "e.json").read_text())
    assert written["setting"] == "sparse30" and set(written["methods"]) == {"fbp", "tv"}
    tv = written["methods"]["tv"]
    assert len(tv["psnr"]) == len(tv["ssim"]) == 2 and tv["seconds"] > 0
    assert tv["shepp_logan_psnr"] == tv["psnr"][1] and tv["ellipses_psnr"] == tv["psnr"][0]
    for kind in ("ellipses", "heads"):
        assert {frozenset(curve) for curve in tv["recipe"][kind]["curves"].values()} == {frozenset({"0.0001", "0.01"})}
        assert tv["recipe"][kind]["chosen_on"] == "1 validation images"
    assert written["methods"]["fbp"]["shepp_logan_psnr"] == pytest.approx(18.49, abs=0.2)
    assert {"commit", "hardware", "seed", "date"} <= set(written["provenance"])


def test_what_was_chosen_for_shepp_logan_reconstructs_shepp_logan_alone() -> None:
    A = RayTransform(SETTINGS["sparse30"])
    scans = table_scans(A, 8)
    shown: list[tuple[str, int]] = []

    def method(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def reconstruct(y: torch.Tensor) -> torch.Tensor:
            shown.extend((name, int(i)) for i in torch.cdist(y.flatten(1), scans.sinograms.flatten(1)).argmin(1))
            return torch.full((len(y), *A.domain_shape), 0.5)

        return reconstruct

    scores = score(Method(method("ellipses"), reconstruct_head=method("head")), scans)
    assert shown == [*(("ellipses", i) for i in range(7)), ("head", 7)] and len(scores.psnr) == 8
    shown.clear()
    score(Method(method("both")), scans)
    assert shown == [("both", i) for i in range(8)]


def test_evaluate_gives_an_image_the_same_value_in_a_smaller_set(tmp_path: Path) -> None:
    values = []
    for images in (3, 5):
        arguments = ("--setting", "limited120", "--images", images, "-o", tmp_path / "e.json", "--device", "cpu")
        assert bdgd("evaluate", "fbp", *arguments).exit_code == 0
        values.append(json.loads((tmp_path / "e.json").read_text())["methods"]["fbp"]["psnr"])
    assert values[0] == pytest.approx([*values[1][:2], values[1][-1]], abs=1e-4)


# Wrong inputs


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
    (("evaluate", "magic"), "METHOD must be one of"),
    (("evaluate", "fbp", "--images", "1"), "from 2 to 101"),
    (("evaluate", "fbp", "--images", "102"), "from 2 to 101"),
    (("evaluate", "fbp", "--images", "2", "-o", "{tmp}/none/e.json"), "No such file or directory"),
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
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    limited = "import resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (2**17, 2**17)); from bdgd.apps.cli import main; main()"
    command = [sys.executable, "-c", limited, "simulate", "-o", str(tmp_path / "scan.h5"), "--count", "20", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=300)
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


# What the commands share


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
