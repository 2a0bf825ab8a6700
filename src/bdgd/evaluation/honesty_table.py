"""The measured part of the honesty page as Markdown: every case, what each choice does, and what choosing on test images buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bdgd.evaluation.epistemic import BLOCKS, PATCH, SCHEDULE
from bdgd.evaluation.honesty import CASES, CHOICES, Case, Choice
from bdgd.evaluation.tables import short_commit

#: by the key of a case: what its file holds
Results = Mapping[str, Mapping[str, Any]]

_HEAD = ("case", "PSNR", "worst", "Shepp-Logan", "error", "epistemic std", "total std", f"{PATCH} × {PATCH}: error", "epistemic std")
_EFFECTS = ("choice", "paper", "authors' code", "here", "PSNR, ellipses / Shepp-Logan", "epistemic std, pixel / patch")
_CHOSEN = ("chosen on the test set", "candidates", "test images", "gain in dB", "two sets choose alike", "PSNR over test sets")


def markdown(
    results: Results,
    selection: Mapping[str, Any] | None = None,
    note: str = "",
    cases: Sequence[Case] = CASES,
    choices: Sequence[Choice] = CHOICES,
) -> str:
    """The tables of what has been measured so far, what their columns are, and where it was measured."""
    made = [*results.values(), *([selection] if selection else [])]
    parts = [f"**{note}**"] if note else []
    parts += [
        "**What each choice does**, against the same training with our choice:",
        _table(_EFFECTS, [_effect_cells(choice, results, cases) for choice in choices if _measured(choice, results)], texts=4),
        "**The numbers behind it.** Spreads and errors in thousandths of the image's largest value:",
        _table(_HEAD, [_case_cells(case, results[case.key]["scores"]) for case in cases if case.key in results]),
        _columns(made),
    ]
    if selection:
        parts += ["**What choosing on the test set buys:**", _table(_CHOSEN, _family_cells(selection["scores"]["families"]))]
        parts += [_selection_in_words(selection)]
    return "\n\n".join([*parts, f"*Measured on {_origins(made)}.*"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table whose first columns are text and whose others are numbers."""
    lines = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, lines, *rows))


def _measured(choice: Choice, results: Results) -> bool:
    return all(key in results for pair in choice.cases for key in pair)


def _effect_cells(choice: Choice, results: Results, cases: Sequence[Case]) -> list[str]:
    names = {case.key: case.name for case in cases}
    psnr, spread = list[str](), list[str]()
    for key, base in choice.cases:
        label = f"{names[key]}: " if len(choice.cases) > 1 else ""
        other, ours = results[key]["scores"], results[base]["scores"]
        if not other or not ours:
            psnr, spread = [*psnr, f"{label}diverged"], [*spread, f"{label}-"]
            continue
        change = [other[name] - ours[name] for name in ("psnr", "shepp_logan_psnr")]
        psnr.append(f"{label}{change[0]:+.2f} / {change[1]:+.2f}")
        spread.append(f"{label}{_factor(other, ours, 'epistemic_std')} / {_factor(other, ours, 'patch_std')}")
    return [choice.name, choice.paper, choice.code, choice.ours, "<br>".join(psnr), "<br>".join(spread)]


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
    images = _listed({int(result["training_images"]) for result in made})
    tests = _listed({int(result["effort"]["ellipses"]) for result in made})
    return (
        f"Every row is one training: sparse view, {BLOCKS} blocks of {SCHEDULE['epochs']} epochs each, the same {images} images; batches "
        f"of {SCHEDULE['batch']} at a learning rate of {SCHEDULE['learning_rate']:g} unless the row says otherwise. Scored on {tests} test "
        "ellipses and Shepp-Logan. Errors and spreads are root mean squares over the object's pixels, or over the means of patches of "
        f"{PATCH} × {PATCH} pixels that lie in the object: a spread that tells the error would be as large as the error beside it. "
        "Total: with σ_K² of the last block."
    )


def _selection_in_words(selection: Mapping[str, Any]) -> str:
    row, seeds = selection["row"], selection["scores"]["seeds"]
    told = (
        "Gain: the PSNR of the candidate that is best on a test set, minus that of the one that is best on another set of as many images, "
        f"both on the first; mean over disjoint sets out of {row['pool']} images ± its standard error. Last column: the standard deviation "
        "over test sets of the mean PSNR of one and the same candidate."
    )
    if seeds is None:
        return told
    return told + (
        f" **A yardstick for all of this page:** {seeds['trainings']} trainings of DGD that differ in nothing but their seed have PSNRs "
        f"with a standard deviation of {seeds['psnr_std']:.2f} dB on the {row['pool']} ellipse images and {seeds['shepp_logan_std']:.2f} "
        "dB on Shepp-Logan. A smaller effect of a choice is not told from luck."
    )


def _listed(values: set[int]) -> str:
    return " or ".join(map(str, sorted(values))) or "no"


def _origins(made: Sequence[Mapping[str, Any]]) -> str:
    found = {(str(each["provenance"]["hardware"]), short_commit(str(each["provenance"]["commit"]))) for each in made}
    return "; ".join(f"{hardware}, commit {commit}" for hardware, commit in sorted(found)) or "nothing yet"
