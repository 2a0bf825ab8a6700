"""The paper's claims as numbers: each verdict against a case where the answer is known, and none hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from shelf import SIZE, Shelf
from torch import Tensor

from bdgd.evaluation import Effort, claims, table_claims
from bdgd.evaluation.claim import PAPERS, Claim, markdown
from bdgd.evaluation.claims import check_claims
from bdgd.evaluation.lab import Lab, Look
from bdgd.evaluation.subjects import faint_ellipse, text_pictures
from bdgd.evaluation.tables import write_cell
from bdgd.storage import write_json

FEW = Effort(ellipses=2, draws=2, claim_images=2, quick=True)


class Models:
    """Stands for a shipped model of three blocks; its variance maps are given by the test."""

    random = True

    def __init__(self, name: str):
        self.name, self.blocks, self.A = name, [None] * 3, self
        self.domain_shape = (1, SIZE, SIZE)


class GivenLab(Lab):
    """A lab whose models have the variance that `given(name, block, sinograms)` says; the "sinograms" are the images."""

    given: Any = None
    there: tuple[str, ...] = ()

    def model(self, name: str) -> Any:
        if name not in self.there:
            self.missing.append(name)
            return None
        return Models(name)

    def sinograms(self, model: Any, x: Tensor) -> Tensor:
        return x

    def look(self, model: Any, y: Tensor) -> Look:
        return Look(y, self.given(model.name, 3, y))

    def look_after(self, model: Any, y: Tensor, blocks: Any, name: str = "") -> dict[int, Look]:
        return {block: Look(y, self.given(model.name, block, y)) for block in blocks}


def lab(given: Any, *there: str, folder: Path = Path("nowhere")) -> GivenLab:
    made = GivenLab(torch.device("cpu"), FEW, folder=folder)
    made.given, made.there = given, there
    return made


@pytest.fixture(autouse=True)
def three_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "shown_blocks", lambda model: (1, 2, 3))


def cell(seed: int, *psnr: float, trained: int | None = None) -> dict[str, Any]:
    made = {"psnr": list(psnr), "provenance": {"seed": seed}}
    return made if trained is None else made | {"recipe": {"trained": {"seed": trained}}}


def test_beating_is_paired_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    write_cell(tmp_path, "sparse30", "sparse30-mfvi", [cell(0, 40, 42, 50), cell(1, 41, 43, 51), cell(2, 0, 0, 0)])
    write_cell(tmp_path, "sparse30", "sparse30-dgd", [cell(0, 39, 43, 49), cell(1, 40, 40, 49)])
    claim = claims.beats(lab(None, folder=tmp_path), "sparse30", "dgd")
    leads = {"lead on ellipses dB": 1.0, "lead on Shepp-Logan dB": 1.5}
    assert claim.numbers == leads | {f"luck of {name}": 0.0 for name in leads} | {"ellipse images won %": 75.0, "seeds": 2}
    assert claim.told().startswith("lead on ellipses +1.00 dB (luck 0.00); lead on Shepp-Logan +1.50 dB (luck 0.00); ")
    assert claim.told().endswith("ellipse images won 75 %; seeds 2")
    assert claim.holds is True and claim.verdict() == "yes"
    write_cell(tmp_path, "sparse30", "sparse30-mcdo", [cell(0, 30, 30, 60)])
    assert claims.beats(lab(None, folder=tmp_path), "sparse30", "mcdo").holds is False, "Shepp-Logan must be won too"
    write_cell(tmp_path, "sparse30", "sparse30-lpd", [cell(7, 30, 30, 60)])
    other = claims.beats(lab(None, folder=tmp_path), "sparse30", "lpd")
    assert other.holds is None and other.missing == () and "no seed in common" in other.told()
    missing = claims.beats(lab(None, folder=tmp_path), "limited120", "dgd")
    assert missing.holds is None and missing.missing == ("limited120-mfvi", "limited120-dgd") and "not measured" in missing.told()


def test_luck_is_what_two_sets_of_trainings_can_differ_by(tmp_path: Path) -> None:
    """Two standard errors of the difference of two means; a method that was trained once counts as one draw of the other's spread."""
    write_cell(tmp_path, "sparse30", "sparse30-mfvi", [cell(s, 40 + s, 50 + s, trained=s) for s in range(3)])  # standard deviation 1
    write_cell(tmp_path, "sparse30", "sparse30-dgd", [cell(s, 39.5 + s, 45 + s, trained=s) for s in range(3)])
    write_cell(tmp_path, "sparse30", "sparse30-mcdo", [cell(s, 39.5, 45, trained=0) for s in range(3)])
    write_cell(tmp_path, "sparse30", "tv", [cell(s, 39.5, 45) for s in range(3)])
    made = lab(None, folder=tmp_path)
    for rival, luck in (("dgd", 2 * (2 / 3) ** 0.5), ("mcdo", 2 * (4 / 3) ** 0.5), ("tv", 2 * (1 / 3) ** 0.5)):
        claim = claims.beats(made, "sparse30", rival)
        assert claim.numbers["luck of lead on ellipses dB"] == claim.numbers["luck of lead on Shepp-Logan dB"] == pytest.approx(luck)
        assert claim.holds is True and (claim.doubt == "within luck") is (claim.numbers["lead on ellipses dB"] < luck)
    assert claims.beats(made, "sparse30", "dgd").verdict() == "yes, within luck"
    assert claims.beats(made, "sparse30", "mcdo").numbers["trainings of one"] == 1
    assert table_claims.dropout_beats_dgd(made).verdict() == "**no**, within luck"


def test_luck_is_unknown_where_all_methods_were_trained_once(tmp_path: Path) -> None:
    """Seeds of noise and draws say nothing about another training."""
    for kind, ahead in (("mfvi", 1.0), ("dgd", 0.0), ("mcdo", 0.1)):
        write_cell(tmp_path, "sparse30", f"sparse30-{kind}", [cell(s, 40 + ahead + s, 50 + ahead, trained=0) for s in range(3)])
    made = lab(None, folder=tmp_path)
    claim = claims.beats(made, "sparse30", "dgd")
    assert claim.verdict() == "yes, luck unknown" and not any("luck" in name for name in claim.numbers)
    assert table_claims.dropout_is_like_dgd(made).verdict() == "yes, luck unknown"
    assert set(made.cells) == {f"sparse30 sparse30-{kind}" for kind in ("mfvi", "dgd", "mcdo")}


@pytest.mark.parametrize(("apart", "verdict"), [(0.05, "yes"), (0.19, "yes, within luck"), (0.21, "**no**, within luck"), (0.5, "**no**")])
def test_alike_is_a_matter_of_a_margin_not_of_noise(tmp_path: Path, apart: float, verdict: str) -> None:
    for kind, ahead in (("mcdo", apart), ("dgd", 0.0)):
        write_cell(tmp_path, "sparse30", f"sparse30-{kind}", [cell(s, 40 + ahead + 0.05 * s, 50, trained=s) for s in range(3)])
    assert table_claims.dropout_is_like_dgd(lab(None, folder=tmp_path)).verdict() == verdict


def test_what_the_paper_excepts_is_not_judged(tmp_path: Path) -> None:
    """LPD on the ellipses of sparse view; and of two leads a firm one that is none decides."""
    for setting in ("sparse30", "limited120"):
        for kind, ellipses, head in (("mfvi", 40, 51), ("lpd", 45, 50)):
            cells = [cell(s, ellipses + 0.1 * s, head + 2 * s, trained=s) for s in range(3)]
            write_cell(tmp_path, setting, f"{setting}-{kind}", cells)
    made = lab(None, folder=tmp_path)
    assert claims.beats(made, "sparse30", "lpd").verdict() == "yes, within luck"
    assert claims.beats(made, "limited120", "lpd").verdict() == "**no**"


def test_blocks_gain_more_where_the_lead_grows(tmp_path: Path) -> None:
    def figure(*lead: float) -> None:
        blocks = [{f"block {k + 1}": {"mean": 30.0 + k + ahead} for k, ahead in enumerate(row)} for row in (lead, (0.0,) * len(lead))]
        write_json(tmp_path / "fig3.json", {"numbers": dict(zip(("sparse30-mfvi", "sparse30-mcdo"), blocks, strict=True))})

    made = lab(None, folder=tmp_path)
    assert table_claims.gains_by_more_blocks(made, "sparse30").missing == ("sparse30-mfvi in Figure 3", "sparse30-mcdo in Figure 3")
    figure(0.3, 0.2, 0.1, 0.5)
    claim = table_claims.gains_by_more_blocks(made, "sparse30")
    assert claim.numbers == pytest.approx({"lead after block 1 dB": 0.3, "lead after block 3 dB": 0.1, "lead after block 4 dB": 0.5})
    assert claim.verdict() == "yes, luck unknown"
    for kind in ("mfvi", "mcdo"):
        write_cell(tmp_path, "sparse30", f"sparse30-{kind}", [cell(s, 40 + 0.1 * s, 50, trained=s) for s in range(3)])
    assert table_claims.gains_by_more_blocks(made, "sparse30").verdict() == "yes", "0.4 dB, where luck is 2 * 0.1 * sqrt(2)"
    figure(0.3, 0.2, 0.1, 0.05)
    assert table_claims.gains_by_more_blocks(made, "sparse30").verdict() == "**no**, within luck"
    figure(0.3, 0.9, 0.1, 2.0)
    assert table_claims.gains_by_more_blocks(made, "sparse30").verdict() == "**no**", "not comparable at first"


def test_depth_is_judged_within_the_deepest_cascade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAPERS_BLOCKS", 2)
    for error, holds in ((0.099, True), (0.05, False)):
        made = lab(None, "sparse30-best")
        made.look_after = lambda model, y, at, error=error: {k: Look(y + (0.1 if k == 2 else error), 0 * y) for k in at}  # type: ignore[method-assign]
        claim = claims.deep_enough(made)
        assert claim.holds is holds and claim.numbers.keys() == {"block 2 dB", "block 3 dB"}


@pytest.mark.parametrize(
    ("levels", "falls", "rises", "stays_low"),
    [((4, 1, 2), True, True, False), ((4, 2, 1), True, False, True), ((1, 2, 3), False, True, False), ((4, 5, 3), False, False, True)],
)
def test_the_two_phases(levels: tuple[float, ...], falls: bool, rises: bool, stays_low: bool) -> None:
    made = lab(lambda name, block, y: torch.full_like(y, levels[block - 1]), "sparse30-mfvi", "sparse30-mcdo")
    assert claims.reconstruction_phase(made).holds is falls
    assert claims.fine_tuning_phase(made).holds is rises
    assert claims.dropout_stays_low(made).holds is stays_low
    assert claims.fine_tuning_phase(made).numbers["ellipses block 2"] == levels[1]
    assert claims.fine_tuning_phase(made, PAPERS).missing == ("sparse30-mfvi-paper",)


def test_a_shorter_arc_and_a_limited_view_have_more_variance() -> None:
    variances = {"sparse30-mfvi": 1.0, "limited120-mfvi": 3.0, "limited60-mfvi": 2.0}
    made = lab(lambda name, block, y: torch.full_like(y, variances[name]), *variances)
    assert claims.limited_view(made).holds is True and claims.limited_view(made).numbers["ratio"] == 3.0
    assert claims.shorter_arc(made).holds is False
    assert claims.shorter_arc(lab(made.given, "limited60-mfvi")).missing == ("limited120-mfvi",)

    def one_bright_pixel(name: str, block: int, y: Tensor) -> Tensor:
        return torch.zeros_like(y).index_fill(3, torch.tensor([0]), 100.0) if name.startswith("limited") else torch.rand(y.shape)

    narrow = claims.limited_view(lab(one_bright_pixel, *variances))
    assert narrow.numbers["ratio"] > 1 and narrow.holds is False, "more variance, in a smaller area"


def test_the_text_stands_out_and_is_found() -> None:
    _, mask = text_pictures(1, SIZE)

    def given(inside: float) -> Any:
        def variance(name: str, block: int, y: Tensor) -> Tensor:
            written = bool((y[mask.expand_as(y)] == 1).all())
            return torch.where(mask, inside if written else 0.5, 1.0).expand_as(y)

        return variance

    made = lab(given(3.0), "sparse30-mfvi")
    ratio = claims.text_stands_out(made, "sparse30")
    baseline = ratio.numbers.pop("AUROC of the mean's gradient")
    assert ratio.holds is True and ratio.numbers == {"text / rest": 3.0, "AUROC": 1.0, "times without the text": 6.0}
    assert 0.5 < baseline < 1
    assert claims.text_is_found(made, "sparse30").holds is True
    weak = lab(given(1.5), "sparse30-mfvi")
    assert claims.text_stands_out(weak, "sparse30").holds is False, "1.5 times is no multiple"
    assert claims.text_is_found(weak, "sparse30").holds is True, "but every pixel of it is found"
    blind = lab(given(1.0), "sparse30-mfvi")
    assert claims.text_is_found(blind, "sparse30").numbers["AUROC"] == 0.5 and claims.text_is_found(blind, "sparse30").holds is False


def test_the_faint_ellipse_shows_along_its_edge() -> None:
    edge = faint_ellipse(SIZE).edge
    levels = {"limited120-mfvi": 4.0, "limited120-mcdo": 1.0}
    made = lab(lambda name, block, y: torch.where(edge, levels[name], 1.0).expand_as(y), *levels)
    assert claims.faint_ellipse_visible(made).numbers == {"edge / flat": 4.0, "AUROC of the edge": 1.0}
    assert claims.faint_ellipse_visible(made).holds is True
    assert claims.more_detail_than_dropout(made).numbers == {"MFVI": 1.0, "MCDO": 0.5}
    levels["limited120-mcdo"] = 4.0
    speckled = lab(lambda name, block, y: torch.where(edge & (torch.rand(edge.shape) < 0.2), 100.0, 1.0).expand_as(y), *levels)
    assert claims.faint_ellipse_visible(speckled).holds is False, "a few pixels make a mean, and no edge"
    levels["limited120-mfvi"] = 1.5
    assert claims.faint_ellipse_visible(lab(made.given, *levels)).holds is False


def test_every_claim_is_there_and_the_papers_recipe_beside_it_where_it_can_be_measured(tmp_path: Path) -> None:
    def given(name: str, block: int, y: Tensor) -> Tensor:
        return torch.full_like(y, float(block))

    made = lab(given, "sparse30-mfvi", "sparse30-mfvi-paper", folder=tmp_path)
    found = list(check_claims(made))
    assert [claim.name for claim in found if claim.recipe == "ours"] == [c.name for c in (k(made, recipe="") for k in claims.CLAIMS)]
    assert len(claims.CLAIMS) == 28
    assert {claim.name for claim in found if claim.recipe == "paper's"} == {
        "Reconstruction phase",
        "Fine-tuning phase",
        "Text stands out, sparse view",
        "Text is found, sparse view",
    }
    assert not any(name.endswith(PAPERS) for name in made.missing), "a twin that is not there is no gap"


def test_cells_without_a_seed_in_common_are_said() -> None:
    assert Claim("a", "s", ("x", "y")).told() == "not measured: the methods have no seed in common"


def test_no_verdict_is_hidden() -> None:
    found = [
        Claim("a", "s", ("m",), {"x": 0.25}, True),
        Claim("b", "s", ("m",), {"x": 1.0}, False),
        Claim("c", "s", ("m",), missing=("m",)),
    ]
    text = markdown(found, "QUICK")
    assert text.startswith("**QUICK**") and text.endswith("1 hold, 1 do not, 1 cannot be measured yet.")
    assert (
        "| a | s | ours | x 0.25 | yes |" in text
        and "| b | s | ours | x 1 | **no** |" in text
        and "| c | s | ours | not measured: m" in text
    )


def test_real_models_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Shelf(tmp_path / "weights", monkeypatch).add("sparse30-mfvi", "limited120-mfvi")
    real = Lab(torch.device("cpu"), FEW, folder=tmp_path)
    found = {claim.name: claim for claim in check_claims(real)}
    assert found["Text is found, sparse view"].holds is not None and found["Faint ellipse in the variance"].holds is not None
    assert found["Fine-tuning phase"].numbers.keys() == {f"{p}block {k}" for p in ("", "ellipses ") for k in (1, 2, 3)}
    assert sorted(real.missing) == ["limited120-mcdo", "limited60-mfvi", "sparse30-best", "sparse30-mcdo"]
