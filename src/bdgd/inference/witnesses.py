"""What the alarm asks: witnesses, each a number per image that is larger the less ordinary the image or its data is.

    misfit       mean of ((A mean - y) / noise std)^2: chi-square per measurement, about 1 where the image explains the data
    structure    the same after averaging over 9 neighbouring detectors, times 9: what is left is not noise but has a shape
    uncertainty  the largest mean of the predicted std over a window of 17 x 17 pixels
    invisible    the largest mean over such a window of |mean - A^+ A mean|, the part of the image that the operator cannot see
    detail       the largest share of a window of 25 x 25 pixels that is filled with structure finer than 5 pixels, whatever its contrast
    axis         how many detectors the axis about which the centre of mass moves is from that of the geometry; parallel beams only

Misfit and structure ask the data about the image; axis asks the data alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.data import Noise
from bdgd.data.axis import centre_of_mass_offset, has_centre_of_mass_offset
from bdgd.inference.posterior import Posterior
from bdgd.inference.residual import noise_std
from bdgd.models import Reconstructor
from bdgd.operators import LinearOperator

#: The witnesses with their shares of the budget of false alarms; where one cannot be measured the others have it all. A few ordinary
#: images in a hundred are fitted badly and would use it up by their misfit; what the data cannot object to needs the larger part.
SHARES = {"misfit": 0.05, "structure": 0.05, "uncertainty": 0.15, "invisible": 0.15, "detail": 0.55, "axis": 0.05}
#: What each of them says of an image that surprises it.
IN_WORDS = {
    "misfit": "the image leaves more of the scan unexplained",
    "structure": "what the image leaves of the scan has a shape and is no noise",
    "uncertainty": "the standard deviation is large over a whole part of the image",
    "invisible": "the image shows what the scan cannot confirm",
    "detail": "a part of the image is full of fine structure",
    "axis": "the axis of rotation is not where the geometry has it",
}
#: Conjugate-gradient steps towards A^+ A x: the witness changes by about a per cent with more.
STEPS = 15
#: Contrast that counts half in `detail`: a few times the noise of a reconstruction.
FAINT = 0.01
#: Detectors at each end of a view that see air: one alone would add its noise to the mass.
AIR = 4


@torch.no_grad()
def witnesses_of(model: Reconstructor, y: Tensor, posterior: Posterior, noise: Noise | None) -> dict[str, Tensor]:
    """What each witness of `SHARES` that can be measured says, (B,) float64 on the CPU.

    noise: that of the calibration scans. Where its law is not known, misfit and structure compare with the residual's own noise.
    """
    mean = posterior.mean
    residual = model.A(mean) - y
    std = noise_std(noise, y)  # the law at what was measured, since the clean sinogram is not known
    z = residual / (residual_noise(residual) if std is None else std).clamp(min=1e-12)
    z = z.reshape(len(z), -1, z.shape[-1])  # (B, views, D): sinograms of operators that are no ray transform may have any shape
    smooth = F.avg_pool1d(z, 9, 1, 4, count_include_pad=False) * 3.0  # of independent values again variance 1
    unseen = (mean - seen_part(model.A, mean)).abs()
    measured = {
        "misfit": z.square().mean((1, 2)),
        "structure": smooth.square().mean((1, 2)),
        "uncertainty": _largest_mean(posterior.std, 17),
        "invisible": _largest_mean(unseen, 17),
        "detail": _largest_mean(fine_detail(mean / model.value_scale), 25),
    }
    if (shift := axis_shift(model.A, y)) is not None:
        measured["axis"] = shift
    return {name: value.double().cpu() for name, value in measured.items()}


def residual_noise(residual: Tensor) -> Tensor:
    """(B, 1, ...) noise std where its law is not known: from second differences along the detector, by their median, which ignores edges.

    Of what the image leaves of the scan, not of the scan (`bdgd.data.estimates`): with the object gone the median is low enough.
    """
    second = residual[..., 2:] - 2 * residual[..., 1:-1] + residual[..., :-2]  # of independent noise: 6 times its variance
    level = second.abs().flatten(1).median(1).values / (0.6745 * 6**0.5)
    return level.reshape(-1, *[1] * (residual.ndim - 1))


def seen_part(A: LinearOperator, x: Tensor, steps: int = STEPS) -> Tensor:
    """A^+ A x, the part of images x (B, 1, H, W) that their sinograms fix: conjugate gradients on |A s - A x|^2 from 0.

    Every step stays in the range of A', so what it cannot reach is the null space, and what it reaches late is close to it.
    """
    seen, residual = torch.zeros_like(x), A(x)
    direction = gradient = A.T(residual)
    size = _squares(gradient)
    for _ in range(steps):
        image = A(direction)
        step = size / _squares(image).clamp(min=1e-30)
        seen, residual = seen + _times(step, direction), residual - _times(step, image)
        gradient = A.T(residual)
        size, before = _squares(gradient), size
        direction = gradient + _times(size / before.clamp(min=1e-30), direction)
    return seen


def _squares(v: Tensor) -> Tensor:
    """(B,) |v|^2 of v (B, ...)."""
    return v.square().flatten(1).sum(1)


def _times(factors: Tensor, v: Tensor) -> Tensor:
    """Each v (B, ...) times its factor (B,)."""
    return factors.reshape(-1, *[1] * (v.ndim - 1)) * v


def fine_detail(x: Tensor) -> Tensor:
    """|x - its median over 5 x 5 pixels|, from 0 to 1 with FAINT at a half: straight edges pass the median, thin strokes do not."""
    windows = F.unfold(F.pad(x, (2, 2, 2, 2), mode="replicate"), 5)  # (B, 25, P)
    fine = (x - windows.median(1).values.reshape(x.shape)).abs()
    return fine / (fine + FAINT)


def _largest_mean(v: Tensor, window: int) -> Tensor:
    """(B,) the largest mean of v (B, 1, H, W) over windows of that many pixels a side, zero outside the image."""
    reach = window // 2
    rows = F.avg_pool2d(v, (window, 1), 1, (reach, 0))  # one axis after the other: 2 n instead of n^2 operations
    return F.avg_pool2d(rows, (1, window), 1, (0, reach)).amax((1, 2, 3))


def axis_shift(A: LinearOperator, y: Tensor) -> Tensor | None:
    """(B,) how many detectors the axis in the sinograms y is from that of A's geometry; None where they do not show it.

    The air is taken off for the whole scan at once, from the lower end of the detector: per view its noise would triple the scatter.
    """
    geometry = getattr(A, "geometry", None)
    if geometry is None or not has_centre_of_mass_offset(geometry):
        return None
    air = torch.minimum(y[..., :AIR].mean((1, 2, 3), keepdim=True), y[..., -AIR:].mean((1, 2, 3), keepdim=True))
    return (centre_of_mass_offset(y - air, geometry) - geometry.detector_offset).abs() / geometry.detector_spacing


class Witnesses:
    """What the witnesses measured on a set of images, batch after batch."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Tensor]] = []

    def add(self, values: dict[str, Tensor]) -> None:
        self._parts.append(values)

    def values(self) -> dict[str, Tensor]:
        """Each witness by its name, (n,)."""
        return {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
