"""The pictures of a report as text for an HTML page: images as embedded PNG, the profile and what is marked in an image as SVG.

Colours of lines and letters are left to the page's style, so that a picture suits a light screen, a dark one and paper.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdgd.apps.places import Places
from bdgd.operators import Geometry

_WIDE, _HIGH = 560, 280  # of the profile, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 28, 44  # margins around its axes


@dataclass(frozen=True)
class Colours:
    """How values become colours: `low` to `high` on matplotlib's colour map `name`."""

    low: float
    high: float
    name: str = "gray"


def spread_colours(*images: Tensor) -> Colours:
    """One scale for images that are 0 where all is well; their largest 0.2 % share the last colour."""
    high = max(float(np.quantile(image.detach().cpu().double().numpy(), 0.998)) for image in images)
    return Colours(0.0, high or 1.0, "magma")


def png(image: Tensor, colours: Colours) -> str:
    """The image (H, W) as a data URI, x to the right and y upward, one byte per pixel."""
    from matplotlib import colormaps
    from PIL import Image

    rows = image.detach().cpu().double().T.flip(0).numpy()
    levels = np.clip((rows - colours.low) / max(colours.high - colours.low, 1e-300) * 255, 0, 255).round().astype(np.uint8)
    picture = Image.fromarray(levels)
    picture.putpalette((colormaps[colours.name](np.arange(256))[:, :3] * 255).round().astype(np.uint8).tobytes())
    written = io.BytesIO()
    picture.save(written, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def colour_bar(image: Tensor, colours: Colours, unit: str) -> str:
    """The scale below a picture: its colours, both ends and the middle; an end that values go beyond has a sign."""
    strip = png(torch.linspace(0, 1, 256, dtype=torch.float64)[:, None], Colours(0.0, 1.0, colours.name))
    below, above = float(image.min()) < colours.low, float(image.max()) > colours.high * (1 + 1e-6)
    ends = [short(value) for value in (colours.low, (colours.low + colours.high) / 2, colours.high)]
    ends[0], ends[2] = ("≤ " if below else "") + ends[0], ("≥ " if above else "") + ends[2]
    letters = "".join(f"<span>{end}</span>" for end in ends)
    named = f'<span class="unit">{escaped(unit)}</span>' if unit else ""
    return f'<div class="bar"><img src="{strip}" alt=""><div class="ends">{letters}</div>{named}</div>'


def marks(places: Places, geometry: Geometry) -> str:
    """The discs with their numbers and the line of the profile, as SVG to be laid over the image."""
    wide, high = geometry.image_size

    def at(point: tuple[float, float]) -> tuple[float, float]:  # from the top left corner, in pixels
        x, y = point[0] / geometry.pixel_size, point[1] / geometry.pixel_size
        return x + wide / 2, high / 2 - y

    (x1, y1), (x2, y2) = at(places.profile.start), at(places.profile.end)
    drawn = [f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>']
    letter = max(wide, high) / 24
    for number, disc in enumerate(places.discs, 1):
        x, y = at(disc.centre)
        drawn.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{disc.radius / geometry.pixel_size:.2f}"/>')
        drawn.append(f'<text x="{x:.2f}" y="{y + 0.36 * letter:.2f}" font-size="{letter:.2f}">{number}</text>')
    return f'<svg class="marks" viewBox="0 0 {wide} {high}" aria-hidden="true">{"".join(drawn)}</svg>'


@dataclass(frozen=True, eq=False)
class Curve:
    """Values (N,) along the profile, drawn with the page's style `name`."""

    name: str
    values: Tensor


def profile(distance: Tensor, band: tuple[Tensor, Tensor], curves: Sequence[Curve], labels: tuple[str, str]) -> str:
    """Curves over the distance (N,) with a band behind them. The band and all curves but "fbp" set the height, which that may leave."""
    steady = [band[0], band[1], *(curve.values for curve in curves if curve.name != "fbp")]
    low, high = min(float(v.min()) for v in steady), max(float(v.max()) for v in steady)
    margin = 0.06 * (high - low) or 1.0
    axes = _Axes(0.0, float(distance[-1]) or 1.0, low - margin, high + margin)
    forth, back = axes.points(distance, band[1]), axes.points(distance.flip(0), band[0].flip(0))
    lines = "".join(f'<polyline class="{curve.name}" points="{axes.points(distance, curve.values)}"/>' for curve in curves)
    box = f'x="{_LEFT}" y="{_TOP}" width="{_WIDE - _LEFT - _RIGHT}" height="{_HIGH - _TOP - _BOTTOM}"'
    return (
        f'<svg class="profile" viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="Values along the profile line with their interval">'
        f'<clipPath id="inside"><rect {box}/></clipPath>{axes.drawn(*labels)}'
        f'<g clip-path="url(#inside)"><polygon class="band" points="{forth} {back}"/>{lines}</g></svg>'
    )


@dataclass(frozen=True)
class _Axes:
    """From values to places in the drawing."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.left) / (self.right - self.left) * (_WIDE - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HIGH - _BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (_HIGH - _TOP - _BOTTOM)

    def points(self, x: Tensor, y: Tensor) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))

    def drawn(self, across: str, upward: str) -> str:
        """Grid, numbers and names of the two axes."""
        from matplotlib.ticker import MaxNLocator

        def ticks(low: float, high: float, most: int) -> list[float]:
            return [float(t) for t in MaxNLocator(most).tick_values(low, high) if low <= t <= high]

        end, ground, middle = _WIDE - _RIGHT, _HIGH - _BOTTOM, (_LEFT + _WIDE - _RIGHT) / 2
        parts = [f'<line class="grid" x1="{_LEFT}" x2="{end}" y1="{ground}" y2="{ground}"/>']
        for t in ticks(self.bottom, self.top, 5):
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{end}" y1="{self.y(t):.1f}" y2="{self.y(t):.1f}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{self.y(t) + 4:.1f}" text-anchor="end">{short(t)}</text>')
        for t in ticks(self.left, self.right, 6):
            parts.append(f'<text x="{self.x(t):.1f}" y="{ground + 16}" text-anchor="middle">{short(t)}</text>')
        parts.append(f'<text x="{middle}" y="{_HIGH - 8}" text-anchor="middle">{escaped(across)}</text>')
        parts.append(f'<text x="{_LEFT}" y="{_TOP - 12}">{escaped(upward)}</text>')
        return f'<g class="axes">{"".join(parts)}</g>'


def escaped(text: object) -> str:
    """Any text as it may stand in HTML, in or outside of quotes; what is no text in it becomes question marks."""
    return html.escape(str(text).encode("utf-8", "replace").decode())


def percent(part: float) -> str:
    """0.95 as 95%, 0.995 as 99.5%."""
    return f"{100 * part:.4g}%"


def short(value: float) -> str:
    """Three digits, with a true minus."""
    return f"{0.0 if abs(value) < 1e-12 else value:.3g}".replace("-", "−")
