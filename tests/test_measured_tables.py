"""Tables of measured scans: a setting is chosen on other objects only, and what is missing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bdgd.checks import InputError
from bdgd.evaluation.challenge import CONDITIONS
from bdgd.evaluation.measured_tables import (
    MISSING,
    UNMEASURED,
    chosen_setting,
    is_complete,
    is_made_by,
    measured_markdown,
    read_entries,
    write_entries,
)
from bdgd.models import pretrained


def entry(**by_setting: tuple[float, float | None]) -> dict[str, Any]:
    """Scores by setting, from (MCC inside, PSNR)."""
    kept = {"mcc": 0.9, "ssim": 0.8, "coverage": None, "width": None, "noise_width": None, "seconds": 1.0}
    return {
        "results": {name: {**kept, "mcc_inside": a, "psnr": b} for name, (a, b) in by_setting.items()},
        "provenance": {"hardware": "a machine", "commit": "1c37dc78c6de0d", "seed": 0},
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
    values = {"04a": 0.8, "04b": 0.6, "ta": 0.7}
    write_entries(tmp_path, "arc60", "fbp", {scan: entry(hann=(value, 25.0)) for scan, value in values.items()})
    write_entries(tmp_path, "arc60", "some/where/mine.safetensors", {"04a": entry(**{"20 draws": (0.95, 30.0)})})
    lines = measured_markdown(tmp_path, condition).splitlines()
    assert "| FBP | 3 | 0.900 | 0.700 | 0.60 | 0.80, 0.60 | 25.00 | 0.800 |" in "\n".join(lines)
    missing = [line for line in lines if MISSING in line or UNMEASURED in line]
    assert [line.split(" |")[:3] for line in missing] == [["| DGD", " 0", f" {MISSING}"], ["| BDGD", " 0", f" {UNMEASURED}"]]
    assert lines[-5].startswith("| mine | 1 ")
    assert len({line.count("|") for line in lines[2:-4]}) == 1 and lines[-1] == "*Measured on a machine (commit 1c37dc78c6).*"
    assert lines[-3] == "*The image of a model with random weights is the mean of 20 draws.*"
    kept = read_entries(tmp_path, "arc60", "fbp")
    assert is_complete(kept["ta"], True) and not is_complete(entry(hann=(0.5, None)), True) and is_complete(entry(hann=(0.5, None)), False)
    (tmp_path / "arc60" / "fbp.json").write_text("{")
    with pytest.raises(InputError, match="delete it"):
        read_entries(tmp_path, "arc60", "fbp")


def test_an_entry_is_of_its_weights_draws_and_seed() -> None:
    old, made_by = entry(**{"100 draws": (0.5, 20.0)}), {"weights": "abc", "calibration": None, "draws": 100, "seed": 0}
    new = {**old, "made_by": made_by}
    for key, other in (("weights", "abd"), ("draws", 2), ("seed", 1), ("calibration", "abc")):
        assert is_made_by(new, made_by) and not is_made_by(new, {**made_by, key: other}), key
    assert is_made_by(old, made_by, shipped=True) and not is_made_by(old, made_by)  # from before weights were kept
    assert not is_made_by(old, {**made_by, "draws": 2}, shipped=True) and not is_made_by(old, {**made_by, "seed": 1}, shipped=True)
    assert is_made_by(entry(hann=(0.5, 20.0)), None)


def test_what_is_kept_of_shipped_models_is_still_theirs() -> None:
    folder = Path(__file__).resolve().parents[1] / "results" / "measured"
    made_by = {"weights": "any", "calibration": None, "draws": 100, "seed": 0}
    for condition in CONDITIONS.values():
        assert f"{condition.model}-mfvi" in pretrained()
        kept = read_entries(folder, condition.name, f"{condition.model}-mfvi+linear")
        assert len(kept) == 19 and all(is_made_by(found, made_by, shipped=True) and is_complete(found, True) for found in kept.values())
        assert "(commit" in measured_markdown(folder, condition).splitlines()[-1]
