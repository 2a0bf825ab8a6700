"""Where a report looks closer: discs whose mean value gets an interval, and the line of its profile.

A file names them in TOML, in the unit of the pixel size, from the axis of rotation, x to the right and y upward:

    [[disc]]
    name = "hole"
    centre = [12.5, -3.0]
    radius = 2.0

    [profile]
    start = [-30.0, 0.0]
    end = [30.0, 0.0]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_number, require_positive
from bdgd.operators import Geometry

Point = tuple[float, float]


@dataclass(frozen=True)
class Disc:
    """All pixels whose centre is at most `radius` from `centre`."""

    name: str
    centre: Point
    radius: float

    def mask(self, geometry: Geometry) -> Tensor:
        """(H, W) true inside."""
        x, y = geometry.pixel_centres()
        inside = (x[:, None] - self.centre[0]) ** 2 + (y[None, :] - self.centre[1]) ** 2 <= self.radius * self.radius  # may be infinite
        if not bool(inside.any()):
            raise InputError(
                f"the disc {self.name!r} at {self.centre} of radius {self.radius:g} holds no pixel centre: the image reaches"
                f" from {float(x[0]):g} to {float(x[-1]):g} along x and from {float(y[0]):g} to {float(y[-1]):g} along y"
            )
        return inside


@dataclass(frozen=True)
class Line:
    """A straight line from `start` to `end`, read off at the nearest pixels."""

    start: Point
    end: Point

    def pixels(self, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        """Distance from the start and the two indices of the pixels (N,), about one per pixel of length."""
        ends = torch.tensor((self.start, self.end), dtype=torch.float64)
        middle = (torch.tensor(geometry.image_size, dtype=torch.float64) - 1) / 2
        outermost = (ends / geometry.pixel_size + middle).round()  # what lies between two pixels of the image lies in it
        if bool((outermost < 0).any()) or bool((outermost >= torch.tensor(geometry.image_size)).any()):
            raise InputError(f"the profile from {self.start} to {self.end} leaves the image; shorten it")
        start, end = ends
        length = float((end - start).norm())
        steps = max(int(length / geometry.pixel_size + 0.5), 1) + 1
        part = torch.linspace(0, 1, steps, dtype=torch.float64)
        indices = ((start + part[:, None] * (end - start)) / geometry.pixel_size + middle).round().long()
        return part * length, indices[:, 0], indices[:, 1]


@dataclass(frozen=True)
class Places:
    """What a report looks at closer; lengths in the unit of the pixel size."""

    discs: tuple[Disc, ...]
    profile: Line


def default_places(geometry: Geometry) -> Places:
    """A grid of 3 x 3 discs, and the line along x through the axis of rotation."""
    x, y = geometry.pixel_centres()
    wide, high = (n * geometry.pixel_size for n in geometry.image_size)
    row = float(y[len(y) // 2])  # of an even number of rows the upper one beside the axis
    radius = max(min(wide, high) / 14, geometry.pixel_size)
    discs = [
        Disc(f"{vertical} {horizontal}".replace("middle middle", "middle").strip(), (0.27 * i * wide, 0.27 * j * high), radius)
        for j, vertical in ((1, "top"), (0, "middle"), (-1, "bottom"))
        for i, horizontal in ((-1, "left"), (0, "middle"), (1, "right"))
    ]
    return Places(tuple(discs), Line((float(x[0]), row), (float(x[-1]), row)))


def read_places(path: Path, geometry: Geometry) -> Places:
    """The discs and the profile of a TOML file, the default for what it does not name; each must lie in the image."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the regions {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {' '.join(str(error).split())}") from None
    try:
        return _places(values, geometry)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _places(values: dict[str, Any], geometry: Geometry) -> Places:
    default = default_places(geometry)
    _require_keys(values, {"disc", "profile"}, set(), "a file of regions")
    tables = values.get("disc", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("discs must be written as [[disc]] tables")
    discs = tuple(_disc(table, number) for number, table in enumerate(tables, 1))
    for disc in discs:
        disc.mask(geometry)
    profile = default.profile
    if "profile" in values:
        table = values["profile"]
        _require_keys(table, {"start", "end"}, {"start", "end"}, "[profile]")
        profile = Line(_point(table["start"], "start"), _point(table["end"], "end"))
        profile.pixels(geometry)
    return Places(discs or default.discs, profile)


def _disc(table: dict[str, Any], number: int) -> Disc:
    _require_keys(table, {"name", "centre", "radius"}, {"centre", "radius"}, f"disc {number}")
    name = " ".join(str(table.get("name", f"disc {number}")).split())
    return Disc(name, _point(table["centre"], "centre"), require_positive(table["radius"], "radius"))


def _require_keys(table: Any, known: set[str], needed: set[str], what: str) -> None:
    if not isinstance(table, dict):
        raise InputError(f"{what} must be a table, got {table!r}")
    if unknown := sorted(set(table) - known):
        raise InputError(f"unknown key {unknown[0]!r} in {what}; known are {', '.join(sorted(known))}")
    if missing := sorted(needed - set(table)):
        raise InputError(f"{what} needs {missing[0]!r}; add it")


def _point(value: Any, name: str) -> Point:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{name} must be [x, y], got {value!r}")
    return require_number(value[0], name), require_number(value[1], name)
