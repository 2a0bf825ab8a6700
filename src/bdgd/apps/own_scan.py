"""A preset for one's own scanner: geometry, noise, value scale and the scanner's errors from a scan, all else from a preset."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bdgd.apps.presets import Preset, parse_preset, preset_text
from bdgd.checks import InputError, require_count
from bdgd.data import KINDS, Correction, GaussianNoise, Mismatch, Noise, Scans, match
from bdgd.data.estimates import noise_on, three_digits
from bdgd.data.scanner import Scanner, read_scanner, training_geometry
from bdgd.data.scanner_errors import beam_around, require_air, scanner_errors
from bdgd.models.scales import gradient_scale, value_scale
from bdgd.operators import Geometry


@dataclass(frozen=True)
class Wishes:
    """What the user asked for; None is left to the scan or to the preset."""

    geometry: Path | None = None
    views: int | None = None
    arc: float | None = None
    size: int | None = None
    noise: float | None = None
    phantoms: str | None = None
    images: int | None = None
    air: bool = False
    hardening: float | None = None

    @property
    def correction(self) -> Correction | None:
        """What is to be done to every scan."""
        return Correction(air=self.air, hardening=self.hardening or 0.0) if self.air or self.hardening else None


def fitted_preset(preset: Preset, wishes: Wishes, device: torch.device) -> tuple[Preset, list[str]]:
    """The preset with all that the wishes change, and sentences about what was found in the scan.

    --geometry replaces [geometry], the noise, the value scale, the gradient scale and, where the preset has one, the mismatch.
    --air and --hardening put a correction into it, and the beam that it undoes into the mismatch.
    """
    values, notes = tomllib.loads(preset.text), list[str]()
    if wishes.correction is not None:
        values["data"]["correction"] = wishes.correction.to_dict()
    if wishes.phantoms is not None:
        values["data"]["phantoms"] = _phantoms(wishes.phantoms)
    if wishes.images is not None:
        values["data"]["train"] = require_count(wishes.images, "--images")
    if wishes.noise is not None:
        values["data"]["noise"] = GaussianNoise(wishes.noise).to_dict()
    if wishes.geometry is not None:
        notes = _use_scanner(read_scanner(wishes.geometry), values, preset, wishes, device)
    if values == tomllib.loads(preset.text):
        return preset, notes
    about = f"the preset {preset.name}" + (f" for {wishes.geometry.name}" if wishes.geometry else "")
    return parse_preset(preset_text(values, f"Written by bdgd train: {about}."), preset.name), notes


def _use_scanner(scanner: Scanner, values: dict[str, Any], preset: Preset, wishes: Wishes, device: torch.device) -> list[str]:
    """Put the scanner into the preset's values, with what its scan shows where there is one; sentences about it."""
    geometry, notes = training_geometry(scanner.geometry, views=wishes.views, arc=wishes.arc, size=wishes.size)
    notes = [*scanner.notes, *notes]
    values["geometry"] = geometry.to_dict() | ({"unit": scanner.unit} if scanner.unit else {})
    if preset.kind == "cascade":
        values["model"]["gradient_scale"] = three_digits(gradient_scale(geometry, device))
    if scanner.scan is not None:
        homogeneous = values["data"].get("phantoms", "ellipses") == "discs-with-holes"
        correction = wishes.correction or preset.correction
        found = examine_scan(scanner.scan, geometry, homogeneous=homogeneous, correction=correction)
        notes += _use_found(found, values, scanner, keep_noise=wishes.noise is not None)
    elif wishes.correction is not None and wishes.correction.hardening:
        errors = {key: value for key, value in values["data"].get("mismatch", {}).items() if key != "hardening"}
        values["data"]["mismatch"] = errors | {"beam": list(beam_around(wishes.correction))}
    return notes


@dataclass(frozen=True)
class Found:
    """What a scan tells about the images and the scanner. value_scale: the image value that becomes 1; air: what is measured in air."""

    value_scale: float
    noise: Noise
    mismatch: Mismatch
    air: float | None


def examine_scan(scan: Scans, geometry: Geometry, *, homogeneous: bool = False, correction: Correction | None = None) -> Found:
    """Value scale, noise and errors of a scan (its first slice), as a model of this geometry will see it.

    The values are those of the corrected scan, noise and errors those of the scan as it is: scans are simulated so, then corrected.
    """
    y = match(scan, geometry)[0].sinograms[:1]
    mismatch, air = scanner_errors(y, correction)
    if correction is not None and correction.air:
        require_air(y)
    corrected = replace(scan, sinograms=scan.sinograms[:1], images=None).corrected(correction)
    return Found(three_digits(value_scale(corrected, homogeneous)), noise_on(scan, geometry), mismatch, air)


def _use_found(found: Found, values: dict[str, Any], scanner: Scanner, *, keep_noise: bool) -> list[str]:
    """Put what was found into the preset; sentences about it."""
    unit = f" 1/{scanner.unit}" if scanner.unit else ""
    notes = [f"values of about {found.value_scale:g}{unit}"]
    values["model"]["value_scale"] = found.value_scale
    if not keep_noise:
        values["data"]["noise"] = found.noise.to_dict()
        notes.append(_noise_in_words(found.noise))
    if "mismatch" in values["data"] or found.mismatch.beam[1]:
        values["data"]["mismatch"] = found.mismatch.to_dict()
        if found.air is not None:
            notes.append(f"{found.air:.3g} measured in air")
    return notes


def _noise_in_words(noise: Noise) -> str:
    described = noise.to_dict()
    if described["kind"] == "poisson":
        return f"noise as of {described['photons']:.3g} photons"
    return f"noise of {described['relative']:.2%} of the mean"


def _phantoms(wanted: str) -> str:
    """A name, or the whole path of a folder, which the run folder's preset must find again from anywhere."""
    if wanted in KINDS:
        return wanted
    if not Path(wanted).is_dir():
        raise InputError(f"--phantoms must be {', '.join(KINDS)} or a folder of pictures, got {wanted!r}")
    return str(Path(wanted).resolve())
