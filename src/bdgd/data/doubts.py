"""What a sinogram's values give away: signs that they are no line integrals. A doubt is said, and nothing is changed for it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

_ENDS = 35  # the outermost 1 / 35 of the detectors at either end, where a scan that sees its whole object sees air
_NEARLY = 0.95  # of the values that only a tenth exceeds
_OBJECT = 0.8  # rays that read less than this share of what the ends read have met something


def doubts_about(sinograms: Tensor, stored: np.dtype) -> tuple[str, ...]:
    """A sentence for each sign that sinograms (B, 1, V, D), which a file holds as `stored`, are not -log of the transmitted share.

    Judged by the first slice; one that is not finite is an error of its own.
    Line integrals are least where a ray meets nothing; counts, and the share that is transmitted, are largest there. Line integrals
    are no whole numbers, and no more negative than the noise makes them.
    """
    y = sinograms[0, 0].double().cpu().numpy()
    if not np.isfinite(y).all():
        return ()
    remedy = "if these are counts or transmitted shares, name them counts and give flat (1 for shares)"
    said = (
        (_brightest_at_the_ends(y), f"the ends of the detector, which should see air, read the most: {remedy}"),
        (stored.kind in "iu", "the sinogram holds whole numbers, which line integrals are not: undo their scaling, or name them counts"),
        (-float(y.min()) > 2 * float(y.max()), "the sinogram is negative: line integrals are -log of the transmitted share, not log"),
    )
    return tuple(text for doubtful, text in said if doubtful)


def _brightest_at_the_ends(y: np.ndarray) -> bool:
    """Whether both ends of the detector read about as much as any ray, and others clearly less."""
    outer = max(1, y.shape[-1] // _ENDS)
    ends = min(float(np.median(y[..., :outer])), float(np.median(y[..., -outer:])))
    low, high = np.quantile(y, (0.1, 0.9))
    return ends > 0 and ends >= _NEARLY * float(high) and float(low) < _OBJECT * ends
