"""Methods scored on scans of the Helsinki challenge, one by one and together: synthetic discs in its geometry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from discs import ACRYLIC, coarse, disc_image, measured_disc
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import fbp, tv
from bdgd.evaluation import measured, measured_methods
from bdgd.evaluation.challenge import ARCS, CONDITIONS, MeasuredScan, ViewCondition, scanner
from bdgd.evaluation.measured import Reconstructed, disc_scores, score_measured
from bdgd.evaluation.measured_methods import References, corrected, evaluate_scans, measured_fbp, measured_model, measured_tv, reference
from bdgd.evaluation.segmentation import rotated
from bdgd.metrics import psnr
from bdgd.models import DeepGradientDescent
from bdgd.operators import RayTransform

CPU = torch.device("cpu")

# --- scores ----------------------------------------------------------------------------------------------------------


def test_fbp_of_many_views_finds_the_holes_and_the_filled_disc_finds_none(generator: torch.Generator, tmp_path: Path) -> None:
    scan = measured_disc(noise=0.003, generator=generator)
    ((setting, found),) = measured_fbp(CPU, [scan], CONDITIONS["views60"])
    (scores,) = score_measured(found, [scan], CONDITIONS["views60"], disc_image(256, ACRYLIC), 0.0)
    assert setting == "hann" and scores.mcc is not None and scores.mcc > 0.97
    assert scores.mcc_inside is not None and scores.mcc_inside > 0.97
    assert scores.psnr is not None and scores.psnr > 20 and scores.coverage is None
    filled = disc_scores(scan)
    assert filled.mcc is not None and 0.5 < filled.mcc < 0.95 and filled.mcc_inside == 0.0


def test_correcting_restores_the_values(generator: torch.Generator) -> None:
    bent = measured_disc(air=0.015, hardening=0.27)
    images = {}
    for name, scan in (("bent", bent), ("corrected", corrected(bent))):
        ((_, found),) = measured_fbp(CPU, [scan], CONDITIONS["views60"])
        images[name] = found.images[0, 0, 128 - 5 : 128 + 5, 128 - 5 : 128 + 5].mean()  # acrylic in the middle, where the beam is hardest
    assert float(images["bent"]) < 0.8 * ACRYLIC and float(images["corrected"]) == pytest.approx(ACRYLIC, rel=0.03)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_methods, "MOST_ITERATIONS", 20)
    monkeypatch.setattr(measured_methods, "TV_WEIGHTS", (1e-5, 3e-6))


@pytest.mark.usefixtures("quick")
def test_references_are_kept_and_tv_tries_every_weight(tmp_path: Path, generator: torch.Generator) -> None:
    scan, condition = coarse(measured_disc(noise=0.003, generator=generator)), CONDITIONS["views30"]
    references = References(tmp_path / "references", CPU)
    (results,) = evaluate_scans("tv", partial(measured_tv, CPU), [scan], condition, references).values()
    assert list(results) == ["1e-05", "3e-06"] and all(scores["psnr"] > 22 for scores in results.values())
    (path,) = (tmp_path / "references").iterdir()
    np.save(path, np.zeros((1, 1, 64, 64), np.float32))  # the file is what is used from now on
    assert float(references([scan], CONDITIONS["views60"]).abs().max()) == 0.0


# --- all scans of a condition together -------------------------------------------------------------------------------


def arc_scan(name: str, generator: torch.Generator) -> MeasuredScan:
    return coarse(measured_disc(name, air=0.01, noise=0.003, generator=generator))


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=lambda condition: condition.name)
def test_all_scans_of_a_condition_have_one_geometry(condition: ViewCondition) -> None:
    """Turned so that its arc starts at 0, every scan has the geometry of one whose arc does; its views are still its own."""
    scans, own = [coarse(measured_disc(name)) for name in ("07b", "05b", "02a")], measured_disc("05b").scans.sinograms
    for views in (condition.used, condition.left_out):
        together = condition.counted_from_start(scans, views)
        assert scanner()[views("07b")].angles == together.geometry.angles and len(together) == 3  # type: ignore[union-attr]
        assert torch.equal(together.sinograms[1:2], own[:, :, views("05b")])
        turned = torch.tensor(together.geometry.angles) + condition.rotation("05b")  # type: ignore[union-attr]
        measured_at = torch.tensor(scanner()[views("05b")].angles)
        torch.testing.assert_close(torch.polar(torch.ones_like(turned), turned), torch.polar(torch.ones_like(turned), measured_at))
    assert condition.start("05b") == (35 if condition.degrees else 0)
    with pytest.raises(InputError, match="one scanner"):
        condition.counted_from_start([scans[0], measured_disc("05b")], condition.used)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["views30", "arc90"])
def test_scans_together_score_as_each_alone(name: str, tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_DRAWS", 6)
    condition, scans = CONDITIONS[name], [arc_scan(scan, generator) for scan in ("ta", "05b")]
    geometry = scans[0].scans.geometry
    assert geometry is not None
    model = DeepGradientDescent(RayTransform(geometry[condition.used("ta")]), blocks=1, value_scale=ACRYLIC)
    assert model.random
    methods = {"fbp": partial(measured_fbp, CPU), "tv": partial(measured_tv, CPU), "model": partial(measured_model, model, 3, 0)}
    for kind, method in methods.items():
        together = evaluate_scans(kind, method, scans, condition, References(tmp_path / "together", CPU))
        assert list(together) == ["ta", "05b"]
        for scan in scans:
            (alone,) = evaluate_scans(kind, method, [scan], condition, References(tmp_path / "alone", CPU)).values()
            assert list(alone) == list(together[scan.name])
            for setting, scores in alone.items():
                there = {key: value for key, value in scores.items() if value is not None and key != "seconds"}
                assert ("coverage" in there) == (kind == "model") and {"mcc", "mcc_inside", "psnr", "ssim"} <= set(there)
                assert {key: together[scan.name][setting][key] for key in there} == pytest.approx(there, rel=1e-3)


@pytest.mark.usefixtures("quick")
def test_the_image_of_a_turned_arc_is_turned_back(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arc 90 degrees after the upright one: pixels turn onto pixels, and the images are those of the arc where it was measured."""
    monkeypatch.setitem(ARCS, "02a", (135, 80))
    scan, condition = arc_scan("02a", generator), CONDITIONS["arc90"]
    seen = scan.seen(condition.used("02a"))
    assert seen.geometry is not None
    A = RayTransform(seen.geometry)
    expected = fbp(A, seen.sinograms, filter="hann")
    ((_, found),) = measured_fbp(CPU, [scan], condition)
    assert found.rotations == (0.0,) and torch.equal(found.images, expected)
    expected = expected.clamp(min=0)
    for (_, found), weight in zip(measured_tv(CPU, [scan], condition), measured_methods.TV_WEIGHTS, strict=True):
        expected = tv(A, seen.sinograms, weight, start=expected, tolerance=1e-3, most_iterations=20)
        assert found.rotations[0] == pytest.approx(math.pi / 2)
        turned = rotated(found.images, found.rotations[0])
        torch.testing.assert_close(turned, expected, rtol=0, atol=0.05 * ACRYLIC)  # forward differences know left from right
        assert float((found.images - expected).abs().max()) > 0.5 * ACRYLIC


def test_a_reference_is_turned_to_lie_as_the_image(generator: torch.Generator) -> None:
    """The reference of an arc that starts at 40 degrees, and the same image however it lies: only what is interpolated differs."""
    scan, condition, image = arc_scan("03b", generator), CONDITIONS["arc60"], disc_image(64, ACRYLIC)
    truth = rotated(image, -condition.rotation("03b"))
    for rotation in (0.0, condition.rotation("03b"), condition.rotation("03b") - condition.upright):
        found = Reconstructed(rotated(image, -rotation), (rotation,))
        (right,) = score_measured(found, [scan], condition, truth, 0.0)
        (wrong,) = score_measured(replace(found, rotations=(rotation + 0.5,)), [scan], condition, truth, 0.0)
        assert right.psnr is not None and right.psnr > 20 and right.mcc_inside is not None and right.mcc_inside > 0.9
        assert wrong.psnr is not None and wrong.psnr < 15


def test_an_image_of_larger_pixels_is_compared_on_the_reference_s(generator: torch.Generator) -> None:
    scan, condition, truth = arc_scan("ta", generator), CONDITIONS["arc60"], disc_image(64, ACRYLIC)
    small = torch.nn.functional.avg_pool2d(truth, 2)
    (scores,) = score_measured(Reconstructed(small, (0.0,)), [scan], condition, truth, 0.0)
    assert scores.psnr == pytest.approx(float(psnr(rotated(small, 0.0, 64), truth, ACRYLIC)), abs=0.01)


@pytest.mark.usefixtures("quick")
def test_only_missing_references_are_made(tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def watched(scans: Sequence[MeasuredScan], condition: ViewCondition, device: torch.device) -> Tensor:
        asked.append([scan.name for scan in scans])
        return reference(scans, condition, device)

    monkeypatch.setattr(measured_methods, "reference", watched)
    references, condition = References(tmp_path, CPU), CONDITIONS["arc60"]
    scans = {name: arc_scan(name, generator) for name in ("ta", "04a", "05b")}
    first = references([scans["04a"]], condition)
    images = references(list(scans.values()), condition)
    assert asked == [["04a"], ["ta", "05b"]] and torch.equal(images[1:2], first)
    assert not torch.equal(images[:1], images[2:])
