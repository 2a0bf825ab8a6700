"""FBP and TV as methods to be scored."""

from __future__ import annotations

from functools import partial

from bdgd.classical import choose_tv_weight, fbp, tv
from bdgd.evaluation.benchmark import Method, head_validation_scans, validation_scans
from bdgd.operators import RayTransform

#: Weights tried for TV, from much too rough to much too smooth for 1 % noise.
TV_WEIGHTS = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4)
TV_VALIDATION_IMAGES, TV_VALIDATION_HEADS = 10, 4


def prepare_fbp(A: RayTransform, seed: int = 0) -> Method:
    """Filtered back-projection with the plain ramp, as in the paper: nothing to choose."""
    return Method(partial(fbp, A), {"filter": "ram-lak"})


def prepare_tv(A: RayTransform, seed: int = 0) -> Method:
    """Converged total variation; kind and weight of best mean PSNR on validation ellipses, and for Shepp-Logan on its relatives."""
    chosen, recipe = {}, {}
    for phantom, scans in (
        ("ellipses", validation_scans(A, TV_VALIDATION_IMAGES, seed)),
        ("heads", head_validation_scans(A, TV_VALIDATION_HEADS, seed)),
    ):
        curves = {kind: choose_tv_weight(A, scans, TV_WEIGHTS, isotropic=kind == "isotropic") for kind in ("isotropic", "anisotropic")}
        kind = max(curves, key=lambda kind: max(curves[kind].psnr))
        weight = curves[kind].weight
        chosen[phantom] = partial(tv, A, weight=weight, isotropic=kind == "isotropic")
        recipe[phantom] = {
            "kind": kind,
            "weight": weight,
            "chosen_on": f"{len(scans)} validation images",
            "curves": {kind: dict(zip(map(str, curve.weights), curve.psnr, strict=True)) for kind, curve in curves.items()},
        }
    told = ", ".join(f"{phantom} {entry['kind']} {entry['weight']:g}" for phantom, entry in recipe.items())
    return Method(chosen["ellipses"], {"chosen": told, **recipe}, chosen["heads"])
