"""`bdgd bench`: what it measures, writes, merges into an earlier file and shows on its page."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import assert_one_sentence, bdgd
from speeds import TINY, measured_parts, tiny_data

from bdgd.apps import bench, bench_quality
from bdgd.apps.provenance import file_name
from bdgd.evaluation import speed


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bdgd bench` with sizes that take a second."""
    monkeypatch.setattr(speed, "CASES", ((16, 4),))
    monkeypatch.setattr(speed, "projector_rows", partial(speed.projector_rows, batches=(1, 2)))
    monkeypatch.setattr(speed, "training_data", lambda device, images, size=16: tiny_data(device))
    monkeypatch.setattr(speed, "loss_curves", partial(speed.loss_curves, steps=2))
    monkeypatch.setattr(speed, "sampling_row", partial(speed.sampling_row, draws=2, blocks=2, size=16))
    monkeypatch.setattr(speed, "CPU", TINY)
    monkeypatch.setattr(speed, "GPU", TINY)


def test_the_command_measures_writes_and_merges(tiny: None, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n<!-- speed-cpu -->\nstale\n<!-- /speed-cpu -->\nafter\n")
    result = bdgd("bench", "-o", tmp_path / "out", "--device", "cpu", "--page", page)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "out").glob("*.json")
    first = json.loads(path.read_text())
    assert set(first["parts"]) == {"projector", "training", "sampling", "growth"} and path.with_suffix(".png").stat().st_size > 1000
    assert all({"commit", "seed", "seconds", "hardware", "versions"} <= set(part["provenance"]) for part in first["parts"].values())
    assert "What is asked for" in result.output and "not measured here" in result.output
    text = page.read_text()
    assert "stale" not in text and text.endswith("after\n")
    assert "images/speed-cpu.png" in text and (tmp_path / "images" / "speed-cpu.png").exists()
    assert max(len(line) for line in result.output.splitlines() if not line.startswith(("wrote", "deepinv", "ASTRA"))) <= 105

    result = bdgd("bench", "-o", tmp_path / "out", "--device", "cpu", "--only", "sampling")
    again = json.loads(path.read_text())
    assert result.exit_code == 0 and again["parts"]["projector"] == first["parts"]["projector"]
    assert again["parts"]["sampling"]["provenance"]["date"] >= first["parts"]["sampling"]["provenance"]["date"]


def test_quality_on_a_cpu_is_refused(tmp_path: Path) -> None:
    assert "GPU" in assert_one_sentence(bdgd("bench", "-o", tmp_path, "--device", "cpu", "--quality"))
    assert not list(tmp_path.iterdir())


def test_a_broken_earlier_file_is_refused(tiny: None, tmp_path: Path) -> None:
    arguments = ("bench", "-o", tmp_path, "--device", "cpu", "--only", "sampling")
    assert bdgd(*arguments).exit_code == 0
    next(tmp_path.glob("*.json")).write_text("{}")
    assert "delete it" in assert_one_sentence(bdgd(*arguments))


def test_the_quality_part_trains_cold_then_warm_with_one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = []

    def process(where: torch.device, cache: Path, *, test: bool) -> dict[str, float]:
        caches.append((cache, test, cache.is_dir()))
        return {"seconds": 40.0 - 20.0 * test, "validation_psnr": 45.0} | (
            {"ellipses_psnr": 45.0, "shepp_logan_psnr": 48.0} if test else {}
        )

    monkeypatch.setattr(bench_quality, "_in_a_process", process)
    found = bench_quality.measure_quality(torch.device("cpu"))
    assert (found["cold"], found["warm"], found["shepp_logan_psnr"]) == (40.0, 20.0, 48.0)
    assert [test for _, test, _ in caches] == [False, True] and len({cache for cache, _, _ in caches}) == 1 and caches[0][2]


def test_the_page_of_a_gpu_run_has_every_table() -> None:
    parts = measured_parts(11.0)
    text = speed.markdown(speed.tables(parts, True))
    for title in ("Projector, 512 x 512 pixels, 360 views", "Training step", "Sampling", "Growth", "Quality", "What is asked for"):
        assert f"**{title}" in text
    figure = speed.speed_figure(parts, "GPU")
    assert figure is not None and len(figure.axes) == 3


def test_the_figure_has_a_panel_for_what_was_measured_and_none_else() -> None:
    parts = measured_parts(11.0)
    alone = speed.speed_figure({"projector": parts["projector"]}, "GPU")
    assert alone is not None and [axes.get_title() for axes in alone.axes] == ["Projector against its peers"]
    assert speed.speed_figure({"sampling": parts["sampling"]}, "GPU") is None and speed.speed_figure({}) is None


def test_names_of_devices_become_names_of_files() -> None:
    assert file_name("NVIDIA H200") == "nvidia-h200"
    assert file_name("Intel(R) Xeon(R) @ 2.20GHz, 2 cores") == "intel-r-xeon-r-2-20ghz-2-cores"


def test_the_jobs_cover_all_parts() -> None:
    jobs: dict[bench.Part, Callable[[torch.device], Any]] = bench._JOBS
    assert list(jobs) == list(bench.Part)


def test_a_page_without_the_place_is_said_before_the_work(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("<!-- speed-gpu -->\n<!-- /speed-gpu -->\n")
    result = bdgd("bench", "-o", tmp_path / "out", "--device", "cpu", "--page", page)
    assert result.exit_code == 2 and "no place for the table; add the lines <!-- speed-cpu -->" in result.stderr
    assert not (tmp_path / "out").exists()
