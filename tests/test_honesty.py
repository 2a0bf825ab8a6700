"""The honesty page: what its cases change, what its columns mean, what choosing on a test set buys, and one command that fills it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_epistemic import TINY, bdgd
from toys import small_model

from bdgd.apps import honesty, reproduce, short_trainings
from bdgd.apps.presets import read_preset
from bdgd.apps.short_trainings import preset_of
from bdgd.checks import InputError
from bdgd.evaluation import Effort, honesty_table, table_scans
from bdgd.evaluation import honesty as cases
from bdgd.evaluation.epistemic import ROWS, posterior_function
from bdgd.evaluation.honesty import CASES, CHOICES, GRADIENT_SCALE, OURS, RELEASED_KL, Case, Choice, Variant
from bdgd.evaluation.honesty_scores import measure_case
from bdgd.evaluation.honesty_table import markdown
from bdgd.evaluation.selection import METHODS, SEEDS_OF, families, optimism, own_trainings, seed_spread, selection_scores
from bdgd.evaluation.tables import write_cell
from bdgd.operators import ParallelBeam, RayTransform

PAGE = "before\n<!-- honesty -->\n*Not measured yet.*\n<!-- /honesty -->\nafter\n"
ROOT = Path(__file__).resolve().parents[1]


# The cases ---------------------------------------------------------------------------------------------------------------


def test_every_choice_is_between_cases_that_are_there() -> None:
    keys = [case.key for case in CASES]
    assert len(set(keys)) == len(keys)
    assert {key for choice in CHOICES for pair in choice.cases for key in pair} == set(keys)
    trainings = {case.training for case in CASES}
    assert len({training.name for training in trainings}) == len(trainings) == 7


def test_trainings_are_shared_with_epistemic_and_few_are_added() -> None:
    trainings, others = {case.training for case in CASES}, {training for row in ROWS for training in row.trainings}
    assert trainings & others == {OURS, RELEASED_KL} and all(isinstance(training, Variant) for training in trainings - others)
    assert preset_of(OURS).name == "epistemic-mean-field-kl1-seed0"  # the same run folder


def test_a_variant_changes_what_it_says_alone() -> None:
    ours = preset_of(OURS)
    assert ours.model["gradient_scale"] == GRADIENT_SCALE
    for case in CASES:
        made = preset_of(case.training)
        changed = case.training.changes()
        assert made.model == ours.model | changed["model"] and made.training == ours.training | changed["training"]
        assert replace(made, name="", text="", model={}, training={}) == replace(ours, name="", text="", model={}, training={})
    by_key = {case.key: preset_of(case.training) for case in CASES}
    assert by_key["scale-1"].model["gradient_scale"] == 1 and by_key["scale-squared"].model["gradient_scale"] == GRADIENT_SCALE**2
    assert by_key["fresh"].training["initialise"] == "fresh" and by_key["batch-128"].training["batch"] == 128


def test_the_codes_recipe_is_that_of_the_shipped_preset_but_for_its_length() -> None:
    released, paper = preset_of(next(case.training for case in CASES if case.key == "released")), read_preset("sparse30-mfvi-paper")
    assert {**released.training, "epochs": None} == {**paper.training, "epochs": None}
    assert (released.model, released.geometry, released.noise) == (paper.model, paper.geometry, paper.noise)


# The columns -------------------------------------------------------------------------------------------------------------


def test_columns_of_a_posterior_whose_draws_are_known() -> None:
    """Draws of truth + offset +- step, alike in all pixels: the spread of a patch is that of a pixel. Alternating, it averages out."""
    A = RayTransform(ParallelBeam.sparse(image_size=64, views=6))
    effort, offset, step = Effort(ellipses=2, draws=2, claim_images=1), 0.02, 0.01
    scans = table_scans(A, 3)
    truth_of = {y.sum().item(): x for x, y in zip(scans.images, scans.sinograms, strict=True)}
    board = (-1.0) ** (torch.arange(64)[:, None] + torch.arange(64))

    class Known:
        number = 2

        def __init__(self, y: torch.Tensor, pattern: torch.Tensor):
            truth = torch.stack([truth_of[each.sum().item()] for each in y])
            self.mean, self.pattern = truth + offset, pattern
            self.epistemic, self.aleatoric = torch.full_like(truth, 2 * step**2), torch.full_like(truth, 0.03**2)

        def draws(self) -> Any:
            return iter([self.mean + step * self.pattern, self.mean - step * self.pattern])

    same = measure_case(lambda y: Known(y, torch.ones(64, 64)), A, effort)  # type: ignore[arg-type,return-value]
    assert [same.psnr, same.worst_psnr, same.shepp_logan_psnr] == pytest.approx([-20 * math.log10(offset)] * 3, abs=1e-3)
    assert [same.error, same.patch_error] == pytest.approx([offset] * 2, rel=1e-4)
    assert [same.epistemic_std, same.patch_std] == pytest.approx([math.sqrt(2) * step] * 2, rel=1e-4)
    assert same.total_std == pytest.approx(math.sqrt(2 * step**2 + 0.03**2), rel=1e-4)
    speckle = measure_case(lambda y: Known(y, board), A, effort)  # type: ignore[arg-type,return-value]
    assert speckle.epistemic_std == same.epistemic_std and speckle.patch_std == pytest.approx(0, abs=1e-6)


def test_noise_per_pixel_averages_out_where_weights_do_not() -> None:
    A = RayTransform(ParallelBeam.sparse(image_size=64, views=6))
    model, effort = small_model("mean_field", A), Effort(ellipses=2, draws=8, claim_images=1)
    weights, pixels = (measure_case(posterior_function([model], draw, 8), A, effort) for draw in ("weights", "pixels"))
    assert weights.patch_std is not None and pixels.patch_std is not None
    assert pixels.patch_std / pixels.epistemic_std < 0.5 * weights.patch_std / weights.epistemic_std


# Choosing on the test set ------------------------------------------------------------------------------------------------


def test_optimism_of_a_table_worked_by_hand() -> None:
    """Two candidates, three sets of one image: the first prefers the one by 2 dB, the others the other by 1 and by 4 dB."""
    found = optimism(torch.tensor([[12.0, 20.0, 30.0], [10.0, 21.0, 34.0]]), 1)
    assert (found.candidates, found.images, found.sets) == (2, 1, 3)
    assert found.gain == pytest.approx((2 + 1 / 2 + 4 / 2) / 3) and found.agreement == pytest.approx(1 / 3)
    without = torch.tensor([0.0, (2 + 4) / 2, (2 + 1) / 2])  # the gain of the two sets that are left
    assert found.error == pytest.approx(math.sqrt(2 / 3 * float((without - 1.5).square().sum())))
    assert found.spread == pytest.approx(float(torch.tensor([10.0, 21.0, 34.0]).std()))  # the second candidate is best on average


@pytest.mark.parametrize("apart", [0.0, 0.5, 1.0])
def test_the_error_of_the_optimism_is_its_spread_over_many_trials(apart: float, generator: torch.Generator) -> None:
    """Five candidates up to `apart` dB apart, noise of 0.3 dB in a set's mean; where they differ, one set's choice moves every gain."""
    trials = 400
    quality = apart * torch.linspace(0, 1, 5)[:, None] + 0.3 * torch.randn(trials, 5, 50, generator=generator)
    hard = torch.randn(trials, 1, 50, generator=generator)  # how hard a set is does not matter
    found = [optimism(each, 1) for each in quality + hard]
    spread = float(torch.tensor([each.gain for each in found]).std())  # itself known to 1 / sqrt(2 trials), 3.5 %
    stated = float(torch.tensor([each.error for each in found]).square().mean().sqrt())
    assert stated / spread == pytest.approx(1.0, abs=0.14)


def test_no_optimism_where_all_sets_choose_alike(generator: torch.Generator) -> None:
    quality = torch.rand(1, 60, generator=generator) + torch.tensor([[0.0], [5.0], [1.0]])
    found = optimism(quality, 10)
    assert found.gain == 0 and found.agreement == 1 and found.sets == 6 and found.spread > 0
    assert found.error == 0
    with pytest.raises(InputError, match="at least 3 test sets are compared, but 60 images make 2 of 30"):
        optimism(quality, 30)


def test_optimism_of_equal_candidates_is_the_expected_maximum(generator: torch.Generator) -> None:
    """Candidates that differ by noise of 1 dB per image alone: the best of five on n images promises 1.163 / sqrt(n) dB too much."""
    quality = torch.randn(5, 40_000, generator=generator) + 3 * torch.randn(1, 40_000, generator=generator)
    for images in (10, 100):
        found = optimism(quality, images)
        assert found.gain * math.sqrt(images) == pytest.approx(1.163, abs=4 * found.error * math.sqrt(images))
        assert found.agreement == pytest.approx(0.2, abs=0.05)
        assert found.spread == pytest.approx(math.sqrt(10 / images), rel=0.15)


def entry(seed: int, trained: int | None, psnr: list[float]) -> dict[str, Any]:
    """What a table keeps of one seed; trained: the seed of the training, of a method that has one."""
    recipe = {} if trained is None else {"trained": {"seed": trained}}
    return {"recipe": recipe, "psnr": psnr, "provenance": {"seed": seed, "hardware": "a machine", "commit": "c0ffee" * 4}}


def test_candidates_are_trainings_and_not_seeds_of_noise() -> None:
    cell = [entry(0, 0, [1.0]), entry(1, 0, [2.0]), entry(2, 2, [3.0]), entry(3, None, [4.0])]
    assert [each["psnr"] for each in own_trainings(cell)] == [[1.0], [3.0]]


def test_trainings_by_several_commits_are_not_called_alike() -> None:
    cell = [entry(seed, seed, [30.0 + seed, 40.0]) for seed in range(2)]
    assert "alike but for their seed, have" in honesty_table._yardstick(seed_spread(cell) or {})
    for by, one in zip("ab", cell, strict=True):
        one["recipe"]["trained"]["commit"] = by
    assert "alike but for their seed and later fixes to the code, have" in honesty_table._yardstick(seed_spread(cell) or {})


def test_families_are_seeds_methods_and_both(generator: torch.Generator) -> None:
    images = 30

    def cell(seeds: int) -> list[dict[str, Any]]:
        return [entry(seed, seed, [*torch.randn(images, generator=generator).tolist(), 40.0 + seed]) for seed in range(seeds)]

    cells = {METHODS[0]: cell(5), METHODS[1]: cell(2), METHODS[2]: [], "sparse30-lpd": cell(3)}
    assert METHODS[0] == SEEDS_OF
    gains = {model: {"psnr": torch.randn(300, generator=generator).tolist()} for model in (*METHODS, "sparse30-best")}
    found = families(cells, gains)
    assert {name: tuple(values.shape) for name, values in found.items()} == {
        "the seed": (5, images),
        "the method": (3, 300),
        "method and seed": (7, images),
    }
    assert found["the seed"][1].tolist() == cells[METHODS[0]][1]["psnr"][:-1]
    scores = selection_scores(cells, gains)
    assert [each["sets"] for each in scores["families"]["the seed"]] == [3]  # of ten; there are no hundred images
    assert [(each["images"], each["sets"]) for each in scores["families"]["the method"]] == [(10, 30), (100, 3)]
    assert scores["seeds"]["trainings"] == 5 and scores["seeds"]["shepp_logan_std"] == pytest.approx(math.sqrt(2.5))
    expected = torch.stack([values.mean() for values in found["the seed"]]).std()
    assert scores["seeds"]["psnr_std"] == pytest.approx(float(expected))
    assert selection_scores({}, {}) == {"families": {}, "seeds": None}  # nothing is kept yet


def test_draws_in_bfloat16_are_of_the_same_model(generator: torch.Generator) -> None:
    """Not as exact, and not far off: the image is not rounded, only what is computed inside the blocks."""
    A = RayTransform(ParallelBeam.sparse(image_size=64, views=6))
    model, effort = small_model("mean_field", A), Effort(ellipses=2, draws=4, claim_images=1)
    exact, rounded = (measure_case(posterior_function([model], "weights", 4, precision=p), A, effort) for p in ("float32", "bfloat16"))
    assert rounded != exact and rounded.psnr == pytest.approx(exact.psnr, abs=0.05)
    assert rounded.epistemic_std == pytest.approx(exact.epistemic_std, rel=0.05)


# The table ---------------------------------------------------------------------------------------------------------------


def result(**scores: float | None) -> dict[str, Any]:
    spreads = {"error": 0.01, "epistemic_std": 0.002, "total_std": 0.01, "patch_error": None, "patch_std": None}
    return {
        "scores": {"psnr": 40.0, "worst_psnr": 30.0, "shepp_logan_psnr": 45.0, "draws": 3, **spreads, **scores},
        "training_images": 6,
        "effort": {"ellipses": 2, "draws": 3},
        "provenance": {"hardware": "a machine", "commit": "c0ffee" * 4},
    }


def test_effects_are_differences_and_factors() -> None:
    pair = [Case("ours", "ours", OURS), Case("other", "the other", RELEASED_KL), Case("lost", "lost", OURS)]
    choices = [Choice("one", "p", "c", "o", (("other", "ours"),)), Choice("two", "p", "c", "o", (("lost", "ours"), ("other", "ours")))]
    other = result(psnr=39.5, shepp_logan_psnr=46.25, epistemic_std=0.01, patch_std=0.001)
    made = {"ours": result(patch_std=0.002), "other": other, "lost": {**result(), "scores": None}}
    text = markdown(made, None, "QUICK", pair, choices)
    assert "**QUICK**" in text and "| one | p | c | o | the other | -0.50 | +1.25 | × 5 | × 0.5 |" in text
    assert "| two | p | c | o | lost | diverged | - | - | - |\n|  |  |  |  | the other | -0.50 | +1.25 |" in text
    assert "| lost | diverged in training |" in text and "| ours | 40.00 | 30.00 | 45.00 | 10 | 2 | 10 | - | 2 |" in text
    del made["other"]
    assert "| one" not in markdown(made, None, "", pair, choices)  # what is not measured yet is not shown


# The command -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two blocks, one epoch, six training images, two test images; three cases and a fourth that diverges; a table of two seeds."""
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "page.md").write_text(PAGE)
    fresh = Variant("mean_field", label="fresh", also=(("training", "initialise", "fresh"),))
    lost = Variant("mean_field", label="lost", also=(("model", "gradient_scale", 1e4), ("training", "learning_rate", 1e30)))
    few = (Case("ours", "ours", OURS), Case("pixels", "pixels", OURS, "pixels"), Case("fresh", "fresh", fresh), Case("lost", "lost", lost))
    choices = tuple(Choice(case.name, "p", "c", "o", ((case.key, "ours"),)) for case in few[1:])
    monkeypatch.setattr(reproduce, "FULL", Effort(ellipses=2, draws=3, claim_images=1))
    for name, value in {"PRESET": "tiny.toml", "BLOCKS": 2, "SCHEDULE": {"epochs": 1, "batch": 4, "learning_rate": 2e-3}}.items():
        monkeypatch.setattr(short_trainings, name, value)
    monkeypatch.setattr(honesty, "CASES", few)
    values = [[float(n + seed * (n % 3)) for n in range(31)] for seed in range(2)]
    write_cell(tmp_path / "results", "sparse30", SEEDS_OF, [entry(seed, seed, values[seed]) for seed in range(2)])
    monkeypatch.setattr(honesty, "markdown", lambda *results: honesty_table.markdown(*results, few, choices))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:block 1 leaves every image as it was")  # so short are these trainings
def test_one_command_trains_measures_keeps_and_fills_the_page(tiny: Path) -> None:
    done = bdgd("honesty", "--runs", "trained", "--page", "page.md")
    assert done.exit_code == 0, done.output
    assert "training 3 models into trained" in " ".join(done.output.split())  # said before
    whole = json.loads((tiny / "results/honesty.json").read_text())
    assert set(whole["cases"]) == {"ours", "pixels", "fresh", "lost"} and whole["provenance"]["hardware"]
    assert whole["provenance"]["seed"] == 0 and "commit" in whole["provenance"]
    assert all(whole["cases"]["ours"]["seconds"][what] >= 0 for what in ("training", "measuring"))
    assert whole["cases"]["ours"]["trained"]["preset"] == "epistemic-mean-field-kl1-seed0" and whole["cases"]["lost"]["trained"] is None
    assert whole["cases"]["lost"]["scores"] is None and whole["cases"]["ours"]["weights"] == whole["cases"]["pixels"]["weights"]
    assert [each["sets"] for each in whole["selection"]["families"]["the seed"]] == [3] and whole["selection"]["seeds"]["trainings"] == 2
    table = (tiny / "results/honesty.md").read_text().strip()
    assert (tiny / "page.md").read_text() == PAGE.replace("*Not measured yet.*", table)
    assert "diverged in training" in table and "Trained on " in table and "The yardstick" in table and "| validation set |" in table
    tables = [part.splitlines() for part in table.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3 and all(len({line.count("|") for line in lines}) == 1 for lines in tables)

    # Again: only what is gone is made again, with the same result; the training that diverged is tried again.
    before = {path: path.stat().st_mtime_ns for path in tiny.rglob("*") if path.suffix in (".json", ".safetensors")}
    (tiny / "results/honesty/pixels.json").unlink()
    assert bdgd("honesty", "--runs", "trained").exit_code == 0
    changed = {path.relative_to(tiny).as_posix() for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed - {"trained/honesty-lost-seed0/environment.json"} == {"results/honesty/pixels.json", "results/honesty.json"}
    again = json.loads((tiny / "results/honesty.json").read_text())
    assert again["cases"]["pixels"]["scores"] == whole["cases"]["pixels"]["scores"] and again["selection"] == whole["selection"]
    fewer = bdgd("honesty", "--runs", "trained", "--draws", 2)  # other draws are another result
    assert fewer.exit_code == 0 and json.loads((tiny / "results/honesty.json").read_text())["cases"]["ours"]["scores"]["draws"] == 2
    assert bdgd("honesty", "--runs", "trained").exit_code == 0

    # Where the models are gone, what was measured stands, and nothing is trained to say it again; a changed recipe is another thing.
    gone = bdgd("honesty", "--runs", "nowhere", "--page", "page.md")
    assert gone.exit_code == 0 and "training" not in gone.output.split("|")[0] and not (tiny / "nowhere").exists()
    rewritten = json.loads((tiny / "results/honesty.json").read_text())
    assert rewritten["provenance"] in [case["provenance"] for case in rewritten["cases"].values()]  # of what measured, not of the writing
    assert (tiny / "results/honesty.md").read_text().strip() == table
    kept = json.loads((tiny / "results/honesty/ours.json").read_text())
    kept["recipe"]["training"]["epochs"] = 50
    (tiny / "results/honesty/ours.json").write_text(json.dumps(kept))
    assert "training 1 models into elsewhere" in " ".join(bdgd("honesty", "--runs", "elsewhere").output.split())

    other = bdgd("honesty", "--runs", "trained", "--images", 5)
    assert other.exit_code == 2 and "another recipe" in " ".join(other.output.split())


def test_the_page_has_a_place_and_is_found() -> None:
    page = (ROOT / "docs/honesty.md").read_text()
    assert "<!-- honesty -->" in page and "<!-- /honesty -->" in page
    assert "docs/honesty.md" in (ROOT / "README.md").read_text() and "honesty.md" in (ROOT / "docs/reproduce.md").read_text()
    assert f"gradient_scale = {cases.GRADIENT_SCALE:g}" in page.replace("`", "")
