"""The methods that can be scored, by name. Adding one is one line here.

A method comes as a function of the operator and a seed that prepares it: loads it, or chooses what is to be chosen
on validation scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import named_generator
from bdgd.evaluation.benchmark import FULL, SETTINGS, Effort, Method
from bdgd.evaluation.classical import prepare_fbp, prepare_tv
from bdgd.evaluation.strata import PosteriorLike
from bdgd.inference import Posterior, reconstruct
from bdgd.models import geometry_of, load, pretrained
from bdgd.operators import RayTransform

Prepare = Callable[..., Method]  # (A, seed, effort), the last two with defaults

METHODS: dict[str, Prepare] = {
    "fbp": prepare_fbp,
    "tv": prepare_tv,
}


def find_method(name: str) -> Prepare:
    """The method of that name; any other name is that of a shipped model, or the file of one, and must be there."""
    if name in METHODS:
        return METHODS[name]
    if name not in pretrained() and not Path(name).is_file():
        known = ", ".join([*METHODS, *pretrained()])
        raise InputError(f"METHOD must be one of {known}, or the file of a trained model, got {name!r}; check its name")
    return partial(prepare_model, name)


def setting_of(names: Iterable[str]) -> str:
    """The setting that the trained models among these methods were made for; sparse view where there are none."""
    for name in names:
        if name not in METHODS:
            geometry = geometry_of(name)
            found = next((setting for setting, known in SETTINGS.items() if known == geometry), None)
            if found is None:
                raise InputError(
                    f"the model {name} is for a geometry of its own, which has no test set;"
                    " add --scans FILE, a file of bdgd simulate --geometry SCAN"
                )
            return found
    return "sparse30"


def require_setting(names: Iterable[str], setting: str) -> None:
    """Raise, before any work is done, where one of these is a trained model for another geometry than the setting's."""
    for name in names:
        if name not in METHODS and geometry_of(name) != SETTINGS[setting]:
            setting_of([name])  # where it has none, that is what is wrong
            raise InputError(
                f"the model {name} was trained for another geometry than that of {setting}; choose another --setting, or score it alone"
            )


def prepare_model(name: str, A: RayTransform, seed: int = 0, effort: Effort = FULL) -> Method:
    """A trained model; its image is the mean of the draws. Its intervals are calibrated where that holds for so many draws."""
    model = load(name, device=A.device)
    model = model.calibrated_for(effort.draws if model.random else 1)
    if model.geometry != A.geometry:
        raise InputError(f"the model {name} was trained for another geometry than the setting's; choose another --setting")

    def posterior(y: Tensor) -> Posterior:
        return reconstruct(model, y, effort.draws, generator=named_generator("draws", seed))

    recipe = {"draws": effort.draws if model.random else 1, "trained": training_of(model.provenance)}
    return Method(lambda y: posterior(y).mean, recipe, posterior=posterior)


def training_of(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What tells one training from another."""
    return {key: provenance.get(key) for key in ("preset", "seed", "commit", "hardware", "seconds")}


def remembering(method: Method) -> Method:
    """The method, which makes the posterior of the same sinograms once: its images and its error bars come from the same draws.

    Posteriors are moments, a few images each, so those of a test set can be kept.
    """
    make = method.posterior
    if make is None:
        return method
    kept: dict[tuple[int, int], tuple[Tensor, PosteriorLike]] = {}  # the sinograms too, so that their address stays theirs

    def posterior(y: Tensor) -> PosteriorLike:
        key = (y.data_ptr(), len(y))
        if key not in kept:
            kept[key] = (y, make(y))
        return kept[key][1]

    return replace(method, reconstruct=lambda y: posterior(y).mean, posterior=posterior)
