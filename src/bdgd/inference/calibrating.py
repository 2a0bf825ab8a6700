"""Calibrating: from scans that nothing else has seen to the value that makes a model's intervals, regions and alarm hold.

The scans are cut into two halves. The first shapes the correction (quantiles per stratum of predicted std, what the
alarm's witnesses usually say); the second, which the shape has not seen, sets every threshold by risk control.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_choice, require_count
from bdgd.data import Scans
from bdgd.inference.alarm import ordinary_reference, require_false_alarms
from bdgd.inference.calibrating_regions import DiscScores
from bdgd.inference.posterior import Posterior
from bdgd.inference.risk_control import LEVELS, ScoreHistogram, allowed_loss, stratified_thresholds
from bdgd.inference.sampling import drawn, reconstruct_and_keep
from bdgd.inference.witnesses import Witnesses, witnesses_of
from bdgd.keyed import keyed_generator, seed_from
from bdgd.metrics import OBJECT
from bdgd.models import Calibration, Reconstructor
from bdgd.models.calibration import Row, require_level

#: Strata of the predicted standard deviation.
STRATA = 8
#: Fewer images than this cannot hold even 90 % with a half of them.
LEAST_IMAGES = 20


def calibrate(
    model: Reconstructor,
    scans: Scans,
    *,
    levels: Row = LEVELS,
    draws: int = 100,
    draw: str = "weights",
    strata: int = STRATA,
    false_alarms: float = 0.05,
    generator: torch.Generator | None = None,
    report: Callable[[int], None] | None = None,
) -> Calibration:
    """The calibration of a model on scans with known images, which must be of no other use: not for training, choosing or testing.

    Guaranteed, for a new scan exchangeable with these: on average over scans at most 1 - level of the object's pixels (truth above a
    millionth of the model's value_scale) lie outside `interval(level)`, for each of the `levels`; and at most `false_alarms` of ordinary
    scans turn the light red (with too few scans for that, below 38 for 5 %, there is no alarm). Not guaranteed: every single image or
    kind of pixel, other objects, noise, geometries or draws.
    report: called with 1 after every image.
    """
    scans = _prepared(model, scans)
    levels = _levels(levels, len(scans))
    require_choice(draw, ("weights", "pixels"), "draw")
    draws, strata = drawn(model, draws), require_count(strata, "strata")
    require_false_alarms(false_alarms)
    plain, seed, middle = model.with_calibration(None), seed_from(generator), (len(scans) + 1) // 2
    unit = model.value_scale  # what is counted are multiples of it, so that nothing depends on the unit of the images

    def posteriors(part: Scans, name: str) -> Iterator[tuple[Tensor, Tensor, Posterior]]:
        # One by one, each scan with draws of its own: with its draws it is then exchangeable with a new scan and that scan's draws.
        # Under draws that all calibration scans share, the guarantee would hold for reconstructions with these very draws alone.
        for number, (y, truth) in enumerate(_one_by_one(part)):
            own = keyed_generator(seed, "calibrate", name, number)
            yield y, truth, reconstruct_and_keep(plain, y, draws, generator=own, draw=draw)  # regions replay the draws
            if report:
                report(1)

    shape, usual = ScoreHistogram(), Witnesses()
    for y, truth, posterior in posteriors(scans[:middle], "shape"):
        add_pixels(shape, posterior, truth, unit)
        usual.add(witnesses_of(plain, y, posterior, scans.noise))
    guarantee, discs, checked = ScoreHistogram(), DiscScores(seed, unit), Witnesses()
    for y, truth, posterior in posteriors(scans[middle:], "guarantee"):
        add_pixels(guarantee, posterior, truth, unit)
        discs.add(posterior, truth)
        checked.add(witnesses_of(plain, y, posterior, scans.noise))

    for half in (shape, guarantee):
        if float(half.mean().sum()) == 0:
            raise InputError(f"no image of half of the scans has a value above {OBJECT * unit:g}, so there is no object to calibrate on")
    held, std_edges, z = stratified_thresholds(shape, guarantee, levels, strata)
    geometry = model.geometry
    return Calibration(
        draws=draws,
        draw=draw,
        noise=scans.noise.to_dict() if scans.noise is not None else None,
        geometry=geometry.to_dict() if geometry is not None else None,
        weights=model.fingerprint(),
        images=guarantee.images,
        levels=held,
        std_edges=tuple(edge * unit for edge in std_edges),
        z=z,
        regions=discs.calibration(levels),
        alarm=ordinary_reference(usual, checked, false_alarms),
        arguments=model.arguments(),
    )


def _levels(levels: Row, scans: int) -> Row:
    """The levels, rising, once half of the scans can hold at least the lowest; those that they cannot hold are left out later."""
    rising = tuple(sorted({require_level(level) for level in levels}))
    if not rising:
        raise InputError("calibrating needs at least one level, such as levels=(0.5, 0.9)")
    if allowed_loss(rising[0], scans // 2) < -1e-9:
        needed = 2 * math.ceil(1 / (1 - rising[0]) - 1 - 1e-9)
        raise InputError(f"calibrating at level {rising[0]:g} needs at least {needed} scans, got {scans}; take more, or a lower level too")
    return rising


def add_pixels(histogram: ScoreHistogram, posterior: Posterior, truth: Tensor, unit: float = 1.0) -> None:
    """Count the object's pixels of a batch by their predicted std, in multiples of `unit`, and the z of their error.

    The background is left out: it is unknown at inference, but most of it is exact, so it could only make intervals too narrow elsewhere.
    """
    z = posterior.predictive.z(truth - posterior.mean)
    histogram.add(posterior.std / unit, z, truth / unit > OBJECT)


def _one_by_one(scans: Scans) -> Iterator[tuple[Tensor, Tensor]]:
    """Each sinogram (1, 1, V, D) with its image (1, 1, H, W)."""
    assert scans.images is not None
    return zip(scans.sinograms.split(1), scans.images.split(1), strict=True)


def _prepared(model: Reconstructor, scans: Scans) -> Scans:
    """The scans on the model's device, once they are known to fit it, to have images and to be enough."""
    if not isinstance(scans, Scans):
        raise InputError(f"calibrating needs Scans, images with their sinograms, got {type(scans).__name__}; make them with bdgd.simulate")
    if scans.images is None:
        raise InputError("calibrating needs scans with their true images; these have none: simulate them with bdgd.simulate")
    if len(scans) < LEAST_IMAGES:
        raise InputError(f"calibrating needs at least {LEAST_IMAGES} scans, got {len(scans)}; 1000 or more hold 99.5 % as well")
    if model.scale_head is None and not bool(model.noise_level.isfinite()):
        raise InputError("calibrating needs a trained model, this one has no noise level; train it first")
    geometry = model.geometry
    if scans.geometry is not None and geometry is not None and scans.geometry != geometry:
        raise InputError("the scans were made with another geometry than the model's; calibrate on scans of the model's geometry")
    model.check(scans.sinograms[:1].to(model.device))
    require_batch(scans.images, model.A.domain_shape, "the true image")
    return replace(scans.to(model.device))
