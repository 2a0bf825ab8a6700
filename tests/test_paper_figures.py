"""The paper's figures: what they look at, what their numbers mean, and what happens where models are missing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from shelf import SIZE, Shelf

from bdgd.classical import fbp
from bdgd.data import ellipse_images, named_generator, shepp_logan
from bdgd.evaluation import Effort, classical, table_scans
from bdgd.evaluation.lab import Lab, Look, display_name
from bdgd.evaluation.maps import edge_contrast, spread, text_contrast, variance_panel, variance_scale
from bdgd.evaluation.methods import training_of
from bdgd.evaluation.paper_figures import FIGURES, Drawn
from bdgd.evaluation.subjects import ELLIPSE_IMAGE, ellipse_pictures, faint_ellipse, text_pictures
from bdgd.evaluation.tables import write_cell
from bdgd.inference import reconstruct_blocks
from bdgd.metrics import psnr
from bdgd.models import load, pretrained, provenance_of
from bdgd.operators import RayTransform

FEW = Effort(ellipses=3, draws=2, claim_images=1, quick=True)
NEEDED = {
    "fig2": ["sparse30-mfvi", "sparse30-mcdo", "sparse30-mfvi-paper"],
    "fig3": ["sparse30-mfvi", "sparse30-mcdo", "limited120-mfvi", "limited120-mcdo"],
    "fig4": [f"limited120-{kind}" for kind in ("lpd", "dgd", "mfvi", "mcdo", "best")],
    "fig5": ["sparse30-mfvi", "sparse30-mfvi-paper", "limited60-mfvi", "limited120-mfvi"],
    "fig6": ["sparse30-mfvi", "sparse30-mfvi-paper", "limited60-mfvi", "limited120-mfvi"],
    "worst": ["sparse30-mfvi"],
}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    tv = classical.tv
    monkeypatch.setattr(classical, "tv", lambda A, y, **options: tv(A, y, **options, most_iterations=20))
    return Shelf(tmp_path / "weights", monkeypatch)


def draw(name: str, folder: Path) -> tuple[Drawn | None, Lab]:
    trained = training_of(provenance_of("sparse30-mfvi")) if "sparse30-mfvi" in pretrained() else None
    others = {"psnr": [9.0, 9.0, 1.0, 9.0], "recipe": {"trained": {**(trained or {}), "commit": "of another"}}, "provenance": {"seed": 0}}
    shipped = {"psnr": [30.0, 20.0, 25.0, 40.0], "recipe": {"trained": trained}, "provenance": {"seed": 0}}
    write_cell(folder, "sparse30", "sparse30-mfvi", [others, shipped])
    lab = Lab(torch.device("cpu"), FEW, folder=folder)
    return FIGURES[name](lab), lab


def titles(drawn: Drawn) -> str:
    """All that is written in the figure."""
    figure = drawn.figure
    return "\n".join([figure.get_suptitle(), *(f"{axes.get_title()} {axes.get_ylabel()} {axes.get_xlabel()}" for axes in figure.axes)])


# Each figure


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_all_models_misses_none_and_says_how_few_draws_it_has(name: str, shelf: Shelf, tmp_path: Path) -> None:
    shelf.add(*NEEDED[name])
    drawn, lab = draw(name, tmp_path)
    assert drawn is not None and lab.missing == [] and sorted(lab.used) == sorted(NEEDED[name])
    assert all(made["commit"] == "c0ffee" for made in lab.used.values())
    assert drawn.figure.get_suptitle() == f"{drawn.shows}\n{FEW.note()}"


@pytest.mark.parametrize("name", FIGURES)
def test_a_missing_model_is_left_out_and_remembered(name: str, shelf: Shelf, tmp_path: Path) -> None:
    drawn, lab = draw(name, tmp_path)
    assert drawn is None and sorted(lab.missing) == sorted(NEEDED[name])
    there = next(model for model in NEEDED[name] if model.endswith("mfvi"))
    shelf.add(there)
    drawn, lab = draw(name, tmp_path)
    assert drawn is not None and list(lab.used) == [there] and sorted([there, *lab.missing]) == sorted(NEEDED[name])


def test_the_numbers_of_figure_2_are_those_of_the_library(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("sparse30-mfvi")
    drawn, lab = draw("fig2", tmp_path)
    model, truth = load("sparse30-mfvi"), shepp_logan(SIZE)
    y = lab.sinograms(model, truth)
    posteriors = reconstruct_blocks(model, y, (1, 2, 3), FEW.draws, generator=named_generator("draws", 0))
    assert drawn is not None and list(drawn.numbers["sparse30-mfvi"]) == ["block 1", "block 2", "block 3"]
    for k, posterior in posteriors.items():
        told = drawn.numbers["sparse30-mfvi"][f"block {k}"]
        assert told["psnr"] == pytest.approx(float(psnr(posterior.mean, truth)))
        assert told["variance"] == pytest.approx(float(posterior.epistemic.double().mean()))
    assert drawn.numbers["FBP"]["psnr"] == pytest.approx(float(psnr(fbp(model.A, y), truth)))


def test_figure_3_has_a_box_per_block_and_its_quartiles(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("sparse30-mfvi", "sparse30-mcdo")
    drawn, lab = draw("fig3", tmp_path)
    model, truth = load("sparse30-mcdo"), ellipse_images("test", FEW.ellipses, SIZE)
    posterior = reconstruct_blocks(model, lab.sinograms(model, truth), (3,), FEW.draws, generator=named_generator("draws", 0))[3]
    values = psnr(posterior.mean, truth)
    assert drawn is not None and len(drawn.numbers["sparse30-mcdo"]) == 3
    assert drawn.numbers["sparse30-mcdo"]["block 3"]["median"] == pytest.approx(float(values.median()))
    assert drawn.numbers["sparse30-mcdo"]["block 3"]["quartile"] == pytest.approx(float(torch.quantile(values, 0.25)))
    assert len(drawn.figure.axes[0].patches) == 6 and [t.get_text() for t in drawn.figure.axes[0].get_legend().get_texts()] == [
        "BDGD-MFVI",
        "BDGD-MCDO",
    ]


def test_figure_4_shows_all_methods_and_the_variances_of_the_random_ones(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add(*NEEDED["fig4"])
    drawn, _ = draw("fig4", tmp_path)
    assert drawn is not None
    assert all(f"{name}, " in titles(drawn) for name in ("FBP", "TV", "LPD", "DGD", "BDGD-MFVI", "BDGD-MCDO", "our best"))
    assert {name for name, told in drawn.numbers.items() if isinstance(told, dict) and "edge / flat" in told} == {
        "BDGD-MFVI",
        "BDGD-MCDO",
        "our best",
    }


def test_figure_4_takes_the_weight_of_tv_from_the_table(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.add("limited120-mfvi")
    used = []
    monkeypatch.setattr(classical, "tv", lambda A, y, **options: used.append(options) or fbp(A, y))
    write_cell(tmp_path, "limited120", "tv", [{"recipe": {"ellipses": {"kind": "isotropic", "weight": 0.123}}}])
    draw("fig4", tmp_path)
    assert used == [{"weight": 0.123, "isotropic": True}]


def test_figure_6_tells_how_the_text_stands_out(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("sparse30-mfvi", "limited60-mfvi")
    drawn, lab = draw("fig6", tmp_path)
    model = load("limited60-mfvi")
    images, mask = text_pictures(1, SIZE)
    expected = text_contrast(lab.look(model, lab.sinograms(model, images)), mask)
    assert drawn is not None and drawn.numbers["limited60-mfvi"]["AUROC"] == expected["AUROC"]
    assert f"AUROC {expected['AUROC']:.2f}" in titles(drawn)


def test_the_worst_image_is_that_of_the_table_with_its_own_noise(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("sparse30-mfvi")
    drawn, _ = draw("worst", tmp_path)
    assert drawn is not None
    assert (drawn.numbers["image"], drawn.numbers["of"], drawn.numbers["psnr in the table"]) == (1, 3, 20.0)
    model = load("sparse30-mfvi")
    assert isinstance(model.A, RayTransform)
    scan = table_scans(model.A, 4)[1]
    assert scan.images is not None
    assert drawn.numbers["FBP"]["psnr"] == pytest.approx(float(psnr(fbp(model.A, scan.sinograms), scan.images)))


# What they look at


def test_the_faint_ellipse_is_large_faint_and_where_the_masks_say() -> None:
    subject = faint_ellipse(128)
    assert 0.01 < subject.contrast < 0.03 and subject.inside.float().mean() > 0.2
    assert subject.edge.sum() > 300 and subject.flat.sum() > 1000 and not bool((subject.edge & subject.flat).any())
    x = subject.image[0, 0]
    steps = (x[1:] - x[:-1])[(subject.edge & ~subject.inside)[1:] & (subject.edge & subject.inside)[:-1]]  # out of the ellipse, along x
    assert len(steps) > 20 and torch.allclose(steps, torch.tensor(-subject.contrast, dtype=x.dtype), atol=1e-5)
    assert torch.equal(subject.image, ellipse_images("test", 71)[70:])


def test_pictures_are_of_the_test_set_with_and_without_the_text() -> None:
    plain, (written, mask) = ellipse_pictures(2, 32), text_pictures(2, 32)
    assert torch.equal(plain, ellipse_images("test", ELLIPSE_IMAGE + 2, 32)[ELLIPSE_IMAGE:])
    assert bool((written[mask.expand_as(written)] == 1).all()) and torch.equal(
        written[~mask.expand_as(written)], plain[~mask.expand_as(plain)]
    )


# Maps of variance


def test_contrasts_are_ratios_of_means() -> None:
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    mask[..., :2, :2] = True
    look = Look(mask.float().expand(2, 1, 4, 4), torch.where(mask, 6.0, 2.0).expand(2, 1, 4, 4))
    # The mean's gradient is 0, 1/2, 1/2, 1/sqrt(2) inside; outside four times 1/2, eight times 0: 36 of 48 pairs rightly, ties count half.
    assert text_contrast(look, mask) == {"text / rest": 3.0, "AUROC": 1.0, "AUROC of the mean's gradient": 0.75}
    assert edge_contrast(look, mask[0, 0], ~mask[0, 0]) == {"edge / flat": 3.0, "AUROC of the edge": 1.0}
    assert spread(look) == pytest.approx((4 * 6 + 12 * 2) / 16)
    blank = Look(look.mean, torch.where(mask, 1.0, 0.0).expand(2, 1, 4, 4))
    assert math.isfinite(text_contrast(blank, mask)["text / rest"]), "a ratio to nothing must still be a number that JSON knows"


def test_one_scale_reaches_from_the_faintest_to_the_brightest_map() -> None:
    maps = [torch.full((1, 1, 4, 4), value) for value in (3e-9, 2e-4)]
    scale = variance_scale([*maps, torch.zeros(1, 1, 4, 4)])
    assert (scale.low, scale.high) == (-10, -3)
    assert torch.allclose(variance_panel(maps[0], "", scale).image, torch.tensor(math.log10(3e-9), dtype=torch.float64))
    assert bool((variance_panel(torch.zeros(1, 1, 4, 4), "", scale).image == -10).all())
    assert variance_scale([torch.zeros(1, 1, 4, 4)]).low < variance_scale([torch.zeros(1, 1, 4, 4)]).high


def test_names_for_people() -> None:
    assert display_name("sparse30-mfvi-paper") == "BDGD-MFVI, paper's recipe" and display_name("limited60-best") == "our best"
