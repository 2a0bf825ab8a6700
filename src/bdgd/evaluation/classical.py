"""FBP and TV as methods to be scored."""

from __future__ import annotations

from functools import partial

from bdgd.classical import fbp, tv
from bdgd.evaluation.benchmark import Method, validation_scans
from bdgd.metrics import psnr
from bdgd.operators import RayTransform

#: Weights tried for TV: half-decades around what suits 1 % noise.
TV_WEIGHTS = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
TV_VALIDATION_IMAGES = 10


def prepare_fbp(A: RayTransform, seed: int = 0) -> Method:
    """Filtered back-projection with the plain ramp, as in the paper: nothing to choose."""
    return Method(partial(fbp, A), {"filter": "ram-lak"})


def prepare_tv(A: RayTransform, seed: int = 0) -> Method:
    """Total variation with the weight of best mean PSNR on validation images."""
    scans = validation_scans(A, TV_VALIDATION_IMAGES, seed)
    curve = {weight: float(psnr(tv(A, scans.sinograms, weight=weight), scans.images).mean()) for weight in TV_WEIGHTS}
    weight = max(curve, key=curve.__getitem__)
    told = [{"weight": tried, "psnr": value} for tried, value in curve.items()]
    return Method(partial(tv, A, weight=weight), {"weight": weight, "chosen_on": f"{len(scans)} validation images", "curve": told})
