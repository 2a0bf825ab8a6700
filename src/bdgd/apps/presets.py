"""Presets: a complete experiment in one TOML file. An unknown key or a missing section is an error.

seed                  of the images, the noise, the weights and the training
[geometry]            beam = "sparse" | "limited" (the paper's detector), or any geometry as a scan file has it (also angles_degrees)
[data]                how many training and validation images, and the noise; optional:
                      phantoms = "ellipses" (unless given) | "discs-with-holes" | a folder of pictures, value_spread (each image times
                      1 - spread to 1 + spread), mismatch = { beam, air_offset, hardening, axis_shift, gain } as `bdgd.Mismatch` has them,
                      correction = { air, hardening } as `bdgd.Correction` has them: done to every scan, and carried by the model
[model]               kind = "cascade" | "primal-dual", and the arguments of the model; images are value_scale times the phantoms
[training]            the arguments of train_greedily (a cascade) or train_directly (primal-dual)
[finetuning]          optional: the arguments of finetune_jointly
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bdgd.checks import InputError, require_choice, require_count, require_number
from bdgd.data import Correction, Mismatch, Noise, correction_from_dict, mismatch_from_dict, noise_from_dict
from bdgd.data.formats.attributes import read_header
from bdgd.models import DeepGradientDescent, LearnedPrimalDual, Reconstructor
from bdgd.operators import Geometry, ParallelBeam
from bdgd.training import finetune_jointly, train_directly, train_greedily

_DATA = ("train", "validation", "noise", "phantoms", "value_spread", "mismatch", "correction")
_SCHEDULE = ("epochs", "batch", "learning_rate", "last_learning_rate")
#: what each kind of model knows in the sections about it
_KEYS = {
    "cascade": {
        "model": ("kind", "blocks", "last_layer", "gradient_scale", "value_scale"),
        "training": (*_SCHEDULE, "weight_decay", "kl_weight", "initialise", "first_noise_level", "augment", "revive"),
        "finetuning": (*_SCHEDULE, "kl_weight"),
    },
    "primal-dual": {
        "model": ("kind", "iterations", "start", "value_scale"),
        "training": (*_SCHEDULE, "weight_decay"),
    },
}
#: which of these are whole numbers, true or false, and words; all others are numbers
_COUNTS, _FLAGS, _WORDS = ("blocks", "iterations", "epochs", "batch"), ("augment", "revive"), ("kind", "last_layer", "start", "initialise")
#: what is called with the arguments in these sections; what a preset does not give has the default that it has there
CALLED: dict[str, dict[str, Callable[..., Any]]] = {
    "cascade": {"model": DeepGradientDescent, "training": train_greedily, "finetuning": finetune_jointly},
    "primal-dual": {"model": LearnedPrimalDual, "training": train_directly},
}


@dataclass(frozen=True)
class Preset:
    """One experiment: what `bdgd train` needs, and the text it was read from, which the run folder keeps."""

    name: str
    seed: int
    geometry: Geometry
    train: int
    validation: int
    noise: Noise
    kind: str
    model: dict[str, Any]
    training: dict[str, Any]
    finetuning: dict[str, Any] | None
    text: str
    phantoms: str = "ellipses"
    value_spread: float = 0.0
    mismatch: Mismatch | None = None
    correction: Correction | None = None

    @property
    def value_scale(self) -> float:
        """The image value that a phantom's 1 stands for."""
        return float(self.argument("model", "value_scale"))

    def argument(self, section: str, name: str) -> Any:
        """What a section's function (`CALLED`) gets as its argument `name`: the preset's value, else the function's own default."""
        given = getattr(self, section) or {}
        return given[name] if name in given else inspect.signature(CALLED[self.kind][section]).parameters[name].default

    def epochs(self, section: str) -> int:
        """Epochs of "training", for a cascade those of each block, or of "finetuning"; 0 where the preset has no such section."""
        return 0 if getattr(self, section) is None else int(self.argument(section, "epochs"))


def preset_names() -> list[str]:
    """Names of the presets in the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def read_preset(source: str) -> Preset:
    """A preset by name, or from a TOML file of one's own."""
    path = Path(source)
    if not path.is_file():
        shipped = _folder() / f"{source}.toml"
        if "/" in source or not shipped.is_file():
            raise InputError(f"there is no preset {source!r}; give a TOML file or one of {', '.join(preset_names())}")
        return parse_preset(shipped.read_text(encoding="utf-8"), source)
    try:
        return parse_preset(path.read_text(encoding="utf-8"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the preset {path}: {error}") from None


def parse_preset(text: str, name: str) -> Preset:
    """The preset that a TOML text describes."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the preset {name} is not valid TOML: {' '.join(str(error).split())}") from None
    kind = require_choice(_section(values, "model", name).get("kind", "cascade"), tuple(_KEYS), f"kind in [model] of the preset {name}")
    keys: dict[str, tuple[str, ...] | None] = {"geometry": None, "data": _DATA, **_KEYS[kind]}  # a geometry knows its keys itself
    if unknown := sorted(set(values) - {"seed", *keys}):
        raise InputError(f"the preset {name}, of a {kind} model, has an unknown key {unknown[0]!r}; known are seed, {', '.join(keys)}")
    optional = {"finetuning"} - set(values)
    sections = {section: _section(values, section, name, known) for section, known in keys.items() if section not in optional}
    for section in _KEYS[kind]:
        _require_kinds(sections.get(section, {}), section, name)
    data = sections["data"]
    for key in ("train", "noise"):
        if key not in data:
            raise InputError(f"the preset {name} needs {key!r} in [data]; add it")
    if not isinstance(data["noise"], dict):
        raise InputError(f'the preset {name} needs a table as noise in [data], such as {{ kind = "gaussian", relative = 0.01 }}')
    if not isinstance(data.get("mismatch", {}), dict):
        raise InputError(f"the preset {name} needs a table as mismatch in [data], such as {{ air_offset = 0.02, axis_shift = 0.25 }}")
    return Preset(
        name=name,
        seed=require_count(values.get("seed", 0), "seed", least=0),
        geometry=_geometry(sections["geometry"], name),
        train=require_count(data["train"], "train"),
        validation=require_count(data.get("validation", 100), "validation"),
        noise=noise_from_dict(data["noise"]),
        kind=kind,
        model={key: value for key, value in sections["model"].items() if key != "kind"},
        training=sections["training"],
        finetuning=sections.get("finetuning"),
        text=text,
        phantoms=_phantoms(data.get("phantoms", "ellipses"), name),
        value_spread=_spread(data.get("value_spread", 0.0), name),
        mismatch=mismatch_from_dict(data["mismatch"]) if "mismatch" in data else None,
        correction=_correction(data["correction"], name) if "correction" in data else None,
    )


def trained_by(model: Reconstructor) -> Preset | None:
    """The preset that the model was trained by, where it says so and it is for the model's geometry."""
    text = model.provenance.get("preset_text")
    preset = None if text is None else parse_preset(str(text), str(model.provenance.get("preset", "its preset")))
    return preset if preset is not None and preset.geometry == model.geometry else None


def with_seed(preset: Preset, seed: int) -> Preset:
    """The preset with another seed, in its text too: what a run folder keeps must say what was run."""
    without = re.sub(r"^seed\s*=.*\n", "", preset.text, count=1, flags=re.MULTILINE)
    return parse_preset(f"seed = {seed}\n{without}", preset.name)


def changes_since(text: str, preset: Preset) -> list[str]:
    """What the preset's text says otherwise than an earlier `text` of it, such as "weight_decay 0.001, now 0"; comments and seed aside."""
    before, now = (_values(tomllib.loads(source)) for source in (text, preset.text))
    keys = sorted((before.keys() | now.keys()) - {("seed",)})
    return [f"{key[-1]} {before.get(key, 'not given')}, now {now.get(key, 'not given')}" for key in keys if before.get(key) != now.get(key)]


def _values(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The values of nested tables by their path."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        found |= _values(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return found


def preset_text(values: dict[str, Any], comment: str) -> str:
    """A preset as TOML: its seed, then its sections."""
    lines = [f"# {' '.join(comment.split())}"]
    lines += [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for section, entries in values.items():
        if isinstance(entries, dict):
            lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _folder() -> Any:
    return resources.files("bdgd.apps") / "presets"


def _section(values: dict[str, Any], section: str, name: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The section, once it is there and has no key but the known ones, where these are given."""
    found = values.get(section)
    if not isinstance(found, dict):
        raise InputError(f"the preset {name} needs a section [{section}]; add it, or start from one of {', '.join(preset_names())}")
    if known is not None and (unknown := sorted(set(found) - set(known))):
        raise InputError(f"the preset {name} has an unknown key {unknown[0]!r} in [{section}]; known are {', '.join(known)}")
    return found


def _require_kinds(values: dict[str, Any], section: str, name: str) -> None:
    """Raise where a value is of another kind than its key; how large it may be is for what is called with it to say."""
    for key, value in values.items():
        what = f"{key} in [{section}] of the preset {name}"
        if key in _COUNTS:
            require_count(value, what)
        elif key in _FLAGS and not isinstance(value, bool):
            raise InputError(f"{what} must be true or false, got {value!r}")
        elif key in _WORDS and not isinstance(value, str):
            raise InputError(f"{what} must be a word in quotes, got {value!r}")
        elif key not in _FLAGS + _WORDS:
            if isinstance(value, str | bool):
                raise InputError(f"{what} must be a number, got {value!r}; write it without quotes")
            require_number(value, what)


def _geometry(values: dict[str, Any], name: str) -> Geometry:
    beam = values.get("beam")
    if beam not in ("sparse", "limited"):
        if other := sorted({"noise", "slice_spacing", "format_version"} & set(values)):
            raise InputError(f"the preset {name} has {other[0]!r} in [geometry], which is no part of a geometry; remove it")
        return read_header(values).geometry
    make = ParallelBeam.sparse if beam == "sparse" else ParallelBeam.limited
    arguments = {key: value for key, value in values.items() if key != "beam"}
    try:
        return make(**arguments)
    except TypeError:
        known = "image_size, views, pixel_size" if beam == "sparse" else "image_size, degrees, pixel_size"
        raise InputError(f"the preset {name} has an unknown key in [geometry]; beam = {beam!r} knows {known}") from None


def _phantoms(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"the preset {name} needs phantoms = 'ellipses', 'discs-with-holes' or a folder in [data], got {value!r}")
    return value


def _correction(value: Any, name: str) -> Correction:
    try:
        return correction_from_dict(value)
    except InputError as error:
        raise InputError(f"the preset {name}: {error}") from None


def _spread(value: Any, name: str) -> float:
    spread = require_number(value, f"value_spread in the preset {name}")
    if not 0 <= spread < 1:
        raise InputError(f"value_spread in the preset {name} must be at least 0 and below 1, got {spread:g}")
    return spread
