"""FBP of a measured parallel-beam scan whose axis of rotation is off the detector's middle: right, and four detectors off.

python examples/tooth.py tooth_parallel.npz tooth.png    (sino (B, V, D), theta_deg (V,), centre_px; the tooth scan of TomoPy)
"""

from __future__ import annotations

import sys

import numpy as np
import torch

import bdgd
from bdgd.evaluation import Panel, Scale, panels, save_figure

source, picture = sys.argv[1:]
scan = np.load(source)
y = torch.from_numpy(scan["sino"])[:1, None]  # (1, 1, V, D)
detectors, axis = y.shape[-1], float(scan["centre_px"])


def reconstruct(axis: float) -> torch.Tensor:
    """The slice (H, W) with the axis of rotation at that detector; the unit of length is one detector."""
    offset = (detectors - 1) / 2 - axis
    geometry = bdgd.ParallelBeam(
        image_size=512, angles=np.deg2rad(scan["theta_deg"]), detectors=detectors, detector_offset=offset, pixel_size=1.0
    )
    return bdgd.fbp(bdgd.RayTransform(geometry, strategy="matrix-free"), y, filter="hann")[0, 0]


images = {f"axis at detector {value:g}": reconstruct(value) for value in (axis, axis + 4)}
scale = Scale("attenuation per detector width", 0.0, float(images[f"axis at detector {axis:g}"].quantile(0.998)))
save_figure(panels([[Panel(image, title, scale) for title, image in images.items()]]), picture)
