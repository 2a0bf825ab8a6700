"""Text burnt into an image: a structure that no training set of ellipses contains, so a test of honest error bars."""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError, require_number

_FINE = 1000  # font size in which outlines are flattened to polygons: far finer than any pixel


@overload
def with_text(x: Tensor, text: str, value: float = 1.0, return_mask: Literal[False] = False) -> Tensor: ...


@overload
def with_text(x: Tensor, text: str, value: float = 1.0, *, return_mask: Literal[True]) -> tuple[Tensor, Tensor]: ...


def with_text(x: Tensor, text: str, value: float = 1.0, return_mask: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """A copy of the images x (B, 1, H, W) with `text` at the centre, its pixels set to `value`; optionally also the mask.

    Reads from left to right when the first index runs to the right and the second upward (`imshow(x[0, 0].T, origin="lower")`).
    Capital letters are W / 8 pixels high; a text wider than 90 % of the image is shrunk to that. A pixel belongs to the
    text if its centre lies inside the outline (DejaVu Sans). The mask is (1, 1, H, W), bool.
    """
    if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[1] != 1 or x.numel() == 0 or not x.is_floating_point():
        got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"x must be floating-point images of shape (B, 1, H, W), got {got}; add axes with [None, None]")
    value = require_number(value, "value")
    mask = torch.from_numpy(_mask(text, x.shape[2], x.shape[3])).to(x.device)[None, None]
    written = x.masked_fill(mask, value)
    return (written, mask) if return_mask else written


def _mask(text: str, height: int, width: int) -> np.ndarray:
    """(H, W) bool: which pixel centres lie inside the outline. `height` counts pixels along x, `width` along y."""
    from matplotlib.path import Path

    polygons, capital = _outline(text)
    corners = np.concatenate(polygons)
    low, high = corners.min(0), corners.max(0)
    scale = max(8 * capital / width, (high[0] - low[0]) / (0.9 * height), (high[1] - low[1]) / (0.9 * width))  # font units per pixel
    x = (low[0] + high[0]) / 2 + scale * (np.arange(height) - (height - 1) / 2)
    y = (low[1] + high[1]) / 2 + scale * (np.arange(width) - (width - 1) / 2)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)
    winding = np.zeros(len(points), dtype=np.int64)
    for polygon in polygons:  # the holes of a letter turn the other way around than its outline, and take away
        winding += int(np.sign(_area(polygon))) * Path(polygon).contains_points(points)
    mask: np.ndarray = (winding != 0).reshape(height, width)
    if not mask.any():
        raise InputError(f"no pixel of {height} x {width} falls inside the letters of {text!r}; use a larger image or a shorter text")
    return mask


def _outline(text: str) -> tuple[list[np.ndarray], float]:
    """The closed polygons of the text's outline, and the height of a capital letter."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import FontProperties
    from matplotlib.ft2font import FT2Font
    from matplotlib.textpath import TextPath

    if not isinstance(text, str):
        raise InputError(f"text must be a string, got {type(text).__name__}")
    if not any(letter.isprintable() and not letter.isspace() for letter in text):
        raise InputError(f"text must have something to show, got {text!r}; pass at least one letter")
    file = f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf"  # by file, so that no setting of matplotlib changes the picture
    if missing := [letter for letter in text if FT2Font(file).get_char_index(ord(letter)) == 0]:
        raise InputError(f"text has the character {missing[0]!r}, which DejaVu Sans cannot show; leave it out")
    font = FontProperties(fname=file)
    literal = text.replace("$", r"\$")  # dollar signs are letters here, not mathematics
    outline = TextPath((0, 0), literal, size=_FINE, prop=font)
    polygons = [polygon for polygon in map(np.asarray, outline.to_polygons()) if len(polygon) > 2]
    return polygons, TextPath((0, 0), "H", size=_FINE, prop=font).get_extents().height


def _area(polygon: np.ndarray) -> float:
    """Signed area: its sign says which way around the polygon turns."""
    x, y = polygon.T
    return float(0.5 * np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))
