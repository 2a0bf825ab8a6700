"""The comparison of devices: what counts as the same table, and what is compared at all."""

from __future__ import annotations

from typing import Any

from bdgd.apps.devices import compared


def device(name: str, psnr: list[float], weights: str = "w") -> dict[str, Any]:
    origin = {"hardware": name, "seed": 0, "commit": "c" * 40, "date": "2026-01-01T00:00:00"}
    return {"hardware": name, "models": {"model": {"weights": weights, "psnr": psnr, "provenance": origin}}}


def row(*devices: dict[str, Any]) -> list[str]:
    line = next(line for line in compared(list(devices)).splitlines() if line.startswith("| model"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_devices_agree_where_means_and_shepp_logan_do() -> None:
    found = row(device("A", [40.0, 44.0, 50.0]), device("B", [40.03, 43.98, 50.01]))
    assert found == ["model", "42.000 / 50.000", "42.005 / 50.010", "0.0100", "0.0300", "agree"]
    assert row(device("A", [40.0, 44.0, 50.0]), device("B", [40.0, 44.0, 50.03]))[-1] == "differ"
    assert row(device("A", [40.0, 44.0, 50.0]), device("B", [40.1, 44.0, 50.0]))[-1] == "differ"


def test_only_the_same_weights_and_images_are_compared() -> None:
    assert row(device("A", [40.0, 50.0]))[-1] == "one device only"
    assert row(device("A", [40.0, 50.0]), device("B", [40.0, 50.0], "others"))[-1] == "other weights or images"
    assert row(device("A", [40.0, 50.0]), device("B", [40.0, 41.0, 50.0]))[-1] == "other weights or images"
