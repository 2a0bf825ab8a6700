"""Pictures of images: x to the right, y upward, and a colour scale that says what it shows.

Made without pyplot, so that no window opens and no setting of the calling program is touched.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from bdgd.checks import InputError, require_finite
from bdgd.storage import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = 2.6  # of one panel
GRAY = "0.55"  # of lines that something is compared with
_DPI = 160
_SMALL_DPI = (140, 120, 100, 80, 64)  # tried in turn; a panel of 128 pixels has 1.3 dots per pixel at the last


@dataclass(frozen=True)
class Scale:
    """What the colours of a panel mean: panels of one scale share one colour bar."""

    label: str
    low: float = 0.0
    high: float = 1.0
    colours: str = "gray"


VALUE = Scale("value")


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture: an image (H, W) with the first index to the right, its title and its scale."""

    image: Tensor
    title: str = ""
    scale: Scale = VALUE

    def __post_init__(self) -> None:
        if not isinstance(self.image, Tensor) or self.image.ndim != 2:
            got = tuple(self.image.shape) if isinstance(self.image, Tensor) else type(self.image).__name__
            raise InputError(f"a panel shows one image of shape (H, W), got {got}; choose one with x[0, 0]")
        require_finite(self.image, "the image of a panel")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, with a canvas of its own: without pyplot, which opens windows and has settings of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(rows: Sequence[Sequence[Panel | None]], row_names: Sequence[str] = (), title: str = "") -> Figure:
    """The rows of panels as a figure, each row with its name at the left, and one colour bar below for every scale.

    None leaves a place empty. The bar of a scale stands below its columns; where scales share a column, all bars share the last line.
    """
    columns = _columns(rows, row_names)
    height, width = next(panel.image.shape for row in rows for panel in row if panel is not None)
    tall = (_INCHES * width / height + 0.25) * len(rows)
    figure = new_figure(_INCHES * columns + 0.3, tall + 0.6 + 0.22 * len(title.splitlines()))
    figure.suptitle(title, fontsize=12)
    scales = _scales(rows)
    shared = sum(map(len, scales.values())) > len(set().union(*scales.values()))
    above, below = figure.subfigures(2, 1, height_ratios=(tall, 0.6), squeeze=False)[:, 0] if shared else (figure, None)
    axes = above.subplots(len(rows), columns, squeeze=False)
    drawn: dict[Scale, list[tuple[Any, Any]]] = {}
    for row, line in zip(rows, axes, strict=True):
        for panel, place in zip(row, line, strict=True):
            place.set(xticks=(), yticks=(), frame_on=False)
            if panel is not None:
                drawn.setdefault(panel.scale, []).append((_show(panel, place), place))
    for name, line in zip(row_names, axes, strict=bool(row_names)):
        line[0].set_ylabel(name, fontsize=11)
    places = [None] * len(scales) if below is None else below.subplots(1, len(scales), squeeze=False)[0]
    for (scale, shown), place in zip(drawn.items(), places, strict=True):
        _colour_bar(figure, scale, shown, place)
    return figure


def require_ending(path: str | Path) -> str:
    """The format of a figure by its file's ending; raise unless figures can be written so, which is better known before the work."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known, ending = FigureCanvasAgg.get_supported_filetypes(), Path(path).suffix[1:].lower()
    if ending not in known:
        raise InputError(f"cannot write a figure to {path}: the name must end in one of {', '.join('.' + name for name in known)}")
    return ending


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure in the format of the file's ending, replacing a file that is there."""
    ending = require_ending(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending, dpi=_DPI)


def save_small(figure: Figure, path: str | Path, most: int = 300_000) -> None:
    """Write a PNG of at most about `most` bytes, for pictures that a repository keeps: 256 colours, and as many dots as fit."""
    for dpi in _SMALL_DPI:
        figure.set_dpi(dpi)
        figure.canvas.draw()
        written = io.BytesIO()
        _few_colours(figure, np.asarray(figure.canvas.buffer_rgba())[..., :3]).save(written, format="PNG", optimize=True)  # type: ignore[attr-defined]
        if len(written.getvalue()) <= most:
            break
    with replacing(path) as temporary:
        temporary.write_bytes(written.getvalue())


def _few_colours(figure: Figure, picture: np.ndarray) -> Any:
    """The picture (rows, columns, 3) with every dot in the nearest of 256 colours, which greys and the figure's colour maps share.

    A figure without images gets the colours that suit it. Nearest without rounding: white must stay white on a white page.
    """
    from PIL import Image

    maps = {image.get_cmap().name: image.get_cmap() for axes in figure.axes for image in axes.images}
    if not maps:
        return Image.fromarray(picture).quantize(256, dither=Image.Dither.NONE)
    each = 256 // len(maps | {"gray": None})
    greys = np.repeat(np.linspace(0, 255, each).round().astype(np.uint8)[:, None], 3, 1)
    palette = np.concatenate([greys, *(cmap(np.linspace(0, 1, each), bytes=True)[:, :3] for name, cmap in maps.items() if name != "gray")])
    packed, place = np.unique(picture.astype(np.int64) @ (65536, 256, 1), return_inverse=True)
    colours = np.stack((packed >> 16, packed >> 8 & 255, packed & 255), 1)  # each one once
    nearest = ((colours[:, None] - palette[None].astype(np.int64)) ** 2).sum(2).argmin(1).astype(np.uint8)
    few = Image.fromarray(nearest[place].reshape(picture.shape[:2]))  # grey until it has a palette
    few.putpalette(palette.tobytes())
    return few


def _scales(rows: Sequence[Sequence[Panel | None]]) -> dict[Scale, set[int]]:
    """The columns in which each scale is used."""
    scales: dict[Scale, set[int]] = {}
    for row in rows:
        for column, panel in enumerate(row):
            if panel is not None:
                scales.setdefault(panel.scale, set()).add(column)
    return scales


def _show(panel: Panel, place: Any) -> Any:
    """The image as it is: pixels are squares, never smoothed."""
    image, scale = panel.image.detach().cpu().numpy().T, panel.scale
    place.set_title(panel.title, fontsize=10)
    return place.imshow(image, origin="lower", cmap=scale.colours, vmin=scale.low, vmax=scale.high, interpolation="nearest")


def _columns(rows: Sequence[Sequence[Panel | None]], row_names: Sequence[str]) -> int:
    """How many panels every row has; raise unless all have as many and each row has its name, or none has."""
    if not rows or len({len(row) for row in rows}) != 1 or not any(panel is not None for row in rows for panel in row):
        raise InputError(f"rows must be of equal length with at least one panel, got lengths {[len(row) for row in rows]}")
    if row_names and len(row_names) != len(rows):
        raise InputError(f"row_names must have one name for each of the {len(rows)} rows, got {len(row_names)}")
    return len(rows[0])


def _colour_bar(figure: Figure, scale: Scale, shown: list[tuple[Any, Any]], place: Any = None) -> None:
    """One bar in its place, or below the panels of a scale, as wide as a panel."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    pictures, places = zip(*shown, strict=True)
    covered = len({place.get_subplotspec().colspan.start for place in places})
    below = min(picture.get_array().min() for picture in pictures) < scale.low
    above = max(picture.get_array().max() for picture in pictures) > scale.high
    where: dict[str, Any] = {"cax": place, "orientation": "horizontal"}
    if place is None:
        where = {"ax": list(places), "location": "bottom", "shrink": 0.9 / covered, "aspect": 25, "pad": 0.02}
    where |= {"ticks": MaxNLocator(5), "format": (numbers := ScalarFormatter())}
    numbers.set_powerlimits((-4, 6))  # labels such as 0.00015 would run into each other
    bar = figure.colorbar(pictures[0], extend=("both" if above else "min") if below else ("max" if above else "neither"), **where)
    bar.set_label(scale.label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.ax.xaxis.get_offset_text().set_fontsize(8)
    bar.outline.set_visible(False)
