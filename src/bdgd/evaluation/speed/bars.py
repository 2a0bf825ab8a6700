"""What the project asks of its own speed, and whether a measurement meets it. A missing peer leaves its bar not met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bdgd.evaluation.requirements import MET, NOT_HERE, NOT_MET, Bar
from bdgd.evaluation.speed.measuring import Row
from bdgd.evaluation.speed.peers import ASTRA_CPU, ASTRA_GPU
from bdgd.evaluation.tables import PAPER

Parts = dict[str, dict[str, Any]]
#: Ends of the slope that counts as linear, and the slope below which memory counts as independent of the blocks.
LINEAR, FLAT = (0.9, 1.1), 0.05


def bars(parts: Parts, on_gpu: bool) -> list[Bar]:
    """Every bar, in the order of the parts; one whose part is not there, or is for another device, was not measured here."""
    return [*_training(parts, on_gpu), *_quality(parts), *_sampling(parts, on_gpu), *_projector(parts, on_gpu), *_growth(parts)]


def ratio(rows: list[Row], row: Row, peer: str, direction: str) -> float | None:
    """How many times faster a row is than a peer on the same case: in the same batch, or per image where the peer is on a CPU."""
    same = [r for r in rows if r["by"] == peer and r["size"] == row["size"] and r["views"] == row["views"] and r[direction]]
    same = [r for r in same if r.get("note") == "per image" or r["images"] == row["images"]]
    return row[direction] / same[0][direction] if same and row[direction] else None


def _bar(what: str, wanted: str, measured: str | None, good: bool = False, *, absent: str = NOT_HERE) -> Bar:
    return Bar(what, wanted, "" if measured is None else measured, absent if measured is None else MET if good else NOT_MET)


def _training(parts: Parts, on_gpu: bool) -> Iterator[Bar]:
    rows = parts.get("training", {}).get("rows", []) if on_gpu else []
    for batch, least in ((128, 5.0), (32, 3.0)):
        rate = {row["by"]: row["rate"] for row in rows if row["batch"] == batch}
        faster = rate["bdgd"] / rate["plain eager loop"] if rate else None
        yield _bar(
            f"training, batch {batch}: x plain loop",
            f"at least {least:g}",
            f"{faster:.1f}" if faster else None,
            bool(faster and faster >= least),
        )
    curve = parts.get("training", {}).get("curve")
    apart = curve["difference"] if curve and on_gpu else None
    yield _bar("training: loss off the plain loop's", "within 1 %", f"{apart:.2%}" if apart is not None else None, (apart or 0) <= 0.01)


def _quality(parts: Parts) -> Iterator[Bar]:
    found = parts.get("quality")
    ellipses, head = PAPER["sparse30"]["BDGD-MFVI"]
    reached = bool(found and found["ellipses_psnr"] >= ellipses and found["shepp_logan_psnr"] >= head)
    text = f"{found['ellipses_psnr']:.2f} / {found['shepp_logan_psnr']:.2f} dB" if found else None
    yield _bar("short training: PSNR, both kinds", f"{ellipses:.2f} / {head:.2f} dB", text, reached)
    for state, most in (("warm", 25), ("cold", 45)):  # a fast training to less than that is worth nothing
        text = f"{found[state]:.1f} s" if found else None
        yield _bar(f"short training, {state} compile cache", f"{most} s", text, reached and bool(found and found[state] <= most))


def _sampling(parts: Parts, on_gpu: bool) -> Iterator[Bar]:
    row = parts.get("sampling", {}).get("row")
    for here, what, images, most in ((on_gpu, "101 images, GPU", 101, 1.2), (not on_gpu, "one image, CPU", 1, 12.0)):
        seconds = row["seconds"] if row and here and (row["images"], row["draws"], row["blocks"]) == (images, 100, 10) else None
        text = f"{seconds:.2f} s" if seconds is not None else None
        yield _bar(f"sampling, 100 x 10, {what}", f"{most:g} s", text, (seconds or 0) <= most)


def _projector(parts: Parts, on_gpu: bool) -> Iterator[Bar]:
    rows = parts.get("projector", {}).get("rows", [])
    for size, views, images, least in ((128, 30, 64, 10.0), (512, 360, 16, 2.0)):
        yield _against(rows if on_gpu else [], ASTRA_GPU, size, views, images, least)
    for size, views in ((128, 30), (512, 360)):
        yield _against(rows, ASTRA_CPU, size, views, 16, 10.0)
    ours = [row for row in rows if row["default"]]
    worst = max((row["mismatch"] for row in ours), default=None)
    yield _bar("projector: adjoint mismatch", "under 1e-5", f"{worst:.0e}" if worst is not None else None, (worst or 0) < 1e-5)
    memory = [row["memory"] for row in ours if (row["size"], row["views"], row["images"]) == (512, 360, 16) and row["memory"] is not None]
    text = f"{memory[0] / 1e6:.0f} MB" if memory else None
    yield _bar("projector, 512²/360/16: memory", "under 200 MB", text, bool(memory and memory[0] < 200e6))


def _against(rows: list[Row], peer: str, size: int, views: int, images: int, least: float) -> Bar:
    """The slower direction of the default strategy against a peer."""
    what, wanted = f"projector, {size}²/{views}/{images}: x {peer}", f"at least {least:g}"
    mine = [row for row in rows if row["default"] and (row["size"], row["views"], row["images"]) == (size, views, images)]
    if not mine:
        return _bar(what, wanted, None)
    found = [ratio(rows, mine[0], peer, direction) for direction in ("forward", "adjoint")]
    if None in found:
        return _bar(what, wanted, None, absent=f"{NOT_MET}: peer missing")
    text = " / ".join(f"{value:.3g}" for value in found)
    return _bar(what, wanted, text, all(value is not None and value >= least for value in found))


def _growth(parts: Parts) -> Iterator[Bar]:
    rows = parts.get("growth", {}).get("rows", [])
    for against in ("images", "draws", "blocks"):
        slopes = [row["slope"] for row in rows if row["measured"] == "seconds" and row["against"] == against]
        text = " / ".join(f"{value:.2f}" for value in slopes) or None
        yield _bar(f"time with {against}: slope", "1.0 ± 0.1", text, all(LINEAR[0] <= value <= LINEAR[1] for value in slopes))
    memory = {row["what"]: row["slope"] for row in rows if row["measured"] == "bytes"}
    text = " / ".join(f"{value:.2f}" for value in memory.values()) or None
    good = bool(memory) and abs(memory["greedy training"]) <= FLAT
    yield _bar("memory, greedy / joint / LPD: slope", "0 / any / any", text, good)
