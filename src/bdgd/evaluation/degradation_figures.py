"""How a model degrades, shown: a grid of curves, and a table in Markdown."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import TYPE_CHECKING

from bdgd.evaluation.conditions import KINDS
from bdgd.evaluation.degradation import Degradation, Point
from bdgd.evaluation.figures import GRAY, new_figure
from bdgd.evaluation.pages import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("condition", "value", "images", "PSNR / dB", "coverage / %", "width", "error", "AUSE", "AUROC", "red / %", "verdict")
#: What the columns of the table mean, for below it.
LEGEND = (
    "Coverage and mean width of the intervals are those of the object's pixels; width and error (RMSE of the same pixels) are given as"
    " multiples of those of ordinary scans. AUSE and AUROC (of the worst 5 % of pixels) are over all pixels. Verdict: holds, the intervals"
    " cover what they say within two points; rings, they do not, but the light is red on at least half of the images; silent, neither."
)

_INCHES = 2.3, 1.75  # of one panel
_NARROW = 0.4  # the width of the panel of a single point
_LETTERS = 13  # of the title, to the inch
_UNITS = {"noise": "{:g} %", "views": "{:g} views", "missing": "{:g} views", "axis": "{:g} detectors"}


def degradation_rows(found: Degradation) -> list[list[str]]:
    """The cells of the table, one row per point: first what is ordinary, then curve by curve."""
    points = [found.ordinary] + [point for kind in found.kinds() for _, point in found.curve(kind) if point is not found.ordinary]
    return [_row(found, point) for point in points]


def degradation_markdown(found: Degradation, title: str = "") -> str:
    """The table with its title and what its columns mean."""
    lines = [f"## {title}", ""] if title else []
    lines += [markdown_table(COLUMNS, degradation_rows(found), align="ll" + "r" * (len(COLUMNS) - 3) + "l"), ""]
    return "\n".join([*lines, f"Intervals of {100 * found.level:g} %, {found.draws} draws. {LEGEND}", ""])


def _row(found: Degradation, point: Point) -> list[str]:
    kind, usual = point.condition.kind, found.ordinary
    value = _UNITS[kind].format(point.condition.value) if kind in _UNITS else ""
    return [
        kind,
        value,
        str(point.images),
        f"{point.psnr:.2f}",
        f"{100 * point.coverage:.1f}",
        f"{point.width / usual.width:.2f}",
        f"{point.rmse / usual.rmse:.2f}",
        f"{point.ause:.3f}",
        f"{point.error_auroc:.3f}",
        "-" if point.red is None else f"{100 * point.red:.0f}",
        found.verdict(point),
    ]


def degradation_figure(found: Degradation, title: str = "") -> Figure:
    """A column of panels for each kind of condition; rows: PSNR, coverage with its target, width and error over the ordinary, red lights.

    A circle marks the ordinary scans; a cross marks points at which the intervals fail and the alarm is silent.
    """
    from matplotlib.ticker import MaxNLocator

    kinds, rows = found.kinds() or ["noise"], _rows(found)
    widths = [1.0 if len(found.curve(kind)) > 1 else _NARROW for kind in kinds]
    figure = new_figure(_INCHES[0] * sum(widths) + 0.6, _INCHES[1] * len(rows) + 0.5)
    told = fill("circles: ordinary scans; crosses: the intervals fail and no alarm says so", int(_LETTERS * figure.get_figwidth()))
    figure.suptitle(f"{title}\n{told}" if title else told, fontsize=9)
    axes = figure.subplots(len(rows), len(kinds), sharey="row", sharex="col", squeeze=False, width_ratios=widths)
    for line, (label, draw) in zip(axes, rows, strict=True):
        for place, kind in zip(line, kinds, strict=True):
            draw(place, found, kind)
            place.tick_params(labelsize=8)
            place.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(label, fontsize=9)
    for place, kind in zip(axes[-1], kinds, strict=True):
        place.set_xlabel(KINDS[kind], fontsize=9)
        place.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10), integer=kind in ("views", "missing")))
        if len(found.curve(kind)) == 1:
            place.set(xticks=())
    axes[2, 0].legend(fontsize=7, frameon=False)
    return figure


Draw = Callable[["Axes", Degradation, str], None]


def _rows(found: Degradation) -> list[tuple[str, Draw]]:
    rows: list[tuple[str, Draw]] = [("PSNR / dB", _draw_psnr), ("truth inside / %", _draw_coverage), ("times the ordinary", _draw_width)]
    return rows if found.false_alarms is None else [*rows, ("red light / %", _draw_alarm)]


def _draw_psnr(place: Axes, found: Degradation, kind: str) -> None:
    _curve(place, found, kind, lambda point: point.psnr)


def _draw_coverage(place: Axes, found: Degradation, kind: str) -> None:
    place.axhline(100 * found.level, color=GRAY, linewidth=0.8, linestyle=":")
    _curve(place, found, kind, lambda point: 100 * point.coverage)
    silent = [(value, 100 * point.coverage) for value, point in found.curve(kind) if found.verdict(point) == "silent"]
    if silent:
        place.plot(*zip(*silent, strict=True), "x", color="C3", markersize=8)
    place.set(ylim=(0, 102))


def _draw_width(place: Axes, found: Degradation, kind: str) -> None:
    usual = found.ordinary
    place.set_yscale("log", base=2)
    place.yaxis.set_major_formatter("{x:g}")
    _curve(place, found, kind, lambda point: point.width / usual.width, label="interval width")
    _curve(place, found, kind, lambda point: point.rmse / usual.rmse, label="error", colour="C1", style="--")


def _draw_alarm(place: Axes, found: Degradation, kind: str) -> None:
    assert found.false_alarms is not None
    place.axhline(100 * found.false_alarms, color=GRAY, linewidth=0.8, linestyle=":")
    _curve(place, found, kind, lambda point: 100 * (point.red or 0.0))
    place.set(ylim=(-4, 104))


def _curve(
    place: Axes, found: Degradation, kind: str, of: Callable[[Point], float], *, label: str = "", colour: str = "C0", style: str = "-"
) -> None:
    """One quantity along a curve, with a circle at the ordinary scans."""
    curve = found.curve(kind)
    values, heights = [value for value, _ in curve], [of(point) for _, point in curve]
    named = {"label": label} if label else {}
    place.plot(values, heights, marker="o", markersize=3.5, linewidth=1.2, linestyle=style, color=colour, clip_on=False, **named)  # type: ignore[arg-type]
    usual = [(value, of(point)) for value, point in curve if point is found.ordinary]
    if usual:
        place.plot(*zip(*usual, strict=True), "o", markersize=7, markerfacecolor="none", color=colour, clip_on=False)
