"""What the tests of calibrations share: scans of the small operator, and how many draws the fixture `calibration` is made for."""

from __future__ import annotations

import torch
from toys import small_model, small_transform

import bdgd
from bdgd.data import GaussianNoise, Scans, random_ellipses, simulate
from bdgd.models import Calibration

DRAWS = 3


def small_scans(count: int, seed: int = 0) -> Scans:
    g = torch.Generator().manual_seed(seed)
    return simulate(small_transform(), random_ellipses(count, 16, generator=g), GaussianNoise(0.01), generator=g)


def small_calibration() -> Calibration:
    return bdgd.calibrate(small_model(), small_scans(80), draws=DRAWS, strata=3, generator=torch.Generator().manual_seed(0))
