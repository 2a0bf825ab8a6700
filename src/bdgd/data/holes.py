"""Discs with holes: homogeneous discs from which circles, ellipses, rectangles, polygons, crosses, slits and channels are cut.

What machined test objects and many technical parts look like, and what limited-view methods are challenged with. Values: 1 in the
disc, 0 in its holes and around it, the covered share in pixels that an edge crosses. Coordinates: the middle of the image is 0, its
sides are at -1 and 1, x along the first index.

A hole is star-shaped around its centre: with (u, v) the coordinates turned by its rotation and divided by its two half-axes, it is
sqrt(u^2 + v^2) <= r(angle of (u, v)). A channel is all that lies within half its width of a curve. A cell is what lies further than
half a wall from the bisectors between its site and all others (Voronoi). The covered share of a pixel is clamp(1/2 - d, 0, 1) with d
the signed distance of its centre to the edge in pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.data.shapes import TABLE, is_circle, radii

HOLES, CHANNELS, BENDS = 25, 4, 10  # at most, per image; straight pieces of a channel
_GLOBAL, _PER_HOLE, _PER_CHANNEL = 16, 12, 8  # random numbers
_LATTICE, _FREE, _CELLS, _SLITS = range(4)  # how holes are arranged
_SHARES = (0.54, 0.74, 0.88, 0.98)  # cumulative shares of these; the rest are solid discs
_CHUNK = 2**22  # pixels worked on at once


def discs_with_holes(
    count: int,
    size: int = 256,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    radius: tuple[float, float] = (0.8, 0.95),
) -> Tensor:
    """(B, 1, size, size) float32 in [0, 1]: random discs with holes, of a radius in that range of half the image's side.

    Every image takes the same numbers from the stream, on the CPU, so the first n images of a larger set are the same images, and
    every device gives the same up to rounding.
    """
    count, size = require_count(count, "count"), require_count(size, "size")
    if generator.device.type != "cpu":
        raise InputError(f"generator must be on the CPU, so that all devices give the same images, got {generator.device}")
    if not 0 < radius[0] <= radius[1] <= 1:
        raise InputError(f"radius must be a range inside (0, 1] of half the image's side, got {radius}")
    numbers = torch.rand(count, _GLOBAL + HOLES * _PER_HOLE + CHANNELS * _PER_CHANNEL, generator=generator)
    images = torch.empty(count, 1, size, size, device=device)
    step = max(1, _CHUNK // size**2)
    for first in range(0, count, step):
        images[first : first + step, 0] = _Discs(numbers[first : first + step].to(device), size, radius).draw()
    return images


class _Discs:
    """Some images, from their random numbers (B, N): what each number means, and the drawing."""

    def __init__(self, numbers: Tensor, size: int, radius: tuple[float, float]):
        self.general = numbers[:, :_GLOBAL]
        self.own = numbers[:, _GLOBAL : _GLOBAL + HOLES * _PER_HOLE].unflatten(1, (HOLES, _PER_HOLE))
        self.channel = numbers[:, _GLOBAL + HOLES * _PER_HOLE :].unflatten(1, (CHANNELS, _PER_CHANNEL))
        self.pixels = size / 2  # per unit of length
        middle = (torch.arange(size, device=numbers.device) - (size - 1) / 2) / self.pixels
        self.x, self.y = middle[:, None], middle[None, :]  # (H, 1), (1, W)
        g = self.general
        self.radius = radius[0] + (radius[1] - radius[0]) * g[:, 0]  # (B,)
        free = (1 - self.radius).clamp(max=0.08)
        self.centre = (2 * g[:, 1:3] - 1) * free[:, None] / math.sqrt(2)  # (B, 2), so that the disc stays in the image
        self.inner = self.radius * (0.80 + 0.16 * g[:, 3])  # no hole reaches further: a rim stays
        self.arrangement = torch.bucketize(g[:, 4].contiguous(), torch.tensor(_SHARES, device=g.device))
        self.turn = 2 * math.pi * g[:, 5]

    def draw(self) -> Tensor:
        """(B, H, W)."""
        from_centre = torch.hypot(self.x - _image(self.centre[:, 0]), self.y - _image(self.centre[:, 1]))
        disc = self._covered(from_centre - _image(self.radius))
        inside = self._covered(from_centre - _image(self.inner))
        holes = torch.zeros_like(disc)
        self._add_stars(holes)
        self._add_channels(holes)
        self._add_cells(holes)
        return disc * (1 - holes * inside)

    def _covered(self, distance: Tensor) -> Tensor:
        """The share of each pixel that is inside, from signed distances to the edge, negative inside."""
        return (0.5 - distance * self.pixels).clamp(0, 1)

    # --- stars -----------------------------------------------------------------------------------------------------------

    def _sites(self) -> tuple[Tensor, Tensor, Tensor]:
        """x and y of the holes' centres (B, HOLES), and their distance: a turned, sheared lattice for most, anywhere for the rest."""
        g, o = self.general, self.own
        spacing = 0.26 + 0.34 * g[:, 6]
        step = torch.arange(HOLES, device=g.device)
        side = math.isqrt(HOLES - 1) + 1
        row, column = step // side - (HOLES // side - 1) / 2, step % side - (side - 1) / 2
        jitter = 0.25 * g[:, 7]
        u = (column + 0.5 * (step // side % 2) * (g[:, 8:9] > 0.5) + jitter[:, None] * (2 * o[..., 0] - 1)) * spacing[:, None]
        v = (row + jitter[:, None] * (2 * o[..., 1] - 1)) * spacing[:, None] * (0.7 + 0.6 * g[:, 9:10])
        angle, far = 2 * math.pi * o[..., 0], self.inner[:, None] * o[..., 1].sqrt()
        free = (self.arrangement == _FREE)[:, None]
        cos, sin = self.turn.cos()[:, None], self.turn.sin()[:, None]
        x = torch.where(free, far * angle.cos(), u * cos - v * sin) + self.centre[:, :1]
        y = torch.where(free, far * angle.sin(), u * sin + v * cos) + self.centre[:, 1:]
        return x, y, spacing

    def _add_stars(self, holes: Tensor) -> None:
        """Holes on a lattice share their kind and about their size and direction; free ones have their own, and may overlap."""
        g, o = self.general, self.own
        x, y, spacing = self._sites()
        free = (self.arrangement == _FREE)[:, None]
        kind = torch.where(free, o[..., 2], g[:, 10:11])  # (B, HOLES)
        size = torch.where(free, 0.04 + 0.22 * o[..., 3] ** 1.5, spacing[:, None] * (0.16 + 0.36 * g[:, 11:12]) * (0.75 + 0.5 * o[..., 3]))
        slender = torch.where(free, o[..., 4], (g[:, 12:13] + 0.3 * (o[..., 4] - 0.5)).clamp(0, 1))
        stretch = torch.where(is_circle(kind), 1.0, (0.75 * slender).exp())
        rotation = torch.where(free, 2 * math.pi * o[..., 5], self.turn[:, None] + 0.5 * g[:, 13:14] * (2 * o[..., 5] - 1))
        table = radii(kind, o[..., 6:11])  # (B, HOLES, TABLE)
        far = torch.hypot(x - self.centre[:, :1], y - self.centre[:, 1:]) + 0.8 * size * stretch
        wanted = torch.where(free, 2 + 8 * g[:, 14:15], 3 + (HOLES - 3) * g[:, 14:15].sqrt())
        order = o[..., 11].argsort(1).argsort(1)  # which of them are left out
        there = (order < wanted) & (far < self.inner[:, None] * (1 + 0.3 * (g[:, 15:16] > 0.85)))
        there &= (self.arrangement <= _FREE)[:, None]
        for n in range(HOLES):
            (images,) = torch.nonzero(there[:, n], as_tuple=True)
            if len(images):
                place = torch.stack((x, y, size * stretch, size / stretch, rotation))[:, images, n, None, None]
                holes[images] = torch.maximum(holes[images], self._star(place, table[images, n]))

    def _star(self, place: Tensor, table: Tensor) -> Tensor:
        """(b, H, W) covered shares of one hole each, from x, y, half-axes and rotation (5, b, 1, 1) and outlines (b, TABLE).

        The distance to the edge is the function rho - r divided by the length of its gradient.
        """
        x, y, a, b, rotation = place
        dx, dy = self.x - x, self.y - y
        cos, sin = rotation.cos(), rotation.sin()
        u, v = (dx * cos + dy * sin) / a, (dy * cos - dx * sin) / b
        rho = torch.hypot(u, v).clamp_min(1e-6)
        angle = torch.atan2(v, u).remainder(2 * math.pi) * (TABLE / (2 * math.pi))
        left = angle.floor().long() % TABLE
        flat = left.flatten(1)
        low, high = table.gather(1, flat).view_as(rho), table.gather(1, (flat + 1) % TABLE).view_as(rho)
        r, slope = torch.lerp(low, high, angle - angle.floor()), (high - low) * (TABLE / (2 * math.pi))
        along_u, along_v = (u + v * slope / rho) / (rho * a), (v - u * slope / rho) / (rho * b)
        return self._covered((rho - r) / torch.hypot(along_u, along_v))

    # --- channels --------------------------------------------------------------------------------------------------------

    def _add_channels(self, holes: Tensor) -> None:
        """Straight slits and curved channels (a parabola as straight pieces): for some images all that is cut, in others one more."""
        some = (self.arrangement == _SLITS)[:, None] | ((self.arrangement <= _FREE)[:, None] & (self.channel[..., 7] > 0.97))
        there = some & (torch.arange(CHANNELS, device=holes.device) < 1 + CHANNELS * self.general[:, 14:15])
        for n in range(CHANNELS):
            (images,) = torch.nonzero(there[:, n], as_tuple=True)
            if len(images):
                holes[images] = torch.maximum(
                    holes[images], self._channel(self.channel[images, n], self.centre[images], self.inner[images])
                )

    def _channel(self, c: Tensor, centre: Tensor, inner: Tensor) -> Tensor:
        """(b, H, W) covered shares; a slit thinner than a pixel covers as much of it as it is wide."""
        direction, half = math.pi * c[:, 0], inner * (0.2 + 0.7 * c[:, 1])
        bend = torch.where(c[:, 2] > 0.4, (c[:, 3] - 0.5) * 1.6, torch.zeros_like(half)) * half
        width = (0.008 + 0.12 * c[:, 4] ** 2)[:, None, None]
        t = torch.linspace(-1, 1, BENDS + 1, device=c.device)
        cos, sin = direction.cos()[:, None], direction.sin()[:, None]
        along, across = half[:, None] * t, bend[:, None] * (t**2 - 0.5) + (inner * (2 * c[:, 5] - 1) * 0.7)[:, None]
        px, py = centre[:, :1] + along * cos - across * sin, centre[:, 1:] + along * sin + across * cos
        nearest = torch.full((len(c), len(self.x), self.y.shape[1]), math.inf, device=c.device)
        for k in range(BENDS):
            ex, ey = _image(px[:, k + 1] - px[:, k]), _image(py[:, k + 1] - py[:, k])
            dx, dy = self.x - _image(px[:, k]), self.y - _image(py[:, k])
            part = ((dx * ex + dy * ey) / (ex**2 + ey**2).clamp_min(1e-12)).clamp(0, 1)
            nearest = torch.minimum(nearest, torch.hypot(dx - part * ex, dy - part * ey))
        return torch.minimum(self._covered(nearest - width / 2), (width * self.pixels).clamp(max=1))

    # --- cells -----------------------------------------------------------------------------------------------------------

    def _add_cells(self, holes: Tensor) -> None:
        """A disc that is mostly hole: cells between walls of one width."""
        (images,) = torch.nonzero(self.arrangement == _CELLS, as_tuple=True)
        if not len(images):
            return
        x, y, _ = (t[images] for t in self._sites())
        wall = _image(0.03 + 0.09 * self.general[images, 11])
        squares = torch.stack([(self.x - _image(x[:, n])) ** 2 + (self.y - _image(y[:, n])) ** 2 for n in range(HOLES)], 1)
        first, own = squares.min(1)  # (b, H, W)
        bisector = torch.full_like(first, math.inf)
        flat = own.flatten(1)
        sx, sy = x.gather(1, flat).view_as(first), y.gather(1, flat).view_as(first)
        for n in range(HOLES):
            between = torch.hypot(sx - _image(x[:, n]), sy - _image(y[:, n]))
            distance = torch.where(own == n, math.inf, (squares[:, n] - first) / (2 * between).clamp_min(1e-6))
            bisector = torch.minimum(bisector, distance)
        filled = self.own[images, :, 2].gather(1, flat).view_as(first) < 0.04  # some cells stay full
        holes[images] = torch.where(filled, holes[images], torch.maximum(holes[images], self._covered(wall / 2 - bisector)))


def _image(values: Tensor) -> Tensor:
    """(B,) as (B, 1, 1)."""
    return values[:, None, None]
