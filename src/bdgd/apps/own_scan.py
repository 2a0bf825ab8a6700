"""A preset for one's own scanner: geometry, noise, value scale and the scanner's errors from a scan, all else from a preset."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.apps.presets import Preset, parse_preset
from bdgd.apps.scanner import USUAL_SIZE, Scanner, axis_spacing, read_scanner, training_geometry
from bdgd.checks import InputError, require_count
from bdgd.classical import fbp
from bdgd.data import KINDS, Correction, GaussianNoise, Mismatch, Noise, PoissonNoise, Scans, estimate_noise, match
from bdgd.data.correction import outermost
from bdgd.operators import Geometry, RayTransform

_LOOK = 128  # pixels along a side of the image that the value scale is read from
_SHORT_ARC = math.radians(115)  # below it FBP has no reliable values
_AROUND = 0.15  # training covers hardenings from so much below to so much above the one that is corrected
_AIR = 0.05  # of the largest line integral: detectors that see no more see air


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
    values, notes, correction = tomllib.loads(preset.text), list[str](), wishes.correction or preset.correction
    if wishes.correction is not None:
        values["data"]["correction"] = wishes.correction.to_dict()
    if wishes.phantoms is not None:
        values["data"]["phantoms"] = _phantoms(wishes.phantoms)
    if wishes.images is not None:
        values["data"]["train"] = require_count(wishes.images, "--images")
    if wishes.noise is not None:
        values["data"]["noise"] = GaussianNoise(wishes.noise).to_dict()
    if wishes.geometry is not None:
        scanner = read_scanner(wishes.geometry)
        geometry, notes = training_geometry(scanner.geometry, views=wishes.views, arc=wishes.arc, size=wishes.size)
        notes = [*scanner.notes, *notes]
        values["geometry"] = geometry.to_dict() | ({"unit": scanner.unit} if scanner.unit else {})
        if preset.kind == "cascade":
            values["model"]["gradient_scale"] = _digits(gradient_scale(geometry, device))
        if scanner.scan is not None:
            kind = values["data"].get("phantoms", "ellipses")
            found = examine_scan(scanner.scan, geometry, homogeneous=kind == "discs-with-holes", correction=correction)
            notes += _use(found, values, scanner, keep_noise=wishes.noise is not None)
        elif wishes.correction is not None and wishes.correction.hardening:
            errors = {key: value for key, value in values["data"].get("mismatch", {}).items() if key != "hardening"}
            values["data"]["mismatch"] = errors | {"beam": list(beam_around(wishes.correction))}
    if values == tomllib.loads(preset.text):
        return preset, notes
    about = f"the preset {preset.name}" + (f" for {wishes.geometry.name}" if wishes.geometry else "")
    return parse_preset(preset_text(values, f"Written by bdgd train: {about}."), preset.name), notes


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
    if correction is not None and correction.air and float(outermost(y).mean(2).abs().max()) > _AIR * float(y.max()):
        raise InputError("the scan's outermost detectors do not see air, so that what they read cannot be subtracted; leave --air out")
    corrected = replace(scan, sinograms=scan.sinograms[:1], images=None).corrected(correction)
    return Found(_digits(value_scale(corrected, homogeneous)), noise_on(scan, geometry), mismatch, air)


def beam_around(correction: Correction) -> tuple[float, float]:
    """Hardenings to train with: that of no two objects is the same, and the correction has one for all."""
    return _digits((1 - _AROUND) * correction.hardening), _digits((1 + _AROUND) * correction.hardening)


def noise_on(scan: Scans, geometry: Geometry) -> Noise:
    """The noise of the scan on the detectors of a geometry, from all its views.

    It is estimated on no fewer than 256 detectors where the scan has them, since an object is rough on wide ones; joining k more
    into one leaves a normal noise smaller by sqrt(k), and k times the photons.
    """
    assert scan.geometry is not None
    wanted = max(geometry.detector_spacing / scan.geometry.detector_spacing, 1.0)
    already = max(1, min(int(wanted), scan.geometry.detectors // USUAL_SIZE))
    whole = scan.geometry.detectors // already * already
    noise = estimate_noise(scan.sinograms[:1, ..., :whole].unflatten(-1, (-1, already)).mean(-1))
    joined = wanted / already
    if isinstance(noise, PoissonNoise):
        return PoissonNoise(_digits(noise.photons * joined), noise.attenuation)
    return GaussianNoise(_digits(noise.relative / math.sqrt(joined)))


def value_scale(scan: Scans, homogeneous: bool = False) -> float:
    """The image value that becomes 1: of a smoothed FBP from all views, inside the object, the median or the 95 % quantile.

    Inside is where it exceeds half of its 99 % quantile; the median is for objects of one material. From a short arc, whose FBP
    has no reliable values: the largest line integrals divided by the width of the object's shadow, median over the views.
    """
    assert scan.geometry is not None
    if scan.geometry.arc[1] < _SHORT_ARC:
        value = _from_shadows(scan.sinograms[0, 0].double(), axis_spacing(scan.geometry))
    else:
        geometry, _ = training_geometry(scan.geometry, size=min(max(scan.geometry.image_size), _LOOK))
        image = fbp(RayTransform(geometry, strategy="matrix-free"), match(scan, geometry)[0].sinograms[:1].float(), filter="hann")
        smooth = F.avg_pool2d(image, 3, stride=1).flatten()
        inside = smooth[smooth > 0.5 * smooth.quantile(0.99)]
        value = float(inside.quantile(0.5 if homogeneous else 0.95)) if len(inside) else 0.0
    if not value > 0:
        raise InputError("the scan shows no object from which the scale of its values could be read; check that it holds line integrals")
    return value


def _from_shadows(y: Tensor, spacing: float) -> float:
    """From a sinogram (V, D) whose detectors are `spacing` apart at the axis."""
    shadow = y > 2 * _AIR * y.quantile(0.99)
    width = shadow.sum(1) * spacing
    values = y.quantile(0.98, dim=1) / width.clamp_min(spacing)
    return float(values[width > 0].median()) if bool((width > 0).any()) else 0.0


def scanner_errors(y: Tensor, correction: Correction | None = None) -> tuple[Mismatch, float | None]:
    """The errors to train against for sinograms y (1, 1, V, D), in their unit, and the mean of what is measured in air if air is seen.

    With p the 99 % quantile of y: air off by 0.005 p and by up to twice what is measured, hardening up to 0.4 / p (a disc whose
    middle is dark by a third, as unfiltered tubes show it), the axis off by a quarter of a detector, stripes of 0.0005 p.
    Where a correction undoes hardening, the beam hardens by 0.85 to 1.15 times what it undoes instead.
    """
    top = float(y.double().flatten().quantile(0.99)) if y.numel() < 2**24 else float(y.double().amax())
    if not top > 0:
        raise InputError("the scan has no line integrals above 0; check that it was converted with -log")
    outer = max(1, y.shape[-1] // 50)
    ends = torch.cat((y[..., :outer], y[..., -outer:]), -1).double()
    air = float(ends.median())
    seen = air if abs(air) < _AIR * top else None
    twice = 2 * (seen or 0.0)
    offsets = (_digits(min(0.0, twice) - 0.005 * top), _digits(max(0.0, twice) + 0.005 * top))
    found = Mismatch(air_offset=offsets, hardening=(0.0, _digits(0.4 / top)), axis_shift=(-0.25, 0.25), gain=_digits(0.0005 * top))
    if correction is not None and correction.hardening:
        found = replace(found, hardening=(0.0, 0.0), beam=beam_around(correction))
    return found, seen


def gradient_scale(geometry: Geometry, device: torch.device) -> float:
    """||A|| with the pixel as the unit of length, for detectors as wide as a pixel: 61 and 123 for the paper's 30 and 120 views.

    What a block sees of the misfit's gradient should not depend on the unit or on how finely a detector is divided.
    """
    norm = RayTransform(geometry, device=device).norm(tolerance=1e-3)
    return norm / geometry.pixel_size * math.sqrt(axis_spacing(geometry) / geometry.pixel_size)


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


def _use(found: Found, values: dict[str, Any], scanner: Scanner, *, keep_noise: bool) -> list[str]:
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


def _digits(value: float) -> float:
    """Three digits: no more are known, and a file with them reads well."""
    return float(f"{value:.3g}")
