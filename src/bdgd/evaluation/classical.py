"""FBP and TV as methods to be scored."""

from __future__ import annotations

from functools import partial

from bdgd.classical import choose_tv_weight, fbp, tv
from bdgd.evaluation.benchmark import Method, validation_scans
from bdgd.operators import RayTransform

#: Weights tried for TV, from much too rough to much too smooth for 1 % noise.
TV_WEIGHTS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
TV_VALIDATION_IMAGES = 10


def prepare_fbp(A: RayTransform, seed: int = 0) -> Method:
    """Filtered back-projection with the plain ramp, as in the paper: nothing to choose."""
    return Method(partial(fbp, A), {"filter": "ram-lak"})


def prepare_tv(A: RayTransform, seed: int = 0) -> Method:
    """Converged isotropic total variation with the weight of best mean PSNR on validation images."""
    scans = validation_scans(A, TV_VALIDATION_IMAGES, seed)
    chosen = choose_tv_weight(A, scans, TV_WEIGHTS)
    curve = [{"weight": weight, "psnr": value} for weight, value in zip(chosen.weights, chosen.psnr, strict=True)]
    recipe = {"weight": chosen.weight, "chosen_on": f"{len(scans)} validation images", "curve": curve}
    return Method(partial(tv, A, weight=chosen.weight), recipe)
