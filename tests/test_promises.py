"""What is asked of the error bars: measured by the same definitions on a toy, and a verdict that follows the numbers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys import small_model, small_transform

import bdgd
from bdgd.apps import errorbars
from bdgd.apps.console import Output
from bdgd.apps.reproduction import Reproduction
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, random_ellipses, simulate
from bdgd.evaluation import FULL, QUICK
from bdgd.evaluation.promises import LETTERS, Measured, _text, measure_promises, promise_bars
from bdgd.models import DeepGradientDescent


@pytest.fixture(scope="module")
def measured() -> Measured:
    A = small_transform(size=(40, 40))
    model = DeepGradientDescent(A, 1, seed=2)
    g = torch.Generator().manual_seed(0)
    scans = simulate(A, random_ellipses(56, 40, generator=g), GaussianNoise(0.02), generator=g)
    bdgd.train_scale_head(model, scans[:12], draws=2, epochs=2, batch=4, generator=g)
    model = model.with_calibration(bdgd.calibrate(model, scans[12:], levels=(0.5, 0.68, 0.9, 0.95), draws=2, generator=g))
    return measure_promises(model, images=8, texts=3)


def test_everything_is_measured_once(measured: Measured) -> None:
    assert measured.scores.images == 8 and measured.texts == 3
    assert (
        all(0 <= share <= 1 for share in measured.regions_covered.values())
        and 0 <= measured.false_alarms <= 1
        and 0 <= measured.text_auroc <= 1
    )
    assert measured.nll["object"] != measured.nll["all"]
    bars = promise_bars(measured)
    assert len(bars) == 12 and all(bar.verdict in ("met", "not met") and bar.measured for bar in bars)
    assert "scores" in measured.to_dict()


def test_verdicts_follow_the_numbers(measured: Measured) -> None:
    def verdict(part: str, found: Measured) -> str:
        return next(bar.verdict for bar in promise_bars(found) if part in bar.what)

    for part, good, bad in (
        (
            "regions",
            {"regions_covered": {"anywhere": 0.91, "on the object": 0.89}},
            {"regions_covered": {"anywhere": 0.93, "on the object": 0.9}},
        ),
        ("alarm on images with text", {"text_alarms": 0.95}, {"text_alarms": 0.94}),
        ("alarm where the axis is 0.25 detectors off", {"off_axis_alarms": 0.95}, {"off_axis_alarms": 0.94}),
        ("alarm on ordinary", {"false_alarms": 0.05}, {"false_alarms": 0.06}),
        ("finding text", {"text_auroc": 0.9}, {"text_auroc": 0.89}),
    ):
        assert verdict(part, replace(measured, **good)) == "met" and verdict(part, replace(measured, **bad)) == "not met"


def test_texts_are_of_letters_and_of_their_own() -> None:
    g = torch.Generator().manual_seed(0)
    texts = {_text(g) for _ in range(50)}
    assert len(texts) == 50 and all(5 <= len(text) <= 9 and set(text) <= set(LETTERS) for text in texts)


def test_a_model_without_calibration_is_refused() -> None:
    with pytest.raises(InputError, match="calibrated model"):
        measure_promises(small_model())


def test_what_was_measured_for_these_weights_is_kept_and_fills_a_page(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(errorbars, "measure_promises", lambda *arguments: asked.append(arguments) or measured)
    page, job = tmp_path / "page.md", Reproduction(Output(), tmp_path, torch.device("cpu"), QUICK)
    for times in range(2):
        page.write_text("<!-- errorbars -->\nold\n<!-- /errorbars -->\n")
        errorbars.make_errorbars(job, page)
        assert len(asked) == 1, times
        assert (tmp_path / "errorbars.md").read_text() in page.read_text() and "old" not in page.read_text()
    kept = tmp_path / "errorbars.json"
    for times, key in enumerate(("weights", "calibration"), 2):
        kept.write_text(kept.read_text().replace(f'"{key}": "', f'"{key}": "0'))  # another model's
        errorbars.make_errorbars(job)
        assert len(asked) == times, key


def test_the_kept_bars_are_those_of_the_shipped_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_again(*arguments: object) -> Measured:
        raise AssertionError("what is kept for the shipped model would be measured again, for hours")

    monkeypatch.setattr(errorbars, "measure_promises", measured_again)
    kept = Path(__file__).resolve().parents[1] / "results"
    for path in kept.glob("errorbars.*"):
        shutil.copy(path, tmp_path)
    errorbars.make_errorbars(Reproduction(Output(), tmp_path, torch.device("cpu"), FULL, runs=tmp_path))
    assert (tmp_path / "errorbars.md").read_text() == (kept / "errorbars.md").read_text()
