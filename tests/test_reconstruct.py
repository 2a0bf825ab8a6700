"""`bdgd reconstruct`: scans and stacks in, whole files out, whatever happens on the way."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
import tifffile
import torch
from PIL import Image
from toys import small_model, small_transform
from typer.testing import CliRunner

from bdgd.apps import cli
from bdgd.apps import reconstruct as command
from bdgd.apps.outputs import Grid
from bdgd.apps.scan_tasks import result_folders
from bdgd.data import GaussianNoise, Scans, Stack, simulate, write_scans
from bdgd.data.axis import axis_of_offset, estimate_axis, offset_of_axis
from bdgd.inference import reconstruct as sample
from bdgd.models import geometry_of, save
from bdgd.operators import RayTransform
from bdgd.storage import PatientFile

SOURCE = Path(__file__).resolve().parents[1] / "src"
A = small_transform(size=(16, 12), pixel_size=0.5)
ALWAYS = ["mean.tif", "posterior.h5", "posterior.png", "report.html", "std.tif"]


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["reconstruct", *map(str, arguments), "--device", "cpu"], prog_name="bdgd")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.safetensors"
    model = small_model(A=A)
    model.provenance = {"preset": "<i>small</i>", "preset_text": "a\nb", "seed": 3}
    save(model, path)
    return path


def some_scans(count: int = 1, seed: int = 0) -> Scans:
    g = torch.Generator().manual_seed(seed)
    return simulate(A, torch.rand(count, *A.domain_shape, generator=g), GaussianNoise(0.05), generator=g)


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    write_scans(tmp_path / "scan.h5", some_scans())
    return tmp_path / "scan.h5"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_whole(folder: Path) -> None:
    """Every file that is there by its own name opens and holds all that it should."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                assert all(file[name][:].shape[1:] == (16, 12) for name in ("mean", "std", "lower", "upper", "epistemic", "aleatoric"))
        elif path.suffix == ".tif":
            assert tifffile.imread(path).shape[-2:] == (12, 16)
        elif path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>")
        else:
            assert path.suffix == ".nii" and path.stat().st_size > 352


def test_one_scan(scan: Path, model_file: Path, tmp_path: Path) -> None:
    result = bdgd(scan, "-m", model_file, "-o", tmp_path / "out", "--draws", 5, "--level", 0.8, "--seed", 2, "--nifti")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "out"
    assert names(folder) == sorted([*ALWAYS, "mean.nii", "std.nii"]) and str(folder / "report.html") in result.output
    assert_whole(folder)
    wanted = sample(small_model(A=A), some_scans().sinograms, 5, generator=torch.Generator().manual_seed(2))
    with h5py.File(folder / "posterior.h5") as file:
        assert torch.allclose(torch.from_numpy(file["mean"][:]), wanted.mean[:, 0], atol=1e-6)
        assert torch.allclose(torch.from_numpy(file["upper"][:]), wanted.interval(0.8)[1][:, 0], atol=1e-6)
        assert file.attrs["scan_sha256"] == hashlib.sha256(scan.read_bytes()).hexdigest()
        told = json.loads(file.attrs["provenance"])
    assert told["draws"] == 5 and told["seed"] == 2 and told["model"] == str(model_file) and told["model_provenance"]["seed"] == 3
    assert {"commit", "date", "torch", "hardware"} <= set(told)


def test_the_picture_has_one_scale_for_std_and_error_as_the_report_has() -> None:
    scans = some_scans()
    posterior = sample(small_model(A=A), scans.sinograms, 5)
    shown = command.picture(posterior, 0.9, posterior.mean + 1)
    assert [panel.title for panel in shown] == ["mean", "std", "error", "epistemic std", "90% interval width"]
    assert shown[1].scale == shown[2].scale and shown[2].scale.high == pytest.approx(1.0)
    assert [panel.title for panel in command.picture(posterior, 0.9)] == ["mean", "std", "epistemic std", "90% interval width"]


def test_a_stack_is_read_and_written_slice_by_slice(model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scans(tmp_path / "stack.h5", some_scans(15))
    reading, asked = Stack.read, []
    monkeypatch.setattr(Stack, "read", lambda stack, index: (asked.append(index), reading(stack, index))[1])
    result = bdgd(tmp_path / "stack.h5", "-m", model_file, "-o", tmp_path / "out", "--draws", 3, "--slice", 4)
    assert result.exit_code == 0, result.output
    assert asked == [0, *range(15)], "never two at once"
    assert_whole(tmp_path / "out")
    assert tifffile.imread(tmp_path / "out" / "mean.tif").shape == (15, 12, 16)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "stack.h5, slice 4" in page and "12 of 15 slices" in page and "--slice 4" in page

    write_scans(tmp_path / "eighth.h5", some_scans(15)[7])
    assert bdgd(tmp_path / "eighth.h5", "-m", model_file, "-o", tmp_path / "alone", "--draws", 3).exit_code == 0
    with h5py.File(tmp_path / "out" / "posterior.h5") as stack, h5py.File(tmp_path / "alone" / "posterior.h5") as alone:
        assert (stack["std"][7] == alone["std"][0]).all(), "a slice's result does not depend on the stack it is in"


def test_a_turned_arc_is_said_in_every_place(tmp_path: Path, model_file: Path) -> None:
    """An image that lies otherwise than its object: in the file as a number, in the report's first lines, and among the notes."""
    arc = small_transform(size=(16, 12), pixel_size=0.5)
    quarter = arc.geometry[: arc.geometry.views // 2]
    save(small_model(A=RayTransform(quarter)), tmp_path / "arc.safetensors")
    later = replace(quarter, angles=[angle + math.radians(20) for angle in quarter.angles])
    write_scans(tmp_path / "later.h5", Scans(torch.ones(1, 1, later.views, later.detectors), later))
    result = bdgd(tmp_path / "later.h5", "-m", tmp_path / "arc.safetensors", "-o", tmp_path / "out", "--draws", 2)
    assert result.exit_code == 0 and "images come out turned" in result.stderr, result.stderr
    with h5py.File(tmp_path / "out" / "posterior.h5") as file:
        assert file.attrs["rotation_degrees"] == pytest.approx(20.0, abs=1e-5)
    assert "Turn the image by 20 degrees counter-clockwise" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("axis", ["given", "estimate"])
def test_an_axis_that_the_file_does_not_say(axis: str, tmp_path: Path, model_file: Path) -> None:
    """--axis gives what the same number in the file gives, in every slice of a stack, and is written wherever the result is explained."""
    g = torch.Generator().manual_seed(0)
    x = torch.zeros(2, *A.domain_shape)
    x[:, :, 5:10, 4:8] = torch.rand(2, 1, 5, 4, generator=g)  # its shadow ends in air, so a detector can be moved
    scans = simulate(A, x, GaussianNoise(0.01), generator=g)
    seen = axis_of_offset(A.geometry) - 0.75
    if axis == "estimate":
        seen = axis_of_offset(replace(A.geometry, detector_offset=estimate_axis(scans.sinograms, A.geometry)))
    right = replace(A.geometry, detector_offset=offset_of_axis(seen, A.geometry))
    axis = axis if axis == "estimate" else str(seen)
    for name, geometry in (("told", A.geometry), ("known", right)):
        write_scans(tmp_path / f"{name}.h5", replace(scans, geometry=geometry, images=None))
    common = ("--model", model_file, "--draws", 2)
    told = bdgd(tmp_path / "told.h5", *common, "--axis", axis, "-o", tmp_path / "told")
    known = bdgd(tmp_path / "known.h5", *common, "-o", tmp_path / "known")
    assert told.exit_code == known.exit_code == 0 and f"to be at detector {seen:.2f}" in told.stderr
    with h5py.File(tmp_path / "told" / "posterior.h5") as ours, h5py.File(tmp_path / "known" / "posterior.h5") as theirs:
        assert torch.allclose(torch.tensor(ours["mean"][:]), torch.tensor(theirs["mean"][:]), atol=1e-5)
        assert "to be at detector" in str(ours.attrs["notes"])
    assert f"--axis {axis}" in (tmp_path / "told" / "report.html").read_text()


def test_an_image_that_does_not_explain_its_scan_is_said_with_what_to_check(model_file: Path, tmp_path: Path) -> None:
    write_scans(tmp_path / "scan.h5", replace(some_scans(2), noise=GaussianNoise(1e-4)))
    result = bdgd(tmp_path / "scan.h5", "--model", model_file, "-o", tmp_path / "out", "--draws", 2)
    assert result.exit_code == 0 and "scan.h5 (and 1 more of its slices): The error bars need not hold for this scan" in result.stderr
    assert "times the noise unexplained" in result.stderr and "--axis estimate" in result.stderr


def test_several_scans_each_get_a_folder(model_file: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "a.h5", tmp_path / "b.h5", tmp_path / "c" / "a.h5"]
    (tmp_path / "c").mkdir()
    for seed, path in enumerate(paths):
        write_scans(path, some_scans(seed=seed))
    result = bdgd(*paths, "-m", model_file, "-o", tmp_path / "out", "--draws", 2)
    assert result.exit_code == 0, result.output
    assert names(tmp_path / "out") == ["a", "a-2", "b"]
    for folder in (tmp_path / "out").iterdir():
        assert names(folder) == ALWAYS
        assert_whole(folder)


@pytest.mark.parametrize(
    ("scans", "folders"),
    [
        (["scan-2.h5", "scan.h5", "a/scan.h5"], ["scan-2", "scan", "scan-3"]),
        (["a/scan.h5", "scan.h5", "scan-2.h5"], ["scan", "scan-2", "scan-2-2"]),
        (["Scan.h5", "scan.npz"], ["Scan", "scan-2"]),
    ],
)
def test_no_two_scans_share_a_folder(scans: list[str], folders: list[str], tmp_path: Path) -> None:
    assert result_folders(tmp_path, [Path(scan) for scan in scans]) == [tmp_path / folder for folder in folders]


def test_a_wrong_scan_among_several_stops_before_the_work(scan: Path, model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.h5").write_text("no scan")
    result = bdgd(scan, tmp_path / "bad.h5", "-m", model_file, "-o", tmp_path / "out")
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1 and "bad.h5" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_second_result_takes_the_place_of_the_first(scan: Path, model_file: Path, tmp_path: Path) -> None:
    for extra in (["--nifti"], []):
        assert bdgd(scan, "-m", model_file, "-o", tmp_path / "out", "--draws", 2, *extra).exit_code == 0
    assert names(tmp_path / "out") == ALWAYS, "an old mean.nii beside a new mean.tif would be another image"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "{tmp}/scan.h5"], "it is a file"),
        (["-o", "{tmp}/scan.h5/out"], "cannot write"),
        (["--level", "1"], "--level must lie between 0 and 1"),
        (["--level", "nan"], "--level must lie between 0 and 1"),
        (["--slice", "1"], "numbered from 0"),
        (["--axis", "guess"], "--axis takes the number of a detector or the word estimate, got 'guess'"),
        (["--axis", "999"], "axis must be the number of a detector from 0"),
        (["--regions", "{tmp}/none.toml"], "No such file"),
        (["--regions", "{tmp}/scan.h5"], "not valid TOML"),
        (["--regions", "{tmp}/far.toml"], "holds no pixel centre"),
        (["--regions", "{tmp}/misspelt.toml"], "unknown key 'center'"),
        (["--regions", "{tmp}/long.toml"], "leaves the image"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: list[str], expected: str, scan: Path, model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text('[[disc]]\nname = "x"\ncentre = [99, 0]\nradius = 1')
    (tmp_path / "misspelt.toml").write_text('[[disc]]\nname = "x"\ncenter = [0, 0]\nradius = 1')
    (tmp_path / "long.toml").write_text("[profile]\nstart = [0, 0]\nend = [50, 0]")
    before = names(tmp_path)
    output = [] if "-o" in arguments else ["-o", str(tmp_path / "out")]
    result = bdgd(scan, "-m", model_file, *output, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert result.exit_code == 2 and expected in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
    assert names(tmp_path) == before, "nothing is left behind"


def test_a_scan_that_does_not_fit_is_told_which_shipped_models_do(model_file: Path, tmp_path: Path) -> None:
    geometry = geometry_of("htc-arc60-mfvi")
    assert geometry is not None
    write_scans(tmp_path / "my scan.h5", Scans(torch.ones(1, 1, geometry.views, geometry.detectors), geometry))
    result = bdgd(tmp_path / "my scan.h5", "-m", model_file, "-o", tmp_path / "out")
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert (
        "; choose a shipped --model that can use it (htc-arc30-mfvi, htc-arc60-mfvi), or train a model for this scan with: "
        in result.stderr
    )
    assert f"bdgd train own-scan --geometry '{tmp_path}/my scan.h5' -o RUN" in result.stderr and not (tmp_path / "out").exists()


def test_what_is_strange_about_a_scan_that_does_not_fit_is_said_too(model_file: Path, tmp_path: Path) -> None:
    """Degrees that were written as radians fit no model; that they span turn after turn says why."""
    strange = replace(A.geometry, angles=tuple(57.3 * (angle + 0.01) for angle in A.geometry.angles))
    write_scans(tmp_path / "scan.h5", Scans(some_scans().sinograms, strange))
    result = bdgd(tmp_path / "scan.h5", "-m", model_file, "-o", tmp_path / "out")
    assert result.exit_code == 2 and "turns: if they are degrees, name them angles_degrees; " in result.stderr, result.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission_is_one_sentence(scan: Path, model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    result = bdgd(scan, "-m", model_file, "-o", tmp_path / "closed")
    assert result.exit_code == 2 and "Permission denied" in result.stderr and len(result.stderr.splitlines()) == 1


def test_values_that_no_scan_has_are_named_with_their_file(model_file: Path, tmp_path: Path) -> None:
    geometry = A.geometry
    write_scans(tmp_path / "huge.h5", Scans(torch.full((1, 1, geometry.views, geometry.detectors), 3e38), geometry))
    result = bdgd(tmp_path / "huge.h5", "-m", model_file, "-o", tmp_path / "out", "--draws", 2)
    assert result.exit_code == 2 and "huge.h5, slice 0: the image is not finite; the scan's largest value is 3e+38" in result.stderr
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("where", ["write", "report"])
def test_a_full_disk_is_one_sentence(where: str, scan: Path, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "report":
        monkeypatch.setattr(command, "report", full)
    else:
        monkeypatch.setattr(PatientFile, "check", full)
    result = bdgd(scan, "-m", model_file, "-o", tmp_path / "out", "--draws", 2)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert "No space left on device" in result.stderr and names(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_kill_leaves_whole_files_only(how: signal.Signals, model_file: Path, tmp_path: Path) -> None:
    """Interrupted again and again, later and later after the first file appeared; a signal never leaves a broken file by its own name."""
    write_scans(tmp_path / "stack.h5", some_scans(40))
    scans = [tmp_path / f"{name}.h5" for name in "abc"]
    for path in scans:
        path.symlink_to(tmp_path / "stack.h5")
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "bdgd", "reconstruct", *scans, "-m", model_file, "-o", out, "--draws", "2", "--device", "cpu"]
    interrupted = 0
    for delay in (0.0, 0.3, 0.8):
        with subprocess.Popen([*map(str, arguments)], stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SOURCE)}) as process:
            before = set(out.glob("*/.*"))
            while process.poll() is None and not set(out.glob("*/.*")) - before:
                time.sleep(0.01)
            time.sleep(delay)
            process.send_signal(how)
            assert process.stderr is not None
            words = process.stderr.read().decode()
        interrupted += process.returncode in (130, -how)
        if how == signal.SIGINT and process.returncode == 130:
            assert words.startswith("bdgd: interrupted") and len(words.splitlines()) == 1, words
            assert not set(out.glob("*/.*")) - before, "after Ctrl-C nothing is left"
        for folder in out.iterdir():
            assert_whole(folder)
    assert interrupted >= 2


def test_the_stack_takes_the_unit_from_the_scans() -> None:
    class WithUnit:
        geometry, unit, slice_spacing = A.geometry, "mm", 2.0

    assert Grid.of(some_scans(), 1) == Grid(1, (16, 12), 0.5) and Grid.of(some_scans(), 1).value_unit == ""
    grid = Grid.of(WithUnit(), 4)  # type: ignore[arg-type]
    assert grid == Grid(4, (16, 12), 0.5, 2.0, "mm") and grid.value_unit == "1/mm" and grid.spacing == (0.5, 0.5, 2.0)
