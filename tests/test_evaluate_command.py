"""`bdgd evaluate`: every image's values are written, and what is chosen is chosen on validation images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from commands import bdgd

from bdgd.apps import evaluate as evaluate_command
from bdgd.evaluation import SETTINGS, Method, classical, score, table_scans
from bdgd.operators import RayTransform


def test_evaluate_writes_every_images_values_and_chooses_on_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classical, "TV_WEIGHTS", (1e-4, 1e-2))
    monkeypatch.setattr(classical, "TV_VALIDATION_IMAGES", 1)
    monkeypatch.setattr(classical, "TV_VALIDATION_HEADS", 1)
    for name in ("choose_tv_weight", "tv"):  # far from converged: the test is about what is written
        monkeypatch.setattr(classical, name, partial(getattr(classical, name), most_iterations=100))
    result = bdgd("evaluate", "--images", 2, "-o", tmp_path / "e.json", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert re.search(r"chosen ellipses (an)?isotropic 0.0001, heads (an)?isotropic 0.0001", result.output)
    written = json.loads((tmp_path / "e.json").read_text())
    assert written["setting"] == "sparse30" and set(written["methods"]) == {"fbp", "tv"}
    tv = written["methods"]["tv"]
    assert len(tv["psnr"]) == len(tv["ssim"]) == 2 and tv["seconds"] > 0
    assert tv["shepp_logan_psnr"] == tv["psnr"][1] and tv["ellipses_psnr"] == tv["psnr"][0]
    for kind in ("ellipses", "heads"):
        assert {frozenset(curve) for curve in tv["recipe"][kind]["curves"].values()} == {frozenset({"0.0001", "0.01"})}
        assert tv["recipe"][kind]["chosen_on"] == "1 validation images"
    assert written["methods"]["fbp"]["shepp_logan_psnr"] == pytest.approx(18.49, abs=0.2)
    assert {"commit", "hardware", "seed", "date"} <= set(written["provenance"])


def test_what_was_chosen_for_shepp_logan_reconstructs_shepp_logan_alone() -> None:
    A = RayTransform(SETTINGS["sparse30"])
    scans = table_scans(A, 8)
    shown: list[tuple[str, int]] = []

    def method(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def reconstruct(y: torch.Tensor) -> torch.Tensor:
            shown.extend((name, int(i)) for i in torch.cdist(y.flatten(1), scans.sinograms.flatten(1)).argmin(1))
            return torch.full((len(y), *A.domain_shape), 0.5)

        return reconstruct

    scores = score(Method(method("ellipses"), reconstruct_head=method("head")), scans)
    assert shown == [*(("ellipses", i) for i in range(7)), ("head", 7)] and len(scores.psnr) == 8
    shown.clear()
    score(Method(method("both")), scans)
    assert shown == [("both", i) for i in range(8)]


def test_evaluate_gives_an_image_the_same_value_in_a_smaller_set(tmp_path: Path) -> None:
    values = []
    for images in (3, 5):
        arguments = ("--setting", "limited120", "--images", images, "-o", tmp_path / "e.json", "--device", "cpu")
        assert bdgd("evaluate", "fbp", *arguments).exit_code == 0
        values.append(json.loads((tmp_path / "e.json").read_text())["methods"]["fbp"]["psnr"])
    assert values[0] == pytest.approx([*values[1][:2], values[1][-1]], abs=1e-4)


def test_intervals_without_their_calibration_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate_command, "evaluate_file", lambda *_, **__: None)
    told = "sparse30-mfvi: the intervals are not calibrated: the calibration holds for 100 draws, not 3; take --draws 100"
    for draws, words in ((3, [told]), (100, [])):
        result = bdgd("evaluate", "fbp", "sparse30-dgd", "sparse30-mfvi", "--scans", "a.h5", "--draws", draws)
        assert result.exit_code == 0 and result.stderr.splitlines() == words
