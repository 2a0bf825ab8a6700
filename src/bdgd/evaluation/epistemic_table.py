"""The table of epistemic uncertainties as Markdown, and the choice that follows from it by a rule, not by taste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bdgd.evaluation.epistemic import BLOCKS, PATCH, ROWS, SCHEDULE, Row
from bdgd.evaluation.pages import listed, markdown_table, origins

#: The default is chosen among posteriors of one trained model, which fit into one file, that have a variance at all, ...
MOST_PSNR_LOST = 0.3  # ... lose at most so many dB to the best of them ...
MOST_NLL_LOST = 0.05  # ... and are within so many nats per pixel of the best NLL of those: of them, the best at finding the text.

#: by the key of a row: what its file holds
Results = Mapping[str, Mapping[str, Any]]

_HEAD = (
    "posterior",
    "draws",
    "PSNR",
    "NLL",
    f"NLL {PATCH}×{PATCH}",
    "cover 90 %",
    "AUSE",
    "epistemic part",
    "text AUROC",
    "views lost: variance",
    "error²",
    "training",
    "sampling",
)


def chosen(results: Results, rows: Sequence[Row] = ROWS) -> Row | None:
    """The row for the shipped default, by the rule above; None where no row qualifies."""
    scores = {row.key: results[row.key]["scores"] for row in rows if row.key in results and len(row.trainings) == 1}
    scores = {key: found for key, found in scores.items() if found["epistemic_part"] > 0}
    if not scores:
        return None
    best = max(found["psnr"] for found in scores.values())
    scores = {key: found for key, found in scores.items() if found["psnr"] >= best - MOST_PSNR_LOST}
    least = min(found["nll"] for found in scores.values())
    close = [key for key, found in scores.items() if found["nll"] <= least + MOST_NLL_LOST]
    winner = max(close, key=lambda key: float(scores[key]["text_auroc"]))
    return next(row for row in rows if row.key == winner)


def reason(results: Results, rows: Sequence[Row] = ROWS) -> str:
    """The choice in words, with its numbers."""
    row = chosen(results, rows)
    if row is None:
        return "No posterior of one model with a variance has been measured yet, so none is chosen."
    scores = results[row.key]["scores"]
    return (
        f"**Chosen: {row.name}, draws of {row.draw}.** Of the posteriors that fit into one model file, have a variance, lose at most "
        f"{MOST_PSNR_LOST:g} dB to the best of them and are within {MOST_NLL_LOST:g} nats per pixel of the best NLL, its variance is "
        f"the best at finding a text that no training image has: AUROC {scores['text_auroc']:.3f}, at {scores['psnr']:.2f} dB and "
        f"{scores['nll']:.3f} nats per pixel."
    )


def markdown(results: Results, note: str = "", rows: Sequence[Row] = ROWS) -> str:
    """The table of the rows, those that have not been measured last, what its columns are, the choice, and where it was measured."""
    measured = [_cells(row, results[row.key]["scores"]) for row in rows if row.key in results]
    missing = [[row.name, "not measured yet", *[""] * (len(_HEAD) - 2)] for row in rows if row.key not in results]
    table = markdown_table(_HEAD, [*measured, *missing])
    parts = [f"**{note}**"] if note else []
    return "\n\n".join([*parts, table, reason(results, rows), _columns(results), origins(results.values())])


def _cells(row: Row, scores: Mapping[str, Any]) -> list[str]:
    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    growth = scores["variance_growth"]
    return [
        row.name,
        f"{scores['draws']}",
        number(scores["psnr"], 2),
        number(scores["nll"], 3),
        number(scores["patch_nll"], 3),
        f"{100 * scores['coverage']['0.9']:.1f} %",
        number(scores["ause"], 3),
        f"{100 * scores['epistemic_part']:.2g} %",
        number(scores["text_auroc"], 3),
        "-" if growth is None else f"× {growth:.3g}",
        f"× {scores['error_growth']:.3g}",
        f"{scores['training_seconds']:.0f} s",
        f"{1000 * scores['sampling_seconds']:.3g} ms",
    ]


def _columns(results: Results) -> str:
    images = listed(int(result["training_images"]) for result in results.values())
    tests = listed(int(result["effort"]["ellipses"]) for result in results.values())
    return (
        f"All rows: sparse view, {BLOCKS} blocks, {SCHEDULE['epochs']} epochs each in batches of {SCHEDULE['batch']} at a learning rate of "
        f"{SCHEDULE['learning_rate']:g}, on the same {images} images; scored on the same {tests} test ellipses. "
        "No scale head and no calibration, so the aleatoric part is one number for all pixels. NLL and coverage are over pixels of the "
        f"object; the NLL of {PATCH} × {PATCH} patches, in nats per pixel too, sees whether draws know that errors of neighbours go "
        "together. AUSE and the epistemic part of the variance are over all pixels. "
        "Text AUROC: of the epistemic variance as a detector of a text's pixels. "
        "Views lost: every fifth view is replaced by the mean of its neighbours, without telling the model; by what factors the epistemic "
        "variance and the squared error grow on the object. An honest variance grows like the error. "
        "Training: all models of the row. Sampling: one image, all its draws, in a batch."
    )
