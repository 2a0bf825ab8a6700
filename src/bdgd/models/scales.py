"""The two scales that a model is built with, for a scanner of one's own: of its images' values and of the misfit's gradient."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.data import Scans, match
from bdgd.data.scanner import training_geometry
from bdgd.operators import Geometry, RayTransform

_LOOK = 128  # pixels along a side of the image that the value scale is read from
_SHORT_ARC = math.radians(115)  # below it FBP has no reliable values
_SHADOW = 0.1  # of the largest line integrals: a ray with more has met the object


def value_scale(scan: Scans, homogeneous: bool = False) -> float:
    """The image value that becomes 1: of a smoothed FBP from all views, inside the object, the median or the 95 % quantile.

    Inside is where it exceeds half of its 99 % quantile; the median is for objects of one material. From a short arc, whose FBP
    has no reliable values: the largest line integrals divided by the width of the object's shadow, median over the views.
    """
    assert scan.geometry is not None
    if scan.geometry.views == 1 or scan.geometry.arc[1] < _SHORT_ARC:
        value = _from_shadows(scan.sinograms[0, 0].double(), scan.geometry.axis_spacing)
    else:
        geometry, _ = training_geometry(scan.geometry, size=min(max(scan.geometry.image_size), _LOOK))
        image = fbp(RayTransform(geometry, strategy="matrix-free"), match(scan, geometry)[0].sinograms[:1].float(), filter="hann")
        smooth = F.avg_pool2d(image, 3, stride=1).flatten()
        inside = smooth[smooth > 0.5 * smooth.quantile(0.99)]
        value = float(inside.quantile(0.5 if homogeneous else 0.95)) if len(inside) else 0.0
    if not value > 0:
        raise InputError("the scan shows no object from which the scale of its values could be read; check that it holds line integrals")
    return value


def _from_shadows(y: Tensor, spacing: float) -> float:
    """From a sinogram (V, D) whose detectors are `spacing` apart at the axis."""
    shadow = y > _SHADOW * y.quantile(0.99)
    width = shadow.sum(1) * spacing
    values = y.quantile(0.98, dim=1) / width.clamp_min(spacing)
    return float(values[width > 0].median()) if bool((width > 0).any()) else 0.0


def gradient_scale(geometry: Geometry, device: torch.device) -> float:
    """||A|| with the pixel as the unit of length, for detectors as wide as a pixel: 61 and 123 for the paper's 30 and 120 views.

    What a block sees of the misfit's gradient should not depend on the unit or on how finely a detector is divided.
    """
    norm = RayTransform(geometry, device=device).norm(tolerance=1e-3)
    return norm / geometry.pixel_size * math.sqrt(geometry.axis_spacing / geometry.pixel_size)
