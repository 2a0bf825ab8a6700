"""Maps of epistemic variance: how they are shown, and how much of them lies where it should."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from bdgd.evaluation.figures import Panel, Scale
from bdgd.evaluation.lab import Look
from bdgd.metrics import auroc

_DECADES = 3  # of variance that the colours span at least
_LEAST = 1e-30  # variance below which there is none: where the projection onto x >= 0 makes every draw 0, it is exactly 0


def spread(look: Look) -> float:
    """The epistemic variance, averaged over all pixels and images."""
    return float(look.epistemic.double().mean())


def share_above(look: Look, level: float) -> float:
    """The share of all pixels whose epistemic variance is above a level."""
    return float((look.epistemic > level).double().mean())


def text_contrast(look: Look, mask: Tensor) -> dict[str, float]:
    """Mean variance inside the mask (1, 1, H, W) over that outside, and the AUROC of the map as its detector; means over images.

    Beside it the AUROC of the mean's gradient, which knows nothing of uncertainty: what any map of edges finds.
    """
    inside = mask.expand_as(look.epistemic)
    ratio = _ratio(look.epistemic, inside, ~inside)
    edges = torch.hypot(*torch.gradient(look.mean, dim=(2, 3)))
    found, plain = (float(auroc(values, mask).mean()) for values in (look.epistemic, edges))
    return {"text / rest": ratio, "AUROC": found, "AUROC of the mean's gradient": plain}


def edge_contrast(look: Look, edge: Tensor, flat: Tensor) -> dict[str, float]:
    """Mean variance along an edge over that of the flat pixels near it, and the AUROC of the map between the two; masks (H, W)."""
    ratio = _ratio(look.epistemic, edge.expand_as(look.epistemic), flat.expand_as(look.epistemic))
    return {"edge / flat": ratio, "AUROC of the edge": float(auroc(look.epistemic, edge, edge | flat).mean())}


def variance_scale(variances: Iterable[Tensor]) -> Scale:
    """One scale for all the maps, in whole decades: up to the largest variance but for the largest thousandth of its map's pixels,
    down to a decade below the median of the faintest map, where it is not exactly 0."""
    maps = [variance.double().flatten() for variance in variances]
    most = max(float(torch.quantile(values, 0.999)) for values in maps)
    medians = [float(values[values > 0].median()) for values in maps if bool((values > 0).any())]
    high, low = (math.log10(max(value, _LEAST)) for value in (most, min(medians, default=_LEAST)))
    return Scale("log10 of the epistemic variance", min(math.floor(low) - 1, math.ceil(high) - _DECADES), math.ceil(high), "magma")


def variance_panel(variance: Tensor, title: str, scale: Scale) -> Panel:
    """The first map of (B, 1, H, W) by its logarithm; what is below the scale has its lowest colour."""
    return Panel(variance[0, 0].double().clamp(min=10.0**scale.low).log10(), title, scale)


def _ratio(values: Tensor, above: Tensor, below: Tensor) -> float:
    """Mean of the values where `above` over their mean where `below`; huge, not infinite, where the latter is 0."""
    values = values.double()
    return float(values[above].mean()) / max(float(values[below].mean()), _LEAST)
