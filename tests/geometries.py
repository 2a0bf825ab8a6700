"""The one list of geometries that the contracts of geometries, operators and FBP run on: a new case entered here is tested that minute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bdgd.operators import FanBeam, Geometry, ParallelBeam

RANDOM = np.random.default_rng(20).uniform(-4, 9, size=24).tolist()  # beyond one turn, in no order

#: Small on purpose: a numerical Jacobian of each takes milliseconds.
GEOMETRIES: dict[str, Geometry] = {
    "parallel-sparse": ParallelBeam.sparse(image_size=12, views=5),
    "parallel-limited": ParallelBeam.limited(image_size=(9, 8), degrees=7, pixel_size=0.25),
    "parallel-along-the-axes": ParallelBeam(image_size=(8, 11), angles=[0, math.pi / 4, math.pi / 2, math.pi, -math.pi / 2], detectors=15),
    "parallel-random-offset": ParallelBeam(
        image_size=(7, 13), angles=RANDOM[:6], detectors=17, detector_spacing=0.7, detector_offset=0.9, pixel_size=0.6
    ),
    "parallel-one-ray": ParallelBeam(image_size=5, angles=[0.3], detectors=1),
    "parallel-one-row": ParallelBeam(image_size=(1, 12), angles=[0.2, 1.1, 2.5], detectors=9, pixel_size=2.0),
    "parallel-coarse-detector": ParallelBeam(image_size=(10, 9), angles=RANDOM[6:11], detectors=4, detector_spacing=4.5),
    "fan-full-circle": FanBeam(image_size=9, angles=np.arange(6) * math.pi / 3, detectors=14, source_to_axis=20.0, source_to_detector=30.0),
    "fan-random-offset": FanBeam(
        image_size=(13, 8),
        angles=RANDOM[11:16],
        detectors=21,
        detector_spacing=0.35,
        detector_offset=-0.8,
        pixel_size=0.3,
        source_to_axis=7.1,
        source_to_detector=9.9,
    ),
    # The source is so near that one view has rays steeper in x and rays steeper in y; the detector lies on the axis.
    "fan-wide-angle": FanBeam(
        image_size=(8, 10), angles=RANDOM[16:20], detectors=25, detector_spacing=0.9, source_to_axis=7.0, source_to_detector=7.0
    ),
    "fan-truncated": FanBeam(image_size=(11, 12), angles=RANDOM[20:], detectors=5, source_to_axis=50.0, source_to_detector=75.0),
}
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())

#: the keyword arguments of one of each, to change one at a time
PARALLEL: dict[str, Any] = dict(image_size=(9, 12), angles=(0.1, 0.5, 2.0), detectors=15, detector_offset=0.5, pixel_size=0.7)
FAN: dict[str, Any] = dict(PARALLEL, source_to_axis=20.0, source_to_detector=35.0)
