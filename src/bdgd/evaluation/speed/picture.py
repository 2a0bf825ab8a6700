"""The benchmark as one figure: how many times faster than each peer, and how times and memory grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bdgd.evaluation.figures import GRAY, new_figure
from bdgd.evaluation.speed.bars import Parts, ratio
from bdgd.evaluation.speed.peers import PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = 4.2  # of one panel


def speed_figure(parts: Parts, title: str = "") -> Figure | None:
    """The projector against its peers, time against size, memory of training against the number of blocks: what was measured of it.

    None where nothing of it was.
    """
    ratios = parts.get("projector", {}).get("rows", [])
    growth = parts.get("growth", {}).get("rows", [])
    times, memory = ([row for row in growth if row["measured"] == unit] for unit in ("seconds", "bytes"))
    panels: list[Callable[[Axes], None]] = []
    if ratios:
        panels.append(partial(_draw_ratios, rows=ratios))
    if times:
        panels.append(partial(_draw_growth, rows=times, what="time", size="size, relative to the smallest"))
    if memory:
        panels.append(partial(_draw_growth, rows=memory, what="memory of training", size="blocks, relative to the fewest"))
    if not panels:
        return None
    figure = new_figure(len(panels) * _INCHES, _INCHES)
    for draw, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        draw(axes)
    figure.suptitle(title, fontsize=11)
    return figure


def _draw_ratios(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """A bar for each case and peer: forward and adjoint of the default strategy, in its largest batch that the peer has too."""
    labels, values, colours = [], [], []
    ours = [row for row in rows if row["default"]]
    for size, views in sorted({(row["size"], row["views"]) for row in ours}):
        for number, peer in enumerate(PEERS):
            for row in reversed([row for row in ours if (row["size"], row["views"]) == (size, views)]):
                found = [times for way in ("forward", "adjoint") if (times := ratio(rows, row, peer, way)) is not None]
                if len(found) == 2:
                    labels.append(f"{size}², {views} views, batch {row['images']}\n{peer}")
                    values.append(found)
                    colours.append(f"C{number}")
                    break
    for place, (value, colour) in enumerate(zip(values, colours, strict=True)):
        axes.barh(place - 0.2, value[0] - 1, 0.38, left=1, color=colour)  # to the left where the peer is faster
        axes.barh(place + 0.2, value[1] - 1, 0.38, left=1, color=colour, alpha=0.5)
    axes.axvline(1, color=GRAY, lw=1)
    axes.set(yticks=range(len(labels)), xlabel="times faster (solid: forward, pale: adjoint)", title="Projector against its peers")
    axes.set_yticklabels(labels, fontsize=7)
    if values:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.invert_yaxis()
    _tidy(axes)


def _draw_growth(axes: Axes, rows: list[dict[str, Any]], what: str, size: str) -> None:
    """Each curve relative to its first point, so that its steepness can be seen beside that of the others; gray: linear."""
    most = 1.0
    for row in rows:
        (first, start), points = row["points"][0], row["points"]
        x, y = [value / first for value, _ in points], [value / start for _, value in points]
        most = max(most, *x)
        name = row["what"] if row["measured"] == "bytes" else f"{row['what']}, {row['against']}"
        axes.plot(x, y, "o-", ms=4, lw=1.5, label=f"{name}: {row['slope']:.2f}")
    axes.plot((1, most), (1, most), color=GRAY, lw=1, ls="--", label="linear: 1")
    axes.set(xscale="log", yscale="log", xlabel=size, ylabel=f"{what}, relative", title=f"Growth of {what}, with its slope")
    ticks = [tick for tick in (1, 2, 4, 8, 16) if tick <= 1.1 * most]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [str(tick) for tick in ticks], minor=False)
        axis.set_ticks([], minor=True)
    axes.legend(fontsize=7, frameon=False)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.title.set_fontsize(10)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
