"""The bars of the benchmark: met by what is fast enough, missed by what is not, and neither where nothing was measured."""

from __future__ import annotations

from speeds import measured_parts

from bdgd.evaluation import speed


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
