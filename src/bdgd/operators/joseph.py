"""Joseph's discretisation of line integrals, as rows of a sparse matrix.

A ray that is steeper in y than in x crosses every grid line y = y_j once: there the image is interpolated linearly
between the two pixels next to the crossing in x, and each crossing counts for the length pixel_size / |u_y| of ray
between two grid lines (u the unit direction). Rays steeper in x swap the axes. Outside its grid the image is zero.
Joseph, "An improved algorithm for reprojecting rays through pixel images", IEEE TMI 1982.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from bdgd.operators.geometry import Geometry

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def most_entries(geometry: Geometry, views: int = 1) -> int:
    """An upper bound of the matrix entries that `views` views have: two for each grid line a ray can cross."""
    return views * geometry.detectors * 2 * max(geometry.image_size)


def joseph_rows(geometry: Geometry, views: range, dtype: torch.dtype) -> csr_array:
    """The matrix rows of some consecutive views: (len(views) * D, H * W), column of pixel [i, j] = i * W + j.

    Written in NumPy on purpose: its calls release the interpreter, so that several chunks of views are built at once.
    """
    from scipy.sparse import csr_array  # half of the time that `import bdgd` would take

    part = geometry[views.start : views.stop]
    points, directions = (tensor.numpy() for tensor in part.rays())
    number = np.dtype(str(dtype).removeprefix("torch."))
    capacity = most_entries(geometry, len(views))  # untouched memory costs nothing, so the bound is good enough
    columns, weights = np.empty(capacity, np.int32), np.empty(capacity, number)
    row_lengths = np.zeros(len(views) * part.detectors + 1, np.int64)
    entry, row = 0, 1
    for view in range(len(views)):
        for rays, step_axis in _runs_of_equal_axis(directions[view]):
            cols, vals, lengths = _entries(part, points[view, rays], directions[view, rays], step_axis)
            columns[entry : entry + cols.size] = cols
            weights[entry : entry + cols.size] = vals
            row_lengths[row : row + lengths.size] = lengths
            entry, row = entry + cols.size, row + lengths.size
    row_starts = row_lengths.cumsum().astype(np.int32)
    shape = (len(views) * part.detectors, geometry.image_size[0] * geometry.image_size[1])
    return csr_array((weights[:entry], columns[:entry], row_starts), shape=shape)


def _runs_of_equal_axis(directions: np.ndarray) -> Iterator[tuple[slice, int]]:
    """Consecutive rays of one view (D, 2) that are steepest along the same axis, and that axis (0 for x, 1 for y)."""
    steep_in_y = (np.abs(directions[:, 1]) >= np.abs(directions[:, 0])).astype(int)
    edges = np.flatnonzero(np.diff(steep_in_y)) + 1
    for first, last in zip((0, *edges), (*edges, len(steep_in_y)), strict=True):
        yield slice(first, last), int(steep_in_y[first])


def _entries(geometry: Geometry, points: np.ndarray, directions: np.ndarray, step_axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, weights and number per row of the entries of R rays that all step along `step_axis`.

    In pixel indices, the crossing of ray r with grid line n lies at start[r] + slope[r] * n along the other axis.
    """
    size, pixel, other_axis = geometry.image_size, geometry.pixel_size, 1 - step_axis
    slope = directions[:, other_axis] / directions[:, step_axis]
    start = (points[:, other_axis] - slope * points[:, step_axis]) / pixel - slope * (size[step_axis] - 1) / 2 + (size[other_axis] - 1) / 2
    length = pixel / np.abs(directions[:, step_axis])

    steps = np.arange(size[step_axis], dtype=np.int32)
    crossing = start[:, None] + slope[:, None] * steps  # (R, N)
    lower = np.floor(crossing)
    upper_weight = (crossing - lower) * length[:, None]
    # Far-away rays would overflow int32; just outside the image is as good as far away.
    lower_pixel = np.clip(lower, -2, size[other_axis]).astype(np.int32)

    pixels = np.stack((lower_pixel, lower_pixel + np.int32(1)), axis=1)  # (R, 2, N): the pixel below and the one above
    weights = np.stack((length[:, None] - upper_weight, upper_weight), axis=1)
    inside = pixels.view(np.uint32) < size[other_axis]  # one comparison: negative indices wrap to large numbers
    width = np.int32(size[1])
    columns = pixels * width + steps if step_axis == 1 else pixels + steps * width
    return columns[inside], weights[inside], inside.reshape(len(points), -1).sum(axis=1)
