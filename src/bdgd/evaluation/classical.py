"""FBP and TV as methods to be scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bdgd.classical import choose_tv_weight, fbp, tv
from bdgd.evaluation.benchmark import FULL, NOISE, SETTINGS, Effort, Method, head_validation_scans, noise_of, validation_scans
from bdgd.operators import RayTransform

#: Weights tried for TV, from much too rough to much too smooth for 1 % noise; for other noise in proportion to it.
TV_WEIGHTS = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
TV_VALIDATION_IMAGES, TV_VALIDATION_HEADS = 10, 4
#: What that choice came to for the two tables, on anisotropic TV: quick results take the weights for ellipses and heads from here.
TV_QUICK_WEIGHTS = {"sparse30": (1e-4, 3e-5), "limited120": (3e-5, 1e-5)}


def prepare_fbp(A: RayTransform, seed: int = 0, effort: Effort = FULL) -> Method:
    """Filtered back-projection with the plain ramp, as in the paper: nothing to choose."""
    return Method(partial(fbp, A), {"filter": "ram-lak"})


def prepare_tv(A: RayTransform, seed: int = 0, effort: Effort = FULL) -> Method:
    """Converged total variation; kind and weight of best mean PSNR on validation ellipses, and for Shepp-Logan on its relatives."""
    if effort.quick:
        return _given_tv(A)
    chosen, recipe = {}, {}
    weights = [weight * (noise_of(A).relative / NOISE.relative) for weight in TV_WEIGHTS]
    for phantom, scans in (
        ("ellipses", validation_scans(A, TV_VALIDATION_IMAGES, seed)),
        ("heads", head_validation_scans(A, TV_VALIDATION_HEADS, seed)),
    ):
        curves = {kind: choose_tv_weight(A, scans, weights, isotropic=kind == "isotropic") for kind in ("isotropic", "anisotropic")}
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


def chosen_tv(A: RayTransform, cell: Sequence[dict[str, Any]], seed: int = 0, effort: Effort = FULL) -> Method:
    """TV with the kind and weight that the cell of a table records for ellipses; chosen here where there is no such cell."""
    if not cell:
        return prepare_tv(A, seed, effort)
    recipe = cell[0]["recipe"]["ellipses"]  # as prepare_tv writes it
    return Method(partial(tv, A, weight=recipe["weight"], isotropic=recipe["kind"] == "isotropic"), recipe)


def _given_tv(A: RayTransform) -> Method:
    """TV with what was chosen before, for the setting of this geometry; for any other geometry, as for sparse view."""
    setting = next((name for name in TV_QUICK_WEIGHTS if SETTINGS[name] == A.geometry), "sparse30")
    ellipses, heads = (partial(tv, A, weight=weight, isotropic=False) for weight in TV_QUICK_WEIGHTS[setting])
    phantoms = zip(("ellipses", "heads"), TV_QUICK_WEIGHTS[setting], strict=True)
    recipe = {name: {"kind": "anisotropic", "weight": weight, "chosen_on": "validation images, once for all"} for name, weight in phantoms}
    return Method(ellipses, {"chosen": f"as for {setting} in full", **recipe}, heads)
