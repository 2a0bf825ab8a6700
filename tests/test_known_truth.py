"""`bdgd evaluate --scans`: methods scored on the scans of a file that holds the truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import small_model, small_transform
from typer.testing import CliRunner

from bdgd.apps import cli
from bdgd.classical import fbp, tv
from bdgd.data import Correction, GaussianNoise, Scans, named_generator, random_ellipses, read_scans, simulate, write_scans
from bdgd.evaluation.known_truth import TV_WEIGHTS, chosen_elsewhere, on_object, range_of
from bdgd.inference import reconstruct
from bdgd.metrics import coverage, psnr, ssim
from bdgd.models import load, save
from bdgd.operators import RayTransform

A = small_transform(size=(16, 16), pixel_size=0.5)
VALUE = 0.05  # per mm, as acrylic is


def bdgd(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments), "--device", "cpu"], prog_name="bdgd")


def scans_of(operator: RayTransform, count: int = 3) -> Scans:
    g = torch.Generator().manual_seed(0)
    images = VALUE * random_ellipses(count, operator.domain_shape[1:], generator=g)
    return replace(simulate(operator, images, GaussianNoise(0.02), generator=g), unit="mm")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Scans on pixels half as wide as the model's, and a model that corrects them."""
    model = small_model(A=A)
    model.value_scale = VALUE
    model.correction = Correction(hardening=0.1)
    save(model, tmp_path / "model.safetensors")
    write_scans(tmp_path / "scans.h5", scans_of(RayTransform(replace(A.geometry, image_size=(32, 32), pixel_size=0.25))))
    return tmp_path / "scans.h5", tmp_path / "model.safetensors"


def test_every_score_is_that_of_the_library(files: tuple[Path, Path], tmp_path: Path) -> None:
    path, model_file = files
    result = bdgd("fbp", "tv", model_file, "--scans", path, "--draws", 3, "-o", tmp_path / "e.json")
    assert result.exit_code == 0, result.output
    assert "mean of 3 scans; width in 1/mm" in result.output and "averaged over the model's pixels" in result.stderr
    written = json.loads((tmp_path / "e.json").read_text())
    scans, model = read_scans(path), load(model_file)
    assert scans.images is not None
    truth = torch.nn.functional.avg_pool2d(scans.images, 2)
    y = scans.corrected(model.correction).sinograms
    posterior = reconstruct(model, y, 3, generator=named_generator("draws", 0))
    for name, image in (("fbp", fbp(A, y)), (str(model_file), posterior.mean)):
        ranges = [float(x.max() - x.min()) for x in truth]
        for key, metric in (("psnr", psnr), ("ssim", ssim)):
            right = [float(metric(image[k : k + 1], truth[k : k + 1], ranges[k])) for k in range(3)]
            assert written["methods"][name][key] == pytest.approx(right, rel=1e-3), (name, key)
    scores = written["methods"][str(model_file)]
    lower, upper = posterior.interval(0.95)
    inside = truth > 1e-6 * VALUE
    assert scores["coverage"] == pytest.approx(coverage(posterior, truth, mask=inside).tolist(), abs=0.01)
    assert scores["coverage"] != pytest.approx(coverage(posterior, truth).tolist(), abs=0.01)  # background is easy
    assert scores["width"] == pytest.approx([float((upper - lower)[k][inside[k]].mean()) for k in range(3)], rel=1e-3)
    assert scores["mean_psnr"] == pytest.approx(sum(scores["psnr"]) / 3) and "coverage" not in written["methods"]["fbp"]


def test_tv_chooses_for_every_scan_on_the_others(files: tuple[Path, Path], tmp_path: Path) -> None:
    scans = scans_of(A)
    write_scans(tmp_path / "coarse.h5", scans)
    assert bdgd("tv", "--scans", tmp_path / "coarse.h5", "-o", tmp_path / "e.json").exit_code == 0
    found = json.loads((tmp_path / "e.json").read_text())["methods"]["tv"]
    assert scans.images is not None
    data_range = float(scans.images.max() - scans.images.min())
    tried = torch.tensor(TV_WEIGHTS) * data_range
    assert all(torch.isclose(tried, torch.tensor(weight), rtol=1e-4, atol=0).any() for weight in found["recipe"]["weights"])
    for k, weight in enumerate(found["recipe"]["weights"]):
        x = scans.images[k : k + 1]
        image = tv(A, scans.sinograms[k : k + 1], weight)
        assert found["psnr"][k] == pytest.approx(float(psnr(image, x, float(x.max() - x.min()))), abs=0.3)


def test_psnr_does_not_depend_on_whether_the_unit_is_known(tmp_path: Path) -> None:
    found = []
    for name, unit in (("mm", "mm"), ("none", None)):
        write_scans(tmp_path / f"{name}.h5", replace(scans_of(A), unit=unit))
        assert bdgd("fbp", "--scans", tmp_path / f"{name}.h5", "-o", tmp_path / "e.json").exit_code == 0
        scores = json.loads((tmp_path / "e.json").read_text())["methods"]["fbp"]
        found.append((scores["psnr"], scores["ssim"]))
    assert found[0] == found[1]


def test_the_data_range_is_that_of_the_truth() -> None:
    truth = torch.tensor([0.0, 0.01, 0.05])
    assert range_of(truth) == pytest.approx(0.05) and range_of(truth + 1) == pytest.approx(0.05)
    assert range_of(torch.full((4,), 0.02)) == pytest.approx(0.02) and range_of(torch.zeros(4)) == 1.0


def test_an_interval_is_counted_on_the_object() -> None:
    model = small_model(A=A)
    posterior, truth = reconstruct(model, scans_of(A, 1).sinograms, 3, generator=named_generator("draws", 0)), torch.zeros(1, 1, 16, 16)
    lower, upper = posterior.interval(0.9)
    truth[0, 0, 4:8, 4:8] = ((lower + upper) / 2)[0, 0, 4:8, 4:8]
    truth[0, 0, 4, 4:8] = upper[0, 0, 4, 4:8] + 0.1  # a quarter of the object lies outside
    covered, width = on_object(posterior, truth, 0.9)
    assert covered == 0.75 and width == pytest.approx(float((upper - lower)[0, 0, 4:8, 4:8].mean()))
    assert on_object(posterior, torch.zeros_like(truth), 0.9)[1] == pytest.approx(float((upper - lower).mean()))


def test_the_choice_does_not_see_the_scan_it_is_for() -> None:
    quality = torch.tensor([[9.0, 1.0, 1.0], [2.0, 2.0, 2.0]])  # candidate 0 is best on scan 0 alone
    assert chosen_elsewhere(quality) == [1, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fbp", "--scans", "{tmp}/scans.h5", "--setting", "sparse30"], "--setting belongs to the test set"),
        (["fbp", "--scans", "{tmp}/scans.h5", "--images", "3"], "--images belongs to the test set"),
        (["fbp", "--scans", "{tmp}/scans.h5", "--uncertainty"], "--uncertainty belongs to the test set"),
        (["fbp", "--scans", "{tmp}/truthless.h5"], "a score needs the true images, and the scans have none;"),
        (["tv", "--scans", "{tmp}/one.h5"], "there is one; simulate more with --count"),
        (["fbp", "--scans", "{tmp}/none.h5"], "there is no file"),
        (["sparse30-mfvi", "--scans", "{tmp}/truthless.h5"], "does not fit the model"),
        (["{tmp}/model.safetensors", "{tmp}/plain.safetensors", "--scans", "{tmp}/scans.h5"], "need different scans"),
        (["htc-arc90-mfvi"], "has no test set; add --scans FILE"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(arguments: list[str], expected: str, files: tuple[Path, Path], tmp_path: Path) -> None:
    scans = scans_of(A, 1)
    write_scans(tmp_path / "one.h5", scans)
    write_scans(tmp_path / "truthless.h5", replace(scans, images=None))
    save(small_model(A=A), tmp_path / "plain.safetensors")
    result = bdgd(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1 and expected in result.stderr, result.stderr
