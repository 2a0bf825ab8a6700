"""The benchmark: what it measures is what it says, a missing peer is said to be missing, and its files can be merged and shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from bdgd.apps import bench, bench_quality, cli
from bdgd.apps.presets import read_preset
from bdgd.apps.provenance import file_name
from bdgd.evaluation import speed
from bdgd.evaluation.speed import measuring, peers
from bdgd.evaluation.speed.stepping import PlainLoop
from bdgd.operators import ParallelBeam, RayTransform, adjoint_mismatch

SMALL = ParallelBeam.sparse(image_size=32, views=6)
TINY = speed.Sizes(
    size=16,
    images=(1, 2),
    draws=(2, 4),
    blocks=(1, 2),
    trained_blocks=(1, 2),
    trained_images=16,
    trained_epochs=1,
    sides=(16, 32),
    views=(3, 6),
    projected=2,
    together=1,
    fixed=1,
)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["bench", *map(str, arguments)], prog_name="bdgd")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bdgd bench` with sizes that take a second."""
    monkeypatch.setattr(speed, "CASES", ((16, 4),))
    monkeypatch.setattr(speed, "projector_rows", partial(speed.projector_rows, batches=(1, 2)))
    monkeypatch.setattr(speed, "training_data", lambda device, images, size=16: _data(device))
    monkeypatch.setattr(speed, "loss_curves", partial(speed.loss_curves, steps=2))
    monkeypatch.setattr(speed, "sampling_row", partial(speed.sampling_row, draws=2, blocks=2, size=16))
    monkeypatch.setattr(speed, "CPU", TINY)
    monkeypatch.setattr(speed, "GPU", TINY)


def _data(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, gradient, truth = (torch.rand(32, 1, 16, 16, generator=generator).to(device) for _ in range(3))
    return x, gradient, truth


# Measuring


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    assert speed.slope([(n, 3 * n**1.5) for n in (2, 4, 8, 16)]) == pytest.approx(1.5)
    assert speed.slope([(n, 7.0) for n in (1, 5, 9)]) == pytest.approx(0.0)


def test_a_time_is_the_median_of_the_calls_after_the_first() -> None:
    pauses = iter([0.2, 0.01, 0.01, 0.05])
    seconds = measuring.timed(lambda: time.sleep(next(pauses)), torch.device("cpu"), seconds=10, most=3)
    assert 0.01 <= seconds < 0.045


def test_what_is_kept_for_the_gradient_is_counted_once_and_released() -> None:
    x = torch.rand(1000, requires_grad=True)
    with measuring.KeptForBackward() as kept:
        for _ in range(3):  # one after the other: never more than one of them is alive
            (torch.sigmoid(x) ** 2).sum().backward()
    assert kept.bytes == 4000  # sigmoid keeps its result, and the square the same tensor
    with measuring.KeptForBackward() as kept:
        results = [torch.sigmoid(x) for _ in range(3)]
    assert kept.bytes == 12000 and len(results) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_memory_is_that_of_the_tensors_inside() -> None:
    device = torch.device("cuda")
    held = torch.zeros(1 << 20, device=device)
    with measuring.peak_memory(device) as peak:
        torch.zeros(1 << 22, device=device)
    assert peak.bytes == 4 << 22 and len(held) == 1 << 20


# Peers


def test_every_peer_is_an_operator_or_says_why_not(device: torch.device) -> None:
    for name in peers.PEERS:
        try:
            peer = peers.make_peer(name, SMALL, device)
        except peers.Missing as reason:
            assert str(reason)
            continue
        assert float(peer(torch.rand(1, *peer.domain_shape, device=peer.device)).norm()) > 0
        most = 1e-4 if name.startswith("ASTRA") else 0.3
        assert adjoint_mismatch(peer) < most, name


def test_astra_measures_the_same_line_integrals() -> None:
    pytest.importorskip("astra", exc_type=ImportError)
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    theirs = peers.make_peer(peers.ASTRA_CPU, SMALL, torch.device("cpu"))(x.rot90(1, (2, 3)).contiguous())
    ours = RayTransform(SMALL)(x)
    assert float((ours - theirs).norm() / ours.norm()) < 1e-4


def test_a_peer_that_breaks_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> peers.Peer:
        raise OSError("libcufft.so.11 not found")

    monkeypatch.setitem(peers.PEERS, peers.ASTRA_CPU, broken)
    rows = [row for row in speed.projector_rows(torch.device("cpu"), 16, 4, batches=(16,)) if row["by"] == peers.ASTRA_CPU]
    assert [row["forward"] for row in rows] == [None] and "libcufft.so.11 not found" in rows[0]["note"]


# The parts


def test_projector_rows_have_rates_and_an_exact_adjoint(device: torch.device) -> None:
    rows = [row for row in speed.projector_rows(device, 16, 4, batches=(1, 4)) if row["by"].startswith("bdgd")]
    assert [(row["by"], row["images"]) for row in rows if row["default"]] == [("bdgd, matrix", 1), ("bdgd, matrix", 4)]
    assert len(rows) == 4 and all(row["forward"] > 0 and row["adjoint"] > 0 and row["mismatch"] < 1e-5 for row in rows)
    assert all((row["memory"] is not None) == (device.type == "cuda") for row in rows)


def test_a_batch_that_would_take_too_long_is_left_out() -> None:
    rows = speed.projector_rows(torch.device("cpu"), 16, 4, batches=(1, 1000), limit=0.0)
    assert {row["images"] for row in rows} == {1}


def test_both_loops_have_the_same_losses(device: torch.device) -> None:
    curve = speed.loss_curves(_data(device), batch=8, steps=12)
    assert len(curve["bdgd"]) == 12 and curve["plain"][-1] < curve["plain"][0]
    assert curve["difference"] <= (0.02 if device.type == "cuda" else 1e-5)


def test_training_rows(device: torch.device) -> None:
    rows = list(speed.training_rows(device, _data(device), (16, 8)))
    assert [(row["by"], row["batch"]) for row in rows] == [(by, batch) for batch in (16, 8) for by in ("plain eager loop", "bdgd")]
    assert all(row["rate"] > 0 for row in rows)


def test_the_plain_loop_trains() -> None:
    loop = PlainLoop(_data(torch.device("cpu")), 8)
    before = [parameter.clone() for parameter in loop.block.parameters()]
    loop.epoch()
    assert all(not torch.equal(a, b) for a, b in zip(before, loop.block.parameters(), strict=True))


def test_memory_of_greedy_training_does_not_grow_with_blocks_and_that_of_the_others_does(device: torch.device) -> None:
    sizes = replace(TINY, trained_blocks=(2, 4)) if device.type == "cpu" else replace(TINY, size=64, trained_blocks=(2, 4))
    memory = {row["what"]: row["slope"] for row in speed.growth_rows(device, sizes) if row["measured"] == "bytes"}
    assert abs(memory["greedy training"]) < 0.05
    assert memory["joint fine-tuning"] > 0.5 and memory["learned primal-dual"] > 0.5


def test_quality_is_measured_from_data_to_last_block(device: torch.device) -> None:
    preset = read_preset("small")
    geometry, model = ParallelBeam.sparse(image_size=32, views=6), {**preset.model, "blocks": 2}
    tiny = replace(preset, geometry=geometry, model=model, train=16, validation=2, training={"epochs": 1})
    found = bench_quality.train_shortened(tiny, device, test=False)
    assert found["seconds"] > 0 and 5 < found["validation_psnr"] < 60


# The bars


def measured_parts(faster: float, *, astra_gpu: bool = True) -> speed.Parts:
    """Parts of a GPU run in which everything is `faster` times a peer's rate."""
    base = {"default": True, "mismatch": 1e-7, "memory": 1e6, "by": "bdgd, matrix"}
    rows = []
    for size, views, images in ((128, 30, 16), (128, 30, 64), (512, 360, 16)):
        case = {"size": size, "views": views, "images": images}
        rows.append(base | case | {"forward": faster, "adjoint": faster})
        peer = {"default": False, "by": peers.ASTRA_GPU, "mismatch": 1e-4, "note": ""}
        rows.append(
            peer | case | ({"forward": 1.0, "adjoint": 1.0} if astra_gpu else {"forward": None, "adjoint": None, "note": "missing: no"})
        )
    for size, views in ((128, 30), (512, 360)):
        cpu = {"by": peers.ASTRA_CPU, "default": False, "note": "per image", "images": 1, "mismatch": 0.0}
        rows.append(cpu | {"size": size, "views": views, "forward": 1.0, "adjoint": 1.0})
    training = [
        {"batch": b, "by": by, "rate": r, "memory": 1} for b in (128, 32) for by, r in (("plain eager loop", 1.0), ("bdgd", faster))
    ]
    growth = [
        {"what": "sampling", "against": a, "measured": "seconds", "slope": 1.0, "points": [(1, 1.0), (2, 2.0)]}
        for a in ("images", "draws", "blocks")
    ]
    memory = [{"what": "greedy training", "against": "blocks", "measured": "bytes", "slope": 0.0, "points": [(1, 1.0), (2, 1.0)]}]
    return {
        "projector": {"rows": rows},
        "training": {"rows": training, "curve": {"difference": 0.002, "steps": 50}},
        "sampling": {"row": {"images": 101, "draws": 100, "blocks": 10, "seconds": 1.0, "memory": 1}},
        "growth": {"rows": growth + memory},
        "quality": {"recipe": "", "cold": 40.0, "warm": 24.0, "validation_psnr": 45.0, "ellipses_psnr": 45.0, "shepp_logan_psnr": 48.0},
    }


def verdicts(parts: speed.Parts, on_gpu: bool = True) -> dict[str, str]:
    return {bar.what: bar.verdict for bar in speed.bars(parts, on_gpu)}


def test_bars_are_met_by_what_is_fast_enough_and_not_by_what_is_not() -> None:
    fast = verdicts(measured_parts(11.0))
    assert {what for what, verdict in fast.items() if verdict != "met"} == {"sampling, 100 x 10, one image, CPU"}
    slow = verdicts(measured_parts(1.5))
    assert slow["training, batch 128: x plain loop"] == slow["training, batch 32: x plain loop"] == "not met"
    assert all(verdict == "not met" for what, verdict in slow.items() if "ASTRA" in what)


def test_a_bar_against_a_missing_peer_is_not_met() -> None:
    found = verdicts(measured_parts(11.0, astra_gpu=False))
    assert [verdict for what, verdict in found.items() if "ASTRA, GPU" in what] == ["not met: peer missing"] * 2


def test_too_low_a_quality_misses_its_bar_however_fast() -> None:
    parts = measured_parts(11.0)
    parts["quality"]["shepp_logan_psnr"] = 47.0
    assert [verdict for what, verdict in verdicts(parts).items() if "short training" in what] == ["not met"] * 3


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert set(verdicts({}).values()) == {"not measured here"}
    on_cpu = verdicts(measured_parts(11.0), on_gpu=False)
    assert on_cpu["training, batch 128: x plain loop"] == "not measured here"
    assert on_cpu["projector, 512²/360/16: x ASTRA, CPU"] == "met"


# The command


def test_the_command_measures_writes_and_merges(tiny: None, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n<!-- speed-cpu -->\nstale\n<!-- /speed-cpu -->\nafter\n")
    result = run("-o", tmp_path / "out", "--device", "cpu", "--page", page)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "out").glob("*.json")
    first = json.loads(path.read_text())
    assert set(first["parts"]) == {"projector", "training", "sampling", "growth"} and path.with_suffix(".png").stat().st_size > 1000
    assert all({"commit", "seed", "seconds", "hardware", "versions"} <= set(part["provenance"]) for part in first["parts"].values())
    assert "What is asked for" in result.output and "not measured here" in result.output
    text = page.read_text()
    assert (
        "stale" not in text
        and text.endswith("after\n")
        and "images/speed-cpu.png" in text
        and (tmp_path / "images" / "speed-cpu.png").exists()
    )
    assert max(len(line) for line in result.output.splitlines() if not line.startswith(("wrote", "deepinv", "ASTRA"))) <= 105

    result = run("-o", tmp_path / "out", "--device", "cpu", "--only", "sampling")
    again = json.loads(path.read_text())
    assert result.exit_code == 0 and again["parts"]["projector"] == first["parts"]["projector"]
    assert again["parts"]["sampling"]["provenance"]["date"] >= first["parts"]["sampling"]["provenance"]["date"]


def test_a_broken_earlier_file_and_quality_on_a_cpu_are_refused(tiny: None, tmp_path: Path) -> None:
    result = run("-o", tmp_path, "--device", "cpu", "--quality")
    assert result.exit_code == 2 and "GPU" in result.stderr and not list(tmp_path.iterdir())
    assert run("-o", tmp_path, "--device", "cpu", "--only", "sampling").exit_code == 0
    next(tmp_path.glob("*.json")).write_text("{}")
    result = run("-o", tmp_path, "--device", "cpu", "--only", "sampling")
    assert result.exit_code == 2 and "delete it" in result.stderr


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
    speed.speed_figure(parts, "GPU")
    speed.speed_figure({}, "nothing measured")


def test_names_of_devices_become_names_of_files() -> None:
    assert file_name("NVIDIA H200") == "nvidia-h200"
    assert file_name("Intel(R) Xeon(R) @ 2.20GHz, 2 cores") == "intel-r-xeon-r-2-20ghz-2-cores"


def test_the_jobs_cover_all_parts() -> None:
    jobs: dict[bench.Part, Callable[[torch.device], Any]] = bench._JOBS
    assert list(jobs) == list(bench.Part)
