"""Deep ensembles: the draws of several trained models together are the draws of one posterior.

Models that were trained from other weights and in another order agree where the training images decide and differ elsewhere. So
an ensemble of models with point weights has an epistemic variance too, from one draw per model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.inference.moments import Moments
from bdgd.inference.posterior import Origin, Posterior
from bdgd.inference.sampling import reconstruct
from bdgd.keyed import keyed_generator, seed_from
from bdgd.models import Reconstructor, ScaleMixture


def reconstruct_ensemble(
    models: Sequence[Reconstructor],
    y: Tensor,
    draws: int = 100,
    *,
    generator: torch.Generator | None = None,
    draw: str = "weights",
    precision: str = "auto",
) -> Posterior:
    """The posterior of the images behind sinograms y (B, 1, V, D) by all models, each asked for its share of the draws in turn.

    A model without randomness gives one draw, whatever its share. mean and epistemic are over all draws alike; the aleatoric
    part is the mean of the members'. There is no calibration, since those of the members hold for each alone.
    draws, generator, draw, precision: as for `reconstruct`; every member's draws have a key of their own.
    """
    shares = _shares(require_count(draws, "draws"), models)
    seed, all_draws, members = seed_from(generator), Moments(), list[Posterior]()
    for number, (model, share) in enumerate(zip(models, shares, strict=True)):
        own = keyed_generator(seed, "member", number)
        members.append(reconstruct(model, y, share, generator=own, draw=draw, precision=precision, on_draw=all_draws.add))

    def replay() -> Iterator[Tensor]:
        for member in members:
            yield from member.draws()

    mixture = _pooled([member.mixture or ScaleMixture.gaussian(member.aleatoric) for member in members])
    mean, epistemic, count = all_draws.mean(), all_draws.variance(), all_draws.count
    return Posterior(mean, epistemic, mixture.variance(), count, seed, replay, mixture, Origin(draw, unit=models[0].value_scale))


def _shares(draws: int, models: Sequence[Reconstructor]) -> list[int]:
    """How many draws each model makes: as equal as can be, the first ones one more."""
    if isinstance(models, Reconstructor):
        raise InputError("an ensemble takes a list of models, got a single one; bdgd.reconstruct takes that")
    if not models:
        raise InputError("an ensemble needs at least one model, got none")
    for model in models[1:]:
        if model.A.range_shape != models[0].A.range_shape or model.A.domain_shape != models[0].A.domain_shape:
            raise InputError(
                f"the models of an ensemble must be for the same scans: one maps {tuple(models[0].A.range_shape)} to "
                f"{tuple(models[0].A.domain_shape)}, another {tuple(model.A.range_shape)} to {tuple(model.A.domain_shape)}"
            )
        if None not in (model.geometry, models[0].geometry) and model.geometry != models[0].geometry:
            raise InputError("the models of an ensemble must be for the same scans, these have different geometries; choose models of one")
    if draws < len(models):
        raise InputError(f"draws must be at least {len(models)}, one for each model of the ensemble, got {draws}")
    return [draws // len(models) + (number < draws % len(models)) for number in range(len(models))]


def _pooled(mixtures: Sequence[ScaleMixture]) -> ScaleMixture:
    """One of the mixtures, each as likely: its variance is their mean. As many of one component and variance stay one."""
    if all(torch.equal(mixture.variances, mixtures[0].variances) and mixture.variances.shape[1] == 1 for mixture in mixtures):
        return mixtures[0]
    log_weights = torch.cat([mixture.log_weights for mixture in mixtures], 1) - math.log(len(mixtures))
    return ScaleMixture(log_weights, torch.cat([mixture.variances for mixture in mixtures], 1))
