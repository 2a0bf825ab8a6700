"""Pictures of images: x to the right, y upward, and a colour scale that says what it shows.

Made without pyplot, so that no window opens and no setting of the calling program is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bdgd.checks import InputError, require_finite
from bdgd.storage import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = 2.6  # of one panel
_DPI = 160


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


def panels(rows: Sequence[Sequence[Panel]], row_names: Sequence[str] = ()) -> Figure:
    """The rows of panels as a figure, each row with its name at the left, and one colour bar below for every scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = _columns(rows, row_names)
    height, width = rows[0][0].image.shape
    figure = Figure(figsize=(_INCHES * columns + 0.3, (_INCHES * width / height + 0.25) * len(rows) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    drawn: dict[Scale, list[tuple[Any, Any]]] = {}
    for row, line in zip(rows, axes, strict=True):
        for panel, place in zip(row, line, strict=True):
            image = panel.image.detach().cpu().numpy().T
            picture = place.imshow(image, origin="lower", cmap=panel.scale.colours, vmin=panel.scale.low, vmax=panel.scale.high)
            place.set(xticks=(), yticks=(), frame_on=False)
            place.set_title(panel.title, fontsize=10)
            drawn.setdefault(panel.scale, []).append((picture, place))
    for name, line in zip(row_names, axes, strict=bool(row_names)):
        line[0].set_ylabel(name, fontsize=11)
    for scale, shown in drawn.items():
        _colour_bar(figure, scale, shown)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure in the format of the file's ending, replacing a file that is there."""
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    if (ending := path.suffix[1:].lower()) not in known:
        raise InputError(f"cannot write a figure to {path}: the name must end in one of {', '.join('.' + name for name in known)}")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending, dpi=_DPI)


def _columns(rows: Sequence[Sequence[Panel]], row_names: Sequence[str]) -> int:
    """How many panels every row has; raise unless all have as many and each row has its name, or none has."""
    if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
        raise InputError(f"rows must be of equal length with at least one panel, got lengths {[len(row) for row in rows]}")
    if row_names and len(row_names) != len(rows):
        raise InputError(f"row_names must have one name for each of the {len(rows)} rows, got {len(row_names)}")
    return len(rows[0])


def _colour_bar(figure: Figure, scale: Scale, shown: list[tuple[Any, Any]]) -> None:
    """One bar below the panels of a scale, as wide as a panel."""
    pictures, places = zip(*shown, strict=True)
    covered = len({place.get_subplotspec().colspan.start for place in places})
    below = min(picture.get_array().min() for picture in pictures) < scale.low
    above = max(picture.get_array().max() for picture in pictures) > scale.high
    extend = ("both" if above else "min") if below else ("max" if above else "neither")
    bar = figure.colorbar(pictures[0], ax=list(places), location="bottom", shrink=0.9 / covered, aspect=25, pad=0.02, extend=extend)
    bar.set_label(scale.label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
