"""The tooth of the benchmark: its axis, the views that are left out, and TV against FBP."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from bdgd.checks import InputError
from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.evaluation import tooth
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.storage import write_json

CPU = torch.device("cpu")


GEOMETRY = ParallelBeam(image_size=48, angles=np.deg2rad(np.arange(90) * 2), detectors=100, detector_offset=3.5, pixel_size=2.0)


@pytest.fixture
def tooth_file(tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two phantoms in the tooth's file format, their axis off the middle."""
    monkeypatch.setattr(tooth, "_SIZE", 48)
    x = 0.01 * random_ellipses(count=2, size=48, generator=generator)
    y = simulate(RayTransform(GEOMETRY), x, GaussianNoise(0.02), generator=generator).sinograms
    np.savez(tmp_path / "tooth.npz", sino=y[:, 0].numpy(), theta_deg=np.arange(90) * 2, centre_px=46.0)
    return tmp_path / "tooth.npz"


def test_the_tooth_is_read_on_its_axis_and_one_view_in_three_is_used(tooth_file: Path) -> None:
    read = tooth.read_tooth(tooth_file)
    assert read.used.geometry == GEOMETRY[::3]  # (100 - 1) / 2 - 46 = 3.5 detectors
    assert read.left_out.sinograms.shape == (2, 1, 60, 100)


def test_tv_beats_fbp_on_the_image_and_on_the_views_it_did_not_get(tooth_file: Path) -> None:
    scores, images = tooth.evaluate_tooth(tooth.read_tooth(tooth_file), CPU)
    by_method = {(s.method, s.slice): s for s in scores}
    assert set(images) == {"reference", "FBP", "TV"} and len(scores) == 4
    for b in (0, 1):
        assert by_method["TV", b].psnr > by_method["FBP", b].psnr + 1 and by_method["TV", b].missed < by_method["FBP", b].missed
    assert len(tooth.tooth_table(scores).splitlines()) == 6
    write_json(tooth_file.with_suffix(".json"), {"scores": [asdict(s) for s in scores]})
    assert tooth.read_tooth_scores(tooth_file.with_suffix(".json")) == scores


def test_there_may_be_no_scores_yet(tmp_path: Path) -> None:
    assert tooth.read_tooth_scores(tmp_path / "none.json") == []


def test_a_file_without_its_axis_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", sino=np.zeros((1, 90, 100)))
    with pytest.raises(InputError, match="centre_px"):
        tooth.read_tooth(tmp_path / "bad.npz")
