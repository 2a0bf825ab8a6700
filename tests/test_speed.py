"""The benchmark's parts: what is measured is what it says, and a peer that is missing is said to be missing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from speeds import TINY, tiny_data

from bdgd.apps import bench_quality
from bdgd.apps.presets import read_preset
from bdgd.evaluation import speed
from bdgd.evaluation.speed import measuring, peers
from bdgd.evaluation.speed.stepping import PlainLoop
from bdgd.operators import ParallelBeam, RayTransform, adjoint_mismatch

SMALL = ParallelBeam.sparse(image_size=32, views=6)


# --- Measuring -------------------------------------------------------------------------------------------------------


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


# --- Peers -----------------------------------------------------------------------------------------------------------


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


# --- The parts -------------------------------------------------------------------------------------------------------


def test_projector_rows_have_rates_and_an_exact_adjoint(device: torch.device) -> None:
    rows = [row for row in speed.projector_rows(device, 16, 4, batches=(1, 4)) if row["by"].startswith("bdgd")]
    assert [(row["by"], row["images"]) for row in rows if row["default"]] == [("bdgd, matrix", 1), ("bdgd, matrix", 4)]
    assert len(rows) == 4 and all(row["forward"] > 0 and row["adjoint"] > 0 and row["mismatch"] < 1e-5 for row in rows)
    assert all((row["memory"] is not None) == (device.type == "cuda") for row in rows)


def test_a_batch_that_would_take_too_long_is_left_out() -> None:
    rows = speed.projector_rows(torch.device("cpu"), 16, 4, batches=(1, 1000), limit=0.0)
    assert {row["images"] for row in rows} == {1}


def test_both_loops_have_the_same_losses(device: torch.device) -> None:
    curve = speed.loss_curves(tiny_data(device), batch=8, steps=12)
    assert len(curve["bdgd"]) == 12 and curve["plain"][-1] < curve["plain"][0]
    assert curve["difference"] <= (0.02 if device.type == "cuda" else 1e-5)


def test_training_rows(device: torch.device) -> None:
    rows = list(speed.training_rows(device, tiny_data(device), (16, 8)))
    assert [(row["by"], row["batch"]) for row in rows] == [(by, batch) for batch in (16, 8) for by in ("plain eager loop", "bdgd")]
    assert all(row["rate"] > 0 for row in rows)


def test_the_plain_loop_trains() -> None:
    loop = PlainLoop(tiny_data(torch.device("cpu")), 8)
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
