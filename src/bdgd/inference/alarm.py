"""The alarm: one traffic light per reconstruction, from the witnesses of `bdgd.inference.witnesses`.

Each becomes a surprise, -log of the share of ordinary (calibration) images that show as much of it. The images have a budget of
false alarms, shared by the witnesses: the score is the largest of surprise + log(share). Its threshold is set on calibration
images that the surprises have not seen, so for scans exchangeable with these the light is red with at most the stated probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdgd.checks import InputError, require_number
from bdgd.inference.posterior import Posterior
from bdgd.inference.residual import known_noise
from bdgd.inference.witnesses import SHARES, Witnesses, witnesses_of
from bdgd.models import Reconstructor
from bdgd.models.calibration import AlarmReference, Row

#: Up to this share of ordinary images a witness is described by its quantiles, beyond it by an exponential tail.
BODY, QUANTILES = 0.9, 91
#: The light is amber up to this many times the rate at which it is red.
AMBER = 2.0


@dataclass(frozen=True, eq=False)
class Alarm:
    """light: "green", "amber" or "red" per image. p: the share of ordinary images that score as high or higher (B,).

    surprises: per witness of the calibration, -log of its own such share (B,), 0 where it could not be measured; values: what each
    of them measured (B,). false_alarms: the budget of the calibration; shares: which part of it each witness has.
    """

    light: tuple[str, ...]
    p: Tensor
    surprises: dict[str, Tensor]
    values: dict[str, Tensor]
    false_alarms: float
    shares: dict[str, float]

    @property
    def raised(self) -> Tensor:
        """(B,) whether the light is red."""
        return torch.tensor([light == "red" for light in self.light])

    def reason(self, image: int = 0) -> str:
        """The witness that was most surprised, in view of its share."""
        return max(self.shares, key=lambda name: float(self.surprises[name][image]) + math.log(self.shares[name]))


def alarm(model: Reconstructor, y: Tensor, posterior: Posterior) -> Alarm:
    """The traffic light for each sinogram y (B, 1, V, D) and its posterior, by the calibration of the model.

    Red: at most the stated share of ordinary images (5 % by default) score so high. Amber: at most twice that share.
    """
    calibration = model.calibration
    if calibration is None or calibration.alarm is None:
        raise InputError(
            "the alarm compares with calibration images, of which this model has none or too few; calibrate it with"
            " model.with_calibration(bdgd.calibrate(model, scans))"
        )
    model.check(y)
    if len(y) != len(posterior.mean):
        raise InputError(f"the alarm needs each sinogram with its posterior, got {len(y)} sinograms and {len(posterior.mean)} posteriors")
    if posterior.origin.moved:
        raise InputError("the alarm judges the model's own images, not with a rest added; ask before bdgd.explain_rest")
    calibration.require(posterior.number, posterior.origin.draw, posterior.origin.complete)
    reference = calibration.alarm
    values = witnesses_of(model, y, posterior, known_noise(calibration.noise))
    surprises = surprises_of(values, reference)
    p = p_values(_combined(surprises, reference), reference.scores)
    rate = reference.false_alarms
    light = tuple("red" if share <= rate else "amber" if share <= AMBER * rate else "green" for share in p.tolist())
    known = {name: values[name] for name in reference.names if name in values}
    return Alarm(light, p, surprises, known, rate, dict(zip(reference.names, reference.shares, strict=True)))


def require_false_alarms(rate: float) -> float:
    """A share of ordinary scans that may ring."""
    rate = require_number(rate, "false_alarms")
    if not 0 < rate < 0.5:
        raise InputError(f"false_alarms must lie between 0 and 0.5, got {rate:g}; 0.05 lets one ordinary scan in twenty ring")
    return rate


def ordinary_reference(usual: Witnesses, checked: Witnesses, false_alarms: float) -> AlarmReference | None:
    """How ordinary images look: the quantiles of the first set, and the combined scores of the second, which sets the threshold.

    None where the second is so small that nothing could turn the light red: the smallest p-value of n images is 1 / (n + 1).
    """
    rate = require_false_alarms(false_alarms)
    found = usual.values()
    budget = sum(SHARES[name] for name in found)
    logs = _logs(torch.stack(list(found.values()), 1))  # (n, J)
    quantiles = torch.quantile(logs, torch.linspace(0, BODY, QUANTILES, dtype=torch.float64), dim=0).T.contiguous()  # (J, quantiles)
    edge = quantiles[:, -1]
    beyond = (logs - edge).clamp(min=0)
    tails = (beyond.sum(0) / (beyond > 0).sum(0).clamp(min=1)).clamp(min=1e-6)
    shares = tuple(SHARES[name] / budget for name in found)
    reference = AlarmReference(tuple(found), shares, tuple(map(_row, quantiles)), _row(tails), (), rate)
    scores = _combined(surprises_of(checked.values(), reference), reference).sort().values
    if rate * (len(scores) + 1) < 1 - 1e-9:
        return None
    return replace(reference, scores=_row(scores))


def surprises_of(values: dict[str, Tensor], reference: AlarmReference) -> dict[str, Tensor]:
    """Per witness of the reference (B,): -log of the share of ordinary images with a larger value; 0 where there is no value."""
    silent = torch.zeros_like(next(iter(values.values())), dtype=torch.float64)
    rows = zip(reference.names, reference.quantiles, reference.tails, strict=True)
    return {name: _surprise(values[name], row, tail) if name in values else silent for name, row, tail in rows}


def _surprise(values: Tensor, quantiles: Row, tail: float) -> Tensor:
    """(B,) by the quantiles of the logarithm, or the exponential tail beyond them."""
    v, grid = _logs(values), torch.tensor(quantiles, dtype=torch.float64)
    place = torch.searchsorted(grid, v.contiguous()).clamp(1, len(grid) - 1)
    low, high = grid[place - 1], grid[place]
    part = ((v - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    share = 1 - (place - 1 + part) * BODY / (len(grid) - 1)
    return torch.where(v > grid[-1], -math.log(1 - BODY) + (v - grid[-1]) / tail, -share.log())


def p_values(scores: Tensor, ordinary: tuple[float, ...]) -> Tensor:
    """(B,) (1 + number of ordinary scores at least as high) / (n + 1): at most a with probability a, for exchangeable images."""
    known = torch.tensor(ordinary, dtype=torch.float64)
    return (1 + (known[None] >= scores[:, None]).sum(1)).double() / (len(known) + 1)


def _combined(surprises: dict[str, Tensor], reference: AlarmReference) -> Tensor:
    columns = torch.stack([surprises[name] for name in reference.names], 1)  # (B, J)
    return (columns + torch.tensor(reference.shares, dtype=torch.float64).log()).amax(1)


def _logs(values: Tensor) -> Tensor:
    return values.double().clamp(min=1e-30).log()


def _row(values: Tensor) -> Row:
    """Plain numbers of seven digits: a model's file has a thousand of them, and they rest on a few hundred images."""
    return tuple(float(f"{value:.7g}") for value in values.tolist())
