"""Tables of measured scans: a setting is chosen on other objects only, and what is missing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bdgd.checks import InputError
from bdgd.evaluation.challenge import CONDITIONS
from bdgd.evaluation.measured_tables import MISSING, chosen_setting, is_complete, measured_markdown, read_entries, write_entries


def entry(**by_setting: tuple[float, float | None]) -> dict[str, Any]:
    """Scores by setting, from (MCC inside, PSNR)."""
    kept = {"mcc": 0.9, "ssim": 0.8, "coverage": None, "width": None, "noise_width": None, "seconds": 1.0}
    return {
        "results": {name: {**kept, "mcc_inside": a, "psnr": b} for name, (a, b) in by_setting.items()},
        "provenance": {"hardware": "a machine"},
    }


def test_a_setting_is_chosen_on_other_groups_only() -> None:
    entries = {
        "04a": entry(rough=(0.9, 20.0), smooth=(0.1, 30.0)),
        "04b": entry(rough=(0.9, 20.0), smooth=(0.1, 30.0)),
        "ta": entry(rough=(0.2, 31.0), smooth=(0.4, 21.0)),
    }
    assert chosen_setting(entries, "04a", "mcc_inside") == "smooth" and chosen_setting(entries, "04a", "psnr") == "rough"
    assert chosen_setting(entries, "ta", "mcc_inside") == "rough" and chosen_setting(entries, "ta", "psnr") == "smooth"
    assert chosen_setting({"04a": entries["04a"], "04b": entries["04b"]}, "04a", "psnr") is None
    assert chosen_setting({"04a": entry(hann=(0.5, None))}, "04a", "psnr") == "hann"


def test_a_table_says_what_is_missing(tmp_path: Path) -> None:
    condition = CONDITIONS["arc60"]
    for scan, value in (("04a", 0.8), ("04b", 0.6), ("ta", 0.7)):
        write_entries(tmp_path, "arc60", "fbp", {scan: entry(hann=(value, 25.0))})
    write_entries(tmp_path, "arc60", "some/where/mine.safetensors", {"04a": entry(draws=(0.95, 30.0))})
    lines = measured_markdown(tmp_path, condition).splitlines()
    assert "| FBP | 3 | 0.900 | 0.700 | 0.60 | 0.80, 0.60 | 25.00 | 0.800 |" in "\n".join(lines)
    assert sum(MISSING in line for line in lines) == 2 and lines[-3].startswith("| mine | 1 ")
    assert len({line.count("|") for line in lines[2:-2]}) == 1 and lines[-1] == "*Measured on a machine.*"
    kept = read_entries(tmp_path, "arc60", "fbp")
    assert is_complete(kept["ta"], True) and not is_complete(entry(hann=(0.5, None)), True) and is_complete(entry(hann=(0.5, None)), False)
    (tmp_path / "arc60" / "fbp.json").write_text("{")
    with pytest.raises(InputError, match="delete it"):
        read_entries(tmp_path, "arc60", "fbp")
