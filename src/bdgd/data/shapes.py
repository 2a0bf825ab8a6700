"""Outlines of star-shaped holes as tables r(phi) at TABLE equidistant angles, phi from 0 to 2 pi; the largest radius is about 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TABLE = 180
_SIDES = 6  # of a polygon, at most
#: cumulative shares of circles, ellipses, boxes, polygons and crosses; the rest are blobs
SHARES = (0.14, 0.32, 0.48, 0.66, 0.88)


def is_circle(kind: Tensor) -> Tensor:
    """Where `kind` (...) in [0, 1) is a circle, which must not be stretched; a stretched one is an ellipse."""
    return kind < SHARES[0]


def radii(kind: Tensor, numbers: Tensor) -> Tensor:
    """(..., TABLE) outlines for `kind` (...) in [0, 1), by its share, from numbers (..., 5) in [0, 1)."""
    phi = torch.arange(TABLE, device=kind.device) * (2 * math.pi / TABLE)
    n = numbers[..., None].unbind(-2)  # five tensors (..., 1)
    round_ = torch.ones_like(n[0] * phi)
    outlines = torch.stack((round_, round_, _box(phi, *n[:3]), _polygon(phi, *n), _cross(phi, *n[:4]), _blob(phi, *n)))
    chosen = torch.bucketize(kind.contiguous(), torch.tensor(SHARES, device=kind.device))
    return outlines.gather(0, chosen[None, ..., None].expand(1, *outlines.shape[1:]))[0]


def _box(phi: Tensor, sharpness: Tensor, shear: Tensor, waist: Tensor) -> Tensor:
    """|cos + k sin|^p + |sin|^p = r^-p: a sheared rectangle with corners of some sharpness, half of them with a waist."""
    power = 4 + 16 * sharpness
    cos, sin = phi.cos() + 1.2 * (shear - 0.5) * phi.sin(), phi.sin() + torch.zeros_like(shear)
    r = (cos.abs() ** power + sin.abs() ** power) ** (-1 / power)
    return 0.8 * r * (1 - (waist - 0.5).clamp_min(0) * (2 * phi).cos() ** 2)


def _polygon(phi: Tensor, *numbers: Tensor) -> Tensor:
    """What lies inside three to six lines at various distances: r = min d_k / cos(phi - theta_k)."""
    sides = 3 + (numbers[0] * (_SIDES - 2)).floor()
    r = torch.full_like(numbers[0] * phi, 1.5)
    for k in range(_SIDES):
        one, other = (numbers[1 + k % 4] * (17 + 6 * k)) % 1, (numbers[1 + (k + 1) % 4] * (29 + 10 * k)) % 1
        cos = (phi - 2 * math.pi * (k + 0.6 * one) / sides).cos()
        r = torch.where((k < sides) & (cos > 0.05), torch.minimum(r, (0.5 + 0.4 * other) / cos.clamp_min(0.05)), r)
    return r


def _cross(phi: Tensor, pointed: Tensor, core: Tensor, uneven: Tensor, where: Tensor) -> Tensor:
    """Four arms between the half-axes, of uneven length."""
    core = 0.25 + 0.35 * core
    arms = (2 * phi).sin().abs() ** (1 + 3 * pointed)
    return (core + (1.15 - core) * arms) * (1 + 0.5 * uneven * (phi + 2 * math.pi * where).cos()) / (1 + 0.25 * uneven)


def _blob(phi: Tensor, *numbers: Tensor) -> Tensor:
    """A circle with smooth bulges."""
    waves = [0.5 * (numbers[k] - 0.5) * ((k + 2) * phi + 2 * math.pi * numbers[3 + k % 2]).cos() for k in range(3)]
    return 0.9 * (1 + waves[0] + waves[1] + 0.6 * waves[2])
