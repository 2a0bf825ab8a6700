"""`bdgd doctor`: what it examines, that it passes here, and that a fault is a sentence and an exit code."""

from __future__ import annotations

import pytest
from commands import bdgd

from bdgd.apps import doctor
from bdgd.operators import ParallelBeam


@pytest.fixture
def small_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROJECTORS", {"small": (ParallelBeam.sparse(image_size=24, views=5), 2)})
    monkeypatch.setattr(doctor._rate, "__defaults__", (0.0,))


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
