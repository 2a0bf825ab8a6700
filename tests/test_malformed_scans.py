"""Scan files that are broken or hostile, in every format: one sentence and exit code 2, no room made for what they claim, nothing run."""

from __future__ import annotations

import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from commands import assert_one_sentence, bdgd
from malformed import CASES, Case
from malformed.cases import GEOMETRY, Y
from malformed.hdf5 import hdf5
from malformed.mat import mat
from malformed.npz import header, npz, npz_with
from malformed.tiff import tiff

from bdgd.checks import InputError
from bdgd.data import open_stack, read_scans
from bdgd.operators import FanBeam

MOST_MEMORY = 24e6  # bytes that an answer may cost: the largest file here unpacks to a hundred times that, or more


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_malformed_scan_is_one_sentence(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BDGD_TEST_MARK", str(tmp_path / "mark"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / case.file
    case.write(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=case.message) as caught:
            read_scans(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert case.file.split(".")[0] in text and "\n" not in text and len(text) < 700
    assert peak < MOST_MEMORY, f"{peak / 1e6:.0f} MB"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 4 * MOST_MEMORY
    assert not (tmp_path / "mark").exists()  # nothing was run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_the_command_line_answers_with_exit_code_2(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BDGD_TEST_MARK", str(tmp_path / "mark"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / case.file
    case.write(path)
    result = bdgd("reconstruct", path, "-o", tmp_path / "out")
    assert_one_sentence(result)
    assert "Traceback" not in result.output and not (tmp_path / "out").exists()
    assert not (tmp_path / "mark").exists()  # nothing was run


def test_the_helpers_make_files_that_are_right_but_for_the_fault(tmp_path: Path) -> None:
    """Unbroken, each of the files above is read: what is refused is the fault and nothing else."""
    hdf5(lambda file: None)(tmp_path / "a.h5")
    npz()(tmp_path / "a.npz")
    npz_with("sinogram", lambda: header(Y.shape) + Y.tobytes())(tmp_path / "b.npz")
    tiff()(tmp_path / "a.tif")
    for name in ("a.h5", "a.npz", "b.npz", "a.tif"):
        scans = read_scans(tmp_path / name)
        assert scans.geometry == GEOMETRY and np.array_equal(scans.sinograms[:, 0].numpy(), Y), name
    for compress in (True, False):
        mat(compress)(tmp_path / "a.mat")
        scans = read_scans(tmp_path / "a.mat")
        assert isinstance(scans.geometry, FanBeam) and np.array_equal(scans.sinograms[0, 0].numpy(), Y[0])


def test_a_fault_in_the_loop_over_a_stack_is_the_callers_own(tmp_path: Path) -> None:
    npz()(tmp_path / "a.npz")
    with pytest.raises(ZeroDivisionError), open_stack(tmp_path / "a.npz"):
        raise ZeroDivisionError


def test_random_damage_is_named_or_harmless(tmp_path: Path) -> None:
    """A few bytes changed, or the end cut off: never another error, and a process that lives on."""
    rng = np.random.default_rng(0)
    writers = {
        "a.h5": hdf5(lambda file: None),
        "a.npz": npz(),
        "a.mat": mat(),
        "b.mat": mat(compress=False),
        "a.tif": tiff(compression="zlib"),
    }
    for name, write in writers.items():
        path = tmp_path / name
        write(path)
        whole, refused = path.read_bytes(), 0
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(3):
                at = int(rng.integers(rng.choice([200, len(data)])))
                data[at : at + 4] = bytes(rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\0", rng.bytes(4)]))
            path.write_bytes(bytes(data) if rng.random() < 0.8 else whole[: int(rng.integers(len(whole)))])
            try:
                read_scans(path)
            except InputError as error:
                assert "\n" not in str(error)
                refused += 1
        assert refused > 20, name
