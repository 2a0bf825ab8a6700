"""The measured part of the honesty page as Markdown: every case, what each choice does, and what choosing on test images buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bdgd.evaluation.epistemic import BLOCKS, PATCH, SCHEDULE
from bdgd.evaluation.honesty import CASES, CHOICES, VALIDATION, Case, Choice
from bdgd.evaluation.pages import listed, machines, markdown_table, origins

#: by the key of a case: what its file holds
Results = Mapping[str, Mapping[str, Any]]

_HEAD = ("case", "PSNR", "worst", "Shepp-Logan", "error", "epistemic std", "total std", f"{PATCH} × {PATCH}: error", "epistemic std")
_EFFECTS = ("choice", "paper", "authors' code", "here", "instead", "PSNR", "Shepp-Logan", "epistemic std", f"of {PATCH} × {PATCH} means")
_CHOSEN = ("chosen on the test set", "candidates", "test images", "gain in dB", "two sets choose alike", "PSNR over test sets")

_GAIN = (
    "Gain: the PSNR of the candidate that is best on a test set, minus that of the one that is best on another set of as many images, both "
    "on the first; mean over disjoint sets ± its standard error. Last column: the standard deviation over test sets of the mean PSNR of "
    "one and the same candidate. Seeds are those of the table of sparse view, on its images; the methods are DGD, BDGD-MFVI and "
    "BDGD-MCDO, by themselves as shipped and on a thousand test images."
)


def markdown(
    results: Results,
    selection: Mapping[str, Any] | None = None,
    note: str = "",
    cases: Sequence[Case] = CASES,
    choices: Sequence[Choice] = CHOICES,
) -> str:
    """The tables of what has been measured so far, what their columns are, and where it was measured."""
    made = list(results.values())
    effects = [cells for choice in choices if _measured(choice, results) for cells in _effect_cells(choice, results, cases)]
    parts = [
        *([f"**{note}**"] if note else []),
        "**What each choice does**, against the same with our choice: the change of PSNR in dB, and the factor of the spread of the draws.",
        markdown_table(_EFFECTS, [*effects, *(_validation_cells(selection) if selection else [])], align="lllllrrrr"),
        *([_yardstick(selection["seeds"])] if selection and selection["seeds"] else []),
        "**The numbers behind it.** Spreads and errors in thousandths of the image's largest value:",
        markdown_table(_HEAD, [_case_cells(case, results[case.key]["scores"]) for case in cases if case.key in results]),
        " ".join([_columns(made), *_trained(made)]),
    ]
    if selection:
        parts += ["**What choosing on the test set buys:**", markdown_table(_CHOSEN, _family_cells(selection["families"])), _GAIN]
        made += selection["origins"]
    return "\n\n".join([*parts, origins(made)])


def _measured(choice: Choice, results: Results) -> bool:
    return all(key in results for pair in choice.cases for key in pair)


def _effect_cells(choice: Choice, results: Results, cases: Sequence[Case]) -> list[list[str]]:
    """One row for every case of a choice; what the choice is stands in the first."""
    names, rows = {case.key: case.name for case in cases}, list[list[str]]()
    for key, base in choice.cases:
        other, ours = results[key]["scores"], results[base]["scores"]
        cells = ["diverged", "-", "-", "-"]
        if other and ours:
            change = [f"{round(other[name] - ours[name], 2) + 0.0:+.2f}" for name in ("psnr", "shepp_logan_psnr")]  # no -0.00
            cells = [*change, *(_factor(other, ours, name) for name in ("epistemic_std", "patch_std"))]
        rows.append([*_words(choice, first=not rows), names[key], *cells])
    return rows


def _validation_cells(selection: Mapping[str, Any]) -> list[list[str]]:
    """The row of `VALIDATION`: what choosing among most candidates on the smallest test sets adds to their PSNR."""
    name, sizes = max(selection["families"].items(), key=lambda family: int(family[1][0]["candidates"]))
    instead = f"{name} chosen on {sizes[0]['images']} test images"
    return [[*_words(VALIDATION, first=True), instead, f"{sizes[0]['gain']:+.2f}", "-", "-", "-"]]


def _words(choice: Choice, *, first: bool) -> list[str]:
    return [choice.name, choice.paper, choice.code, choice.ours] if first else [""] * 4


def _factor(other: Mapping[str, Any], ours: Mapping[str, Any], name: str) -> str:
    return f"× {other[name] / ours[name]:.2g}" if other[name] is not None and ours[name] else "-"


def _case_cells(case: Case, scores: Mapping[str, Any] | None) -> list[str]:
    if not scores:
        return [case.name, "diverged in training", *["-"] * (len(_HEAD) - 2)]
    quality = [f"{scores[name]:.2f}" for name in ("psnr", "worst_psnr", "shepp_logan_psnr")]
    spreads = ("error", "epistemic_std", "total_std", "patch_error", "patch_std")
    return [case.name, *quality, *("-" if scores[name] is None else f"{1000 * scores[name]:.3g}" for name in spreads)]


def _family_cells(families: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    return [
        [
            name,
            f"{found['candidates']}",
            f"{found['images']}",
            f"{found['gain']:.3f} ± {found['error']:.3f}",
            f"{100 * found['agreement']:.0f} %",
            f"± {found['spread']:.2f}",
        ]
        for name, sizes in families.items()
        for found in sizes
    ]


def _columns(made: Sequence[Mapping[str, Any]]) -> str:
    images = listed(int(result["training_images"]) for result in made)
    tests, draws = (listed(int(result["effort"][name]) for result in made) for name in ("ellipses", "draws"))
    return (
        f"One training behind every row: sparse view, {BLOCKS} blocks of {SCHEDULE['epochs']} epochs each, the same {images} images; "
        f"batches of {SCHEDULE['batch']} at a learning rate of {SCHEDULE['learning_rate']:g} unless the row says otherwise. Scored on "
        f"{tests} test ellipses and Shepp-Logan, with {draws} draws in float32 unless the row says otherwise. Errors and spreads are root "
        f"mean squares over the object's pixels, or over the means of patches of {PATCH} × {PATCH} pixels that lie in the object: a spread "
        "that tells the error would be as large as the error beside it. Total: with σ_K² of the last block."
    )


def _trained(made: Sequence[Mapping[str, Any]]) -> list[str]:
    """By which code the models were trained, which need not be that which measured them."""
    found = machines(by for result in made if (by := result.get("trained")))
    return [f"Trained on {found}."] if found else []


def _yardstick(seeds: Mapping[str, Any]) -> str:
    apart = [2**0.5 * seeds[name] for name in ("psnr_std", "shepp_logan_std")]
    but_for = "seed and later fixes to the code" if seeds["commits"] > 1 else "seed"
    return (
        f"**The yardstick.** The {seeds['trainings']} trainings of DGD in the table of sparse view, of full length and alike but for their "
        f"{but_for}, have PSNRs with a standard deviation of {seeds['psnr_std']:.2f} dB on {seeds['images']} ellipse images and "
        f"{seeds['shepp_logan_std']:.2f} dB on Shepp-Logan, so two trainings differ by about {apart[0]:.2f} and {apart[1]:.2f} dB (√2 "
        "times that) by luck alone. The rows about draws compare the same model and have no such luck in "
        "them."
    )
