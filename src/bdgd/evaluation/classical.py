"""FBP and TV as methods to be scored."""

from __future__ import annotations

from functools import partial

from bdgd.classical import choose_tv_weight, fbp, tv
from bdgd.evaluation.benchmark import Method, head_validation_scans, validation_scans
from bdgd.operators import RayTransform

#: Weights tried for TV, from much too rough to much too smooth for 1 % noise.
TV_WEIGHTS = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4)
TV_VALIDATION_IMAGES, TV_VALIDATION_HEADS = 10, 4
#: Relative primal-dual gap; at 1e-3 some limited-view images are still 0.3 dB from where they end.
TV_TOLERANCE = 3e-4


def prepare_fbp(A: RayTransform, seed: int = 0) -> Method:
    """Filtered back-projection with the plain ramp, as in the paper: nothing to choose."""
    return Method(partial(fbp, A), {"filter": "ram-lak"})


def prepare_tv(A: RayTransform, seed: int = 0) -> Method:
    """Converged isotropic total variation; the weight of best mean PSNR on validation ellipses, and for Shepp-Logan on its relatives."""
    chosen, recipe = {}, {}
    for kind, scans in (
        ("ellipses", validation_scans(A, TV_VALIDATION_IMAGES, seed)),
        ("heads", head_validation_scans(A, TV_VALIDATION_HEADS, seed)),
    ):
        result = choose_tv_weight(A, scans, TV_WEIGHTS, tolerance=TV_TOLERANCE)
        chosen[kind] = partial(tv, A, weight=result.weight, tolerance=TV_TOLERANCE)
        curve = [{"weight": weight, "psnr": value} for weight, value in zip(result.weights, result.psnr, strict=True)]
        recipe[kind] = {"weight": result.weight, "chosen_on": f"{len(scans)} validation images", "curve": curve}
    return Method(chosen["ellipses"], {"weights": [recipe[kind]["weight"] for kind in recipe], **recipe}, chosen["heads"])
