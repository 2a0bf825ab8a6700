"""Phantoms by name, as presets and commands ask for them: sets of images that fit the field that a scanner sees."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data.folder import folder_images
from bdgd.data.holes import discs_with_holes
from bdgd.data.sets import ellipse_images, named_generator
from bdgd.operators.geometry import FanBeam, Geometry

KINDS = ("ellipses", "discs-with-holes")


def phantom_images(
    kind: str, set_name: str, count: int, geometry: Geometry, seed: int = 0, device: torch.device | str = "cpu", *, spread: float = 0.0
) -> Tensor:
    """(count, 1, H, W) in about [0, 1]: images of a named set ("train", "test", ...), in the middle square of the image.

    kind: "ellipses" (the paper's), "discs-with-holes", or a folder of pictures. What lies outside the circle that every view sees is 0:
    no scan of it would hold all of it. spread: each image is multiplied by a number of its own in 1 - spread to 1 + spread.
    """
    height, width = geometry.image_size
    side = min(height, width)
    stream = named_generator(f"{kind} {set_name}" if kind in KINDS else f"folder {set_name}", seed)
    if kind == "ellipses":
        images = ellipse_images(set_name, count, side, seed, device=device)
    elif kind == "discs-with-holes":
        images = discs_with_holes(count, side, generator=stream, device=device, radius=_radii(geometry))
    else:
        images = folder_images(kind, set_name, count, side, generator=stream, device=device)
    if height != width:
        left, top = (width - side) // 2, (height - side) // 2
        images = torch.nn.functional.pad(images, (left, width - side - left, top, height - side - top))
    images = within_field(images, geometry)
    if spread:
        factor = 1 + spread * (2 * torch.rand(count, generator=named_generator(f"spread {set_name}", seed)) - 1)
        images = images * factor[:, None, None, None].to(images)
    return images


def field_radius(geometry: Geometry) -> float:
    """Radius of the circle around the axis that every view sees whole, as a length."""
    edge = geometry.detectors * geometry.detector_spacing / 2 - abs(geometry.detector_offset)
    if edge <= 0:
        raise InputError(f"the detector, moved by {geometry.detector_offset:g}, does not see the axis; check detector_offset")
    if isinstance(geometry, FanBeam):
        return geometry.source_to_axis * math.sin(math.atan(edge / geometry.source_to_detector))
    return edge


def within_field(images: Tensor, geometry: Geometry) -> Tensor:
    """The images (B, 1, H, W) with 0 outside the circle that every view sees."""
    return images * _field(geometry).to(images) if field_radius(geometry) < geometry.image_radius else images


def _radii(geometry: Geometry) -> tuple[float, float]:
    """Discs of 0.8 to 0.95 of what can be seen, in half sides of the image."""
    half_side = 0.5 * min(geometry.image_size) * geometry.pixel_size
    seen = min(1.0, field_radius(geometry) / half_side)
    return 0.8 * seen, 0.95 * seen


def _field(geometry: Geometry) -> Tensor:
    """(H, W) 1 inside the circle that every view sees, 0 outside, the covered share between."""
    x, y = geometry.pixel_centres()
    inside = field_radius(geometry) - torch.hypot(x[:, None], y[None, :])
    return (0.5 + inside / geometry.pixel_size).clamp(0, 1)
