"""The alarm: one traffic light per reconstruction, from witnesses of which two ask the measured data alone.

    misfit       mean of ((A mean - y) / noise std)^2: chi-square per measurement, about 1 where the image explains the data
    structure    the same after averaging over 9 neighbouring detectors, times 9: what is left is not noise but has a shape
    uncertainty  the largest mean of the predicted std over a window of 17 x 17 pixels
    invisible    the largest mean over such a window of |mean - A^+ A mean|, the part of the image that the operator cannot see
    detail       the largest share of a window of 25 x 25 pixels that is filled with structure finer than 5 pixels, whatever its contrast

Each becomes a surprise, -log of the share of ordinary (calibration) images that show as much of it. The images have a budget of
false alarms, shared by the witnesses: the score is the largest of surprise + log(share). Its threshold is set on calibration
images that the surprises have not seen, so for scans exchangeable with these the light is red with at most the stated probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.data import Noise, noise_from_dict
from bdgd.inference.posterior import Posterior
from bdgd.models import Reconstructor
from bdgd.models.calibration import AlarmReference
from bdgd.operators import LinearOperator

#: The witnesses with their shares of the budget of false alarms. A few ordinary images in a hundred are fitted badly and would use it
#: all up by their misfit; what else the data cannot object to, since it fits them, needs the larger part.
SHARES = {"misfit": 0.05, "structure": 0.05, "uncertainty": 0.15, "invisible": 0.15, "detail": 0.6}
#: Conjugate-gradient steps towards A^+ A x: the fraction changes by about a per cent beyond.
STEPS = 15
#: Contrast that counts half in `detail`: a few times the noise of a reconstruction.
FAINT = 0.01
#: Above this share of ordinary images a witness is described by its quantiles, beyond it by an exponential tail.
BODY, QUANTILES = 0.9, 91
#: The light is amber up to this many times the rate at which it is red.
AMBER = 2.0


@dataclass(frozen=True, eq=False)
class Alarm:
    """light: "green", "amber" or "red" per image. p: the share of ordinary images that score as high or higher (B,).

    surprises: per witness, -log of its own such share (B,); values: what it measured (B,).
    """

    light: tuple[str, ...]
    p: Tensor
    surprises: dict[str, Tensor]
    values: dict[str, Tensor]
    false_alarms: float

    @property
    def raised(self) -> Tensor:
        """(B,) whether the light is red."""
        return torch.tensor([light == "red" for light in self.light])

    def reason(self, image: int = 0) -> str:
        """The witness that was most surprised, in view of its share."""
        return max(SHARES, key=lambda name: float(self.surprises[name][image]) + math.log(SHARES[name]))


def alarm(model: Reconstructor, y: Tensor, posterior: Posterior) -> Alarm:
    """The traffic light for each sinogram y (B, 1, V, D) and its posterior, by the calibration of the model.

    Red: at most the stated share of ordinary images (5 % by default) score so high. Amber: at most twice that share.
    """
    calibration = model.calibration
    if calibration is None or calibration.alarm is None:
        raise InputError("the alarm compares with calibration images; calibrate with model.with_calibration(bdgd.calibrate(model, scans))")
    calibration.require(posterior.number, posterior.origin.draw, posterior.origin.complete)
    noise = noise_from_dict(calibration.noise) if calibration.noise is not None else None
    reference = calibration.alarm
    values = witnesses_of(model, y, posterior, noise)
    surprises = surprises_of(values, reference)
    p = p_values(_combined(surprises, reference), reference.scores)
    rate = reference.false_alarms
    light = tuple("red" if share <= rate else "amber" if share <= AMBER * rate else "green" for share in p.tolist())
    columns = range(len(reference.names))
    return Alarm(
        light,
        p,
        {reference.names[j]: surprises[:, j] for j in columns},
        {reference.names[j]: values[:, j] for j in columns},
        rate,
    )


@torch.no_grad()
def witnesses_of(model: Reconstructor, y: Tensor, posterior: Posterior, noise: Noise | None) -> Tensor:
    """(B, 5) float64 on the CPU: what the witnesses of `SHARES` measure, in their order."""
    mean = posterior.mean
    residual = model.A(mean) - y
    z = residual / (noise_std(y, noise) if noise is not None else estimated_noise(residual))
    smooth = F.avg_pool2d(z, (1, 9), 1, (0, 4), count_include_pad=False) * 3.0  # of independent values again variance 1
    unseen = (mean - seen_part(model.A, mean)).abs()
    measured = (
        z.square().mean((1, 2, 3)),
        smooth.square().mean((1, 2, 3)),
        _largest_mean(posterior.std, 17),
        _largest_mean(unseen, 17),
        _largest_mean(fine_detail(mean / model.value_scale), 25),
    )
    return torch.stack([value.double().cpu() for value in measured], 1)


def noise_std(y: Tensor, noise: Noise) -> Tensor:
    """The standard deviation of the noise in sinograms y, broadcastable to them, by the noise's own law at the measured values."""
    law = noise.to_dict()
    if law["kind"] == "gaussian":
        # Images are not negative, so the mean of the clean |y| is that of the clean y, which noise leaves unbiased.
        return (law["relative"] * y.mean((1, 2, 3), keepdim=True).abs()).clamp(min=1e-12)
    # -log(I) / attenuation with I ~ Poisson: variance 1 / (attenuation^2 * expected count)
    return torch.exp(0.5 * law["attenuation"] * y) / (law["attenuation"] * law["photons"] ** 0.5)


def estimated_noise(residual: Tensor) -> Tensor:
    """(B, 1, 1, 1) noise std where nobody stated it: from second differences along the detector, by their median, which ignores edges."""
    second = residual[..., 2:] - 2 * residual[..., 1:-1] + residual[..., :-2]  # of independent noise: 6 times its variance
    return (second.abs().flatten(1).median(1).values / (0.6745 * 6**0.5)).clamp(min=1e-12)[:, None, None, None]


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
        seen, residual = seen + step * direction, residual - step * image
        gradient = A.T(residual)
        size, before = _squares(gradient), size
        direction = gradient + size / before.clamp(min=1e-30) * direction
    return seen


def _squares(v: Tensor) -> Tensor:
    return v.square().sum((1, 2, 3), keepdim=True)


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


class Witnesses:
    """What the witnesses measured on a set of images."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, values: Tensor) -> None:
        self._parts.append(values)

    def values(self) -> Tensor:
        """(n, 5)."""
        return torch.cat(self._parts)


def ordinary_reference(usual: Witnesses, checked: Witnesses, false_alarms: float) -> AlarmReference:
    """How ordinary images look: the quantiles of the first set, and the combined scores of the second, which sets the threshold."""
    rate = require_number(false_alarms, "false_alarms")
    if not 0 < rate < 0.5:
        raise InputError(f"false_alarms must lie between 0 and 0.5, got {rate:g}; 0.05 lets one ordinary scan in twenty ring")
    logs = _logs(usual.values())
    quantiles = torch.quantile(logs, torch.linspace(0, BODY, QUANTILES, dtype=torch.float64), dim=0).T.contiguous()  # (J, quantiles)
    edge = quantiles[:, -1]
    beyond = (logs - edge).clamp(min=0)
    tails = (beyond.sum(0) / (beyond > 0).sum(0).clamp(min=1)).clamp(min=1e-6)
    reference = AlarmReference(tuple(SHARES), tuple(SHARES.values()), _table(quantiles), tuple(tails.tolist()), (), rate)
    scores = _combined(surprises_of(checked.values(), reference), reference).sort().values
    return replace(reference, scores=tuple(scores.tolist()))


def surprises_of(values: Tensor, reference: AlarmReference) -> Tensor:
    """(B, J): -log of the share of ordinary images with a larger value, by the quantiles or the exponential tail beyond them."""
    logs = _logs(values)
    columns = []
    for j, (row, tail) in enumerate(zip(reference.quantiles, reference.tails, strict=True)):
        grid = torch.tensor(row, dtype=torch.float64)
        v = logs[:, j]
        place = torch.searchsorted(grid, v.contiguous()).clamp(1, len(grid) - 1)
        low, high = grid[place - 1], grid[place]
        part = ((v - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        share = 1 - (place - 1 + part) * BODY / (len(grid) - 1)
        columns.append(torch.where(v > grid[-1], -math.log(1 - BODY) + (v - grid[-1]) / tail, -share.log()))
    return torch.stack(columns, 1)


def p_values(scores: Tensor, ordinary: tuple[float, ...]) -> Tensor:
    """(B,) (1 + number of ordinary scores at least as high) / (n + 1): at most a with probability a, for exchangeable images."""
    known = torch.tensor(ordinary, dtype=torch.float64)
    return (1 + (known[None] >= scores[:, None]).sum(1)).double() / (len(known) + 1)


def _combined(surprises: Tensor, reference: AlarmReference) -> Tensor:
    return (surprises + torch.tensor(reference.shares, dtype=torch.float64).log()).amax(1)


def _logs(values: Tensor) -> Tensor:
    return values.double().clamp(min=1e-30).log()


def _table(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
