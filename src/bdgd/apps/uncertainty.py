"""What `bdgd evaluate --uncertainty` shows: the error bars of each method, scored on ellipses and on Shepp-Logan apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bdgd.apps.console import Output
from bdgd.data import Scans
from bdgd.evaluation import Method, StratumScores, UncertaintyScores, save_figure, score_uncertainty, uncertainty_figure

#: the scores of one method: by "ellipses" and "shepp_logan"
Honesty = Mapping[str, UncertaintyScores]

_SETS = {"ellipses": "ellipses", "shepp_logan": "SL"}
_PATCH = 8  # the side of the patches whose likelihood the table shows; the file has all


def uncertainty_of(out: Output, name: str, method: Method, scans: Scans) -> dict[str, UncertaintyScores]:
    """The scores of a method that has error bars, on the ellipse images and on Shepp-Logan, which is the last."""
    assert method.posterior is not None
    with out.progress(f"{name}, error bars", len(scans)) as step:
        parts = {"ellipses": scans[:-1], "shepp_logan": scans[-1:]}
        return {
            kind: score_uncertainty(method.posterior, part, report=lambda done, nll: step(done, f"NLL {nll:.2f}"))
            for kind, part in parts.items()
        }


def uncertainty_table(out: Output, scores: Mapping[str, Honesty]) -> None:
    """Two tables, each with one row for each method, set and kind of pixel: the intervals, and the rest."""
    rows = [
        ((name, _SETS[kind], pixels), stratum)
        for name, sets in scores.items()
        for kind, found in sets.items()
        for pixels, stratum in found.strata.items()
    ]
    levels = [f"{100 * interval.level:g} %" for interval in rows[0][1].intervals]
    for title, columns, figures in (
        ("Error bars: part of the pixels that the intervals cover / %", (*levels, "width 90 %", "of constant"), _interval_figures),
        ("Error bars: likelihood in nats per pixel, size and order", _COLUMNS, _figures),
    ):
        table = [[*names, *figures(stratum)] for names, stratum in rows]
        out.table(("method", "images", "pixels", *columns), table, title, right=columns)


_COLUMNS = ("NLL", "gain", f"NLL {_PATCH}x{_PATCH}", "CRPS", "z²", "ENCE", "AUSE", "AUROC")


def _figures(stratum: StratumScores) -> list[str]:
    patch = stratum.patch_nll.get(_PATCH)
    return [
        f"{stratum.nll:.2f}",
        f"{stratum.nll_constant - stratum.nll:.2f}",
        "-" if patch is None else f"{patch:.2f}",
        f"{stratum.crps:.5f}",
        f"{stratum.squared_z:.2f}",
        f"{stratum.ence:.2f}",
        f"{stratum.ause:.3f}",
        f"{stratum.error_auroc:.3f}",
    ]


def _interval_figures(stratum: StratumScores) -> list[str]:
    """Coverage at every level, the width nearest to 90 %, and what part it is of the constant width that covers as much."""
    ninety = min(range(len(stratum.intervals)), key=lambda i: abs(stratum.intervals[i].level - 0.9))
    width = stratum.intervals[ninety].width
    covered = [f"{100 * interval.coverage:.1f}" for interval in stratum.intervals]
    return [*covered, f"{width:.4f}", f"{width / stratum.constant_widths[ninety]:.2f}"]


def write_figure(out: Output, path: Path, scores: Mapping[str, Honesty]) -> None:
    """Reliability and sparsification on the ellipse images: by kind of pixel for one method, of the object's pixels for several."""
    if len(scores) == 1:
        ((name, sets),) = scores.items()
        figure = uncertainty_figure(sets["ellipses"].strata, f"{name}, {sets['ellipses'].images} ellipse images")
    else:
        figure = uncertainty_figure({name: sets["ellipses"].strata["object"] for name, sets in scores.items()}, "pixels of the object")
    save_figure(figure, path)
    out.say(f"wrote {path}")
