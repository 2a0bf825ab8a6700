"""Pictures of how honest error bars are: reliability diagrams and the sparsification plot, one curve per method or kind of pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bdgd.checks import InputError
from bdgd.evaluation.figures import GRAY, new_figure
from bdgd.evaluation.strata import StratumScores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = 3.6  # of one panel
_DECADES = 1e3  # shown of errors and predicted std


def uncertainty_figure(scores: Mapping[str, StratumScores], title: str = "") -> Figure:
    """Reliability diagram, calibration plot and sparsification plot side by side, one curve for each name."""
    if not scores:
        raise InputError("there is nothing to draw: give the scores of at least one kind of pixel, by name")
    figure = new_figure(3 * _INCHES, _INCHES)
    axes = figure.subplots(1, 3)
    for draw, place in zip((_draw_coverage, _draw_calibration, _draw_sparsification), axes, strict=True):
        draw(place, scores)
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _draw_coverage(place: Axes, scores: Mapping[str, StratumScores]) -> None:
    """How often intervals hold the truth against their level: on the diagonal where they say what they do, above it where too wide."""
    place.plot([0, 100], [0, 100], color=GRAY, linewidth=0.8, linestyle=":")
    for name, stratum in scores.items():
        points = sorted((interval.level, interval.coverage) for interval in stratum.intervals)
        levels, covered = ([100 * value for value in values] for values in zip(*points, strict=True))
        place.plot(levels, covered, marker="o", markersize=3.5, linewidth=1.2, label=name, clip_on=False)
    place.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    _label(place, "reliability", "level of the interval / %", "truth inside / %")


def _draw_calibration(place: Axes, scores: Mapping[str, StratumScores]) -> None:
    """Root mean square error against predicted std, of pixels grouped by predicted std."""
    for name, stratum in scores.items():
        groups = stratum.reliability
        place.loglog(groups.predicted, groups.actual, marker="o", markersize=3.5, linewidth=1.2, label=name)
    # One range for both axes, so that the diagonal is one; groups that are almost exact are left below it.
    shown = [value for s in scores.values() for value in (*s.reliability.predicted, *s.reliability.actual) if value > 0]
    high = 1.4 * max(shown, default=1.0)
    low = max(0.7 * min(shown, default=1e-3), high / _DECADES)
    place.plot([low, high], [low, high], color=GRAY, linewidth=0.8, linestyle=":")
    place.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    _label(place, "calibration", "predicted std", "root mean square error")


def _draw_sparsification(place: Axes, scores: Mapping[str, StratumScores]) -> None:
    """RMSE of what remains when the most uncertain pixels are removed, dashed when the most wrong ones are, over the RMSE of all."""
    for name, stratum in scores.items():
        curve, whole = stratum.sparsification, stratum.sparsification.by_std[0] or 1.0
        removed = [100 * part for part in curve.removed]
        (line,) = place.plot(removed, [value / whole for value in curve.by_std], linewidth=1.2, label=name)
        place.plot(removed, [value / whole for value in curve.by_error], linewidth=1.0, linestyle="--", color=line.get_color())
    place.set(xlim=(0, 90), ylim=(0, None), box_aspect=1)
    _label(place, "sparsification (dashed: perfect order)", "most uncertain pixels removed / %", "RMSE of the rest / RMSE of all")


def _label(place: Axes, title: str, across: str, up: str) -> None:
    place.set_title(title, fontsize=10)
    place.set_xlabel(across, fontsize=9)
    place.set_ylabel(up, fontsize=9)
    place.tick_params(labelsize=8)
    place.spines[["top", "right"]].set_visible(False)
