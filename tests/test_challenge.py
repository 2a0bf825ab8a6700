"""The scans of the Helsinki challenge: which views are used and which left out, and files read the right way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import measured_disc, write_compact

from bdgd.checks import InputError
from bdgd.evaluation.challenge import ARCS, CONDITIONS, NAMES, TRAINING, find_scans, group_of, read_measured, scanner

# --- what is used and what is left out -------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=lambda condition: condition.name)
@pytest.mark.parametrize("scan", ["ta", "02a", "05b", "07b"])
def test_no_view_is_used_and_left_out(condition, scan: str) -> None:  # type: ignore[no-untyped-def]
    used, left_out = condition.used(scan), condition.left_out(scan)
    start = condition.start(scan)
    assert not set(used) & set(left_out) and all((view - start) % 2 for view in left_out) and len(left_out) >= 134
    assert len(used) == (condition.views or condition.degrees + 1) == len(set(used))
    if condition.degrees:
        assert used[0] == ARCS.get(scan, (0, 0))[0] and (used[-1] - used[0]) % 360 == condition.degrees


def test_the_challenge_asks_for_the_own_arcs() -> None:
    for name, scans in (("arc90", ("01a", "01b")), ("arc60", ("04a", "04b")), ("arc30", ("07a", "07b"))):
        condition = CONDITIONS[name]
        assert condition.own == scans and all(ARCS[scan][1] == condition.degrees for scan in scans)
    assert len(NAMES) == 19 and {group_of(name) for name in ("ta", "td")} == {"training"}


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_compact_file_comes_back_the_right_way_round(tmp_path: Path) -> None:
    scan = measured_disc("03b")
    path = write_compact(tmp_path, scan)
    assert find_scans(tmp_path) == {"03b": path}
    read = read_measured("03b", path)
    assert torch.equal(read.segmentation, scan.segmentation) and torch.equal(read.scans.sinograms, scan.scans.sinograms)
    assert read.scans.geometry == scanner() and group_of("03b") == "03"


@pytest.mark.parametrize(("keys", "words"), [({}, "no segmentation"), ({"seg512": np.zeros(5, np.uint8)}, "32768 bytes")])
def test_a_file_without_its_segmentation_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    path = write_compact(tmp_path, measured_disc())
    with np.load(path) as file:
        kept = {name: file[name] for name in ("sino", "geo")}
    np.savez(path, **kept, **keys)
    with pytest.raises(InputError, match=words):
        read_measured("ta", path)


def test_folders_without_scans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no scan"):
        find_scans(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        find_scans(tmp_path / "none")


def test_the_organisers_files_and_the_compact_ones_are_the_same_scan(shared_data: Path) -> None:
    found = find_scans(shared_data / "htc2022_mat")
    assert tuple(found) == TRAINING
    original, compact = read_measured("ta", found["ta"]), read_measured("ta", shared_data / "htc2022" / "ta.npz")
    assert torch.equal(original.scans.sinograms, compact.scans.sinograms) and torch.equal(original.segmentation, compact.segmentation)


def test_the_arcs_are_the_challenges(shared_data: Path) -> None:
    paths = find_scans(shared_data / "htc2022")
    assert tuple(paths) == NAMES
    for name, (start, degrees) in ARCS.items():
        with np.load(paths[name]) as file:
            assert json.loads(str(file["geo"]))["limited"][:2] == [start, start + degrees]
