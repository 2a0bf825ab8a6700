"""Where intervals miss: over the image, by their own width and on edges.

"95 % on average" must not hide edges that are always missed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError
from bdgd.inference.posterior import Posterior
from bdgd.metrics import OBJECT
from bdgd.metrics.streaming import require_alike
from bdgd.models.calibration import require_level

#: Edges of the strata of interval width, a factor of about two apart, in multiples of the model's value_scale.
WIDTHS = torch.logspace(-4, 0, 14, dtype=torch.float64)


class Miscoverage:
    """Counts of pixels and of misses of `interval(level)`, streamed over images of one size; memory does not grow with their number."""

    def __init__(self, level: float = 0.9, *, calibrated: bool | None = None):
        self.level, self.calibrated, self.images = require_level(level), calibrated, 0
        self._counts: dict[str, Tensor] = {}
        self.shares: list[float] = []  # of the object's pixels that were missed, per image

    def add(self, posterior: Posterior, truth: Tensor) -> None:
        """Posteriors of images whose truth (B, 1, H, W) is known."""
        require_alike(posterior.mean, truth)
        lower, upper = posterior.interval(self.level, calibrated=self.calibrated)
        unit = posterior.origin.unit
        missed, inside, edge = (truth < lower) | (truth > upper), truth / unit > OBJECT, edge_mask(truth / unit)
        self.images += len(truth)
        stratum = torch.bucketize((upper - lower).double() / unit, WIDTHS.to(truth.device))
        for name, pixels in (("missed", inside & missed), ("inside", inside)):
            self._count(f"map {name}", pixels.sum((0, 1)))
            self._count(f"width {name}", torch.bincount(stratum[pixels], minlength=len(WIDTHS) + 1))
            self._count(f"edge {name}", (pixels & edge).sum())
            self._count(f"background {name}", (~inside & missed).sum() if name == "missed" else (~inside).sum())
        counts = inside.sum((1, 2, 3)).clamp(min=1)
        self.shares += ((inside & missed).sum((1, 2, 3)) / counts).tolist()

    def _count(self, name: str, more: Tensor) -> None:
        self._counts[name] = self._counts.get(name, torch.zeros_like(more.cpu())) + more.cpu()

    def _share(self, kind: str) -> Tensor:
        """Missed pixels over all pixels; NaN where there are none."""
        if not self.images:
            raise InputError("nothing was counted yet; add posteriors with their truth first")
        return self._counts[f"{kind} missed"].double() / self._counts[f"{kind} inside"]

    def spatial(self) -> Tensor:
        """(H, W): the share of images whose interval misses the pixel, among those with an object there; NaN where none has."""
        return self._share("map")

    def by_width(self) -> tuple[Tensor, Tensor, Tensor]:
        """Edges (n - 1,) of the strata of interval width, and per stratum (n,) the share of the object's pixels missed and their number.

        Widths are in multiples of the model's value_scale.
        """
        return WIDTHS, self._share("width"), self._counts["width inside"]

    def on_edges(self) -> float:
        """The share missed of the object's pixels where the truth has an edge, pooled."""
        return float(self._share("edge"))

    def in_background(self) -> float:
        """The share missed of the pixels outside the object, pooled."""
        return float(self._share("background"))

    def per_image(self) -> Tensor:
        """(images,) the share missed of each image's object."""
        return torch.tensor(self.shares, dtype=torch.float64)


def edge_mask(truth: Tensor) -> Tensor:
    """(B, 1, H, W) pixels whose value differs from one of their four neighbours: a non-zero gradient of the truth."""
    padded = F.pad(truth, (1, 1, 1, 1), mode="replicate")
    middle = padded[..., 1:-1, 1:-1]
    neighbours = (padded[..., 2:, 1:-1], padded[..., :-2, 1:-1], padded[..., 1:-1, 2:], padded[..., 1:-1, :-2])
    return torch.stack([(neighbour - middle).abs() > OBJECT for neighbour in neighbours]).any(0)
