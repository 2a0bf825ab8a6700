"""`report.html`: one file, without network, that says what was reconstructed, with what, and how far to trust it.

Every text that may come from a file passes through `escaped`; the page's own rules forbid it to load or run anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from string import Template
from typing import Any

import torch
from torch import Tensor

import bdgd
from bdgd.apps.outputs import Stack
from bdgd.apps.pictures import Colours, Curve, colour_bar, escaped, marks, png, profile, short, spread_colours
from bdgd.apps.places import Places
from bdgd.apps.residual import Residual
from bdgd.inference import Posterior, Region
from bdgd.metrics import coverage, psnr
from bdgd.operators import FanBeam, Geometry


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """One slice of a stack, small: the mean (h, w) and the numbers below it."""

    slice: int
    mean: Tensor
    std: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Subject:
    """One slice with all that its report says; posterior, fbp and truth hold that one image."""

    name: str
    geometry: Geometry
    stack: Stack
    posterior: Posterior
    fbp: Tensor
    residual: Residual
    places: Places
    level: float
    origin: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    truth: Tensor | None = None
    slice: int = 0
    calibrated: bool = False
    thumbnails: Sequence[Thumbnail] = field(default=())


def report(subject: Subject) -> str:
    """The page as text."""
    template = Template(files("bdgd.apps").joinpath("report.html").read_text(encoding="utf-8"))
    name = subject.name + (f", slice {subject.slice}" if subject.stack.slices > 1 else "")
    shown, facts = _pictures(subject), _facts(subject)
    return template.substitute(
        version=escaped(bdgd.__version__),
        title=escaped(f"{name}: reconstruction with error bars"),
        heading=escaped(name),
        lead=_lead(subject),
        facts="".join(f"<div><dt>{escaped(key)}</dt><dd>{escaped(value)}</dd></div>" for key, value in facts),
        fact_columns="3" if len(facts) % 3 == 0 else "4",
        columns="4" if len(shown) > 6 else "3",
        rendering="pixelated" if max(subject.stack.image_size) <= 400 else "auto",
        pictures="".join(shown),
        slices=_slices(subject),
        legend=_legend(subject),
        profile=_profile(subject),
        regions_note=_regions_note(subject),
        regions=_regions(subject),
        agreement=_agreement(subject.residual),
        origin=_table_of_origin(subject.origin),
        command=escaped(subject.command),
    )


def measured(value: float, std: float) -> str:
    """A value with as many decimals as its standard deviation has to two digits."""
    if not (math.isfinite(std) and std > 0):
        return f"{value:.4g}"
    decimals = min(max(1 - math.floor(math.log10(std)), 0), 9)
    return f"{value:.{decimals}f}"


# What was done


def _lead(subject: Subject) -> str:
    model, draws = escaped(subject.origin.get("model", "a model")), subject.posterior.number
    made = "one pass" if draws == 1 else f"{draws} draws"
    trust = (
        f"Its intervals of level {subject.level:.0%} are calibrated on scans of known truth."
        if subject.calibrated
        else "Its error bars are as the model states them, not calibrated: they rank pixels, and may be too narrow or too wide."
    )
    return f"Reconstructed from {subject.geometry.views} views by {made} through the model {model}. {trust}"


def _facts(subject: Subject) -> list[tuple[str, str]]:
    geometry, unit = subject.geometry, subject.stack.unit
    (wide, high), size = geometry.image_size, f"{geometry.pixel_size:.4g}" + (f" {unit}" if unit else "")
    beam, arc = "fan" if isinstance(geometry, FanBeam) else "parallel", math.degrees(geometry.arc[1])
    facts = [
        ("Image", f"{wide} × {high} pixels, size {size}"),
        ("Scan", f"{beam} beam, {geometry.views} views over {arc:.4g}°, {geometry.detectors} detectors"),
        ("Standard deviation, mean", _with_unit(short(float(subject.posterior.std.mean())), subject)),
        ("Residual / noise", f"{subject.residual.ratio:.2f}" if math.isfinite(subject.residual.ratio) else "noise not known"),
    ]
    if subject.stack.slices > 1:
        facts.insert(1, ("Stack", f"slice {subject.slice} of {subject.stack.slices}"))
    if subject.truth is not None:
        truth, posterior = subject.truth, on_cpu(subject.posterior)
        # Images without a unit have values up to 1, and a data range of 1 by convention.
        data_range = float(truth.max() - truth.min()) or 1.0 if subject.stack.unit else 1.0
        facts.append(
            (
                "PSNR, mean (FBP)",
                " (".join(f"{float(psnr(x.cpu(), truth, data_range)):.2f}" for x in (posterior.mean, subject.fbp)) + ") dB",
            )
        )
        facts.append(
            (f"Truth in the {subject.level:.0%} interval", f"{float(coverage(posterior, truth, subject.level)):.1%} of the pixels")
        )
    return facts


def on_cpu(posterior: Posterior) -> Posterior:
    moments = {name: getattr(posterior, name).cpu() for name in ("mean", "epistemic", "aleatoric")}
    return replace(posterior, **moments, replay=lambda: (draw.cpu() for draw in posterior.draws()))


def _with_unit(number: str, subject: Subject) -> str:
    return f"{number} {subject.stack.value_unit}".strip()


# Images


def _pictures(subject: Subject) -> list[str]:
    posterior, unit = subject.posterior, subject.stack.value_unit or "value"
    lower, upper = posterior.interval(subject.level)
    mean, epistemic, width = posterior.mean[0, 0], posterior.epistemic[0, 0].sqrt(), (upper - lower)[0, 0]
    value = Colours(min(float(mean.min()), 0.0), float(mean.max()) or 1.0)
    shown = [
        ("Filtered back-projection", "where the model starts, on the scale of the mean", subject.fbp[0, 0], value, ""),
        ("Mean", "the image; marked are the regions and the line below", mean, value, marks(subject.places, subject.geometry)),
    ]
    if subject.truth is not None:
        shown.append(("Truth", "on the scale of the mean", subject.truth[0, 0], value, ""))
    error = None if subject.truth is None else (mean.cpu() - subject.truth[0, 0].cpu()).abs()
    std = posterior.std[0, 0]
    spread = spread_colours(std) if error is None else spread_colours(std, error)
    shown.append(("Standard deviation", "epistemic and aleatoric together", std, spread, ""))
    if error is not None:
        shown.append(("Error", "|mean − truth|, on the scale of the standard deviation", error, spread, ""))
    shown.append(("Epistemic part", "standard deviation over the draws of the weights", epistemic, spread_colours(epistemic), ""))
    shown.append((f"Width of the {subject.level:.0%} interval", "upper minus lower bound", width, spread_colours(width), ""))
    return [_figure(*parts, unit) for parts in shown]


def _figure(title: str, words: str, image: Tensor, colours: Colours, overlay: str, unit: str) -> str:
    picture = f'<img src="{png(image, colours)}" alt="{escaped(title)}" width="{image.shape[0]}" height="{image.shape[1]}">'
    caption = f"<figcaption><b>{escaped(title)}</b>{escaped(words)}</figcaption>"
    return f'<figure>{caption}<div class="image">{picture}{overlay}</div>{colour_bar(image, colours, unit)}</figure>'


def _slices(subject: Subject) -> str:
    """The section of a stack: slices spread over it, all on one scale."""
    if not subject.thumbnails:
        return ""
    value = Colours(0.0, max(float(t.mean.max()) for t in subject.thumbnails) or 1.0)
    drawn = [
        f'<figure><div class="image"><img src="{png(t.mean, value)}" alt="mean of slice {t.slice}"></div>'
        f"<figcaption>slice {t.slice}<br>std {short(t.std)}, residual {t.ratio:.2f}</figcaption></figure>"
        for t in subject.thumbnails
    ]
    words = (
        f"{len(drawn)} of {subject.stack.slices} slices: the mean from 0 to {_with_unit(short(value.high), subject)},"
        " its mean standard deviation, and the residual in multiples of the noise. All slices are in posterior.h5."
    )
    return f'<section><h2>The stack</h2><p class="note">{escaped(words)}</p><div class="slices">{"".join(drawn)}</div></section>'


# Along a line


def _legend(subject: Subject) -> str:
    entries = [("mean", "mean", False), ("band", f"{subject.level:.0%} interval", True), ("fbp", "filtered back-projection", False)]
    entries += [("truth", "truth", False)] if subject.truth is not None else []

    def sample(name: str, area: bool) -> str:
        drawn = '<rect class="band" width="24" height="10"/>' if area else f'<polyline class="{name}" points="0,5 24,5"/>'
        return f'<svg viewBox="0 0 24 10" aria-hidden="true">{drawn}</svg>'

    return "".join(f"<li>{sample(name, area)}{escaped(words)}</li>" for name, words, area in entries)


def _profile(subject: Subject) -> str:
    """The values along the line, and once more with the mean taken away, where a narrow interval can be seen."""
    distance, i, j = subject.places.profile.pixels(subject.geometry)
    lower, upper = (_along(bound, i, j) for bound in subject.posterior.interval(subject.level))
    mean, unit = _along(subject.posterior.mean, i, j), subject.stack.value_unit or "value"
    truth = [] if subject.truth is None else [Curve("truth", _along(subject.truth, i, j))]
    across = f"distance along the line ({subject.stack.unit})" if subject.stack.unit else "distance along the line"
    values = profile(distance, (lower, upper), [Curve("fbp", _along(subject.fbp, i, j)), *truth, Curve("mean", mean)], (across, unit))
    differences = [Curve("truth", curve.values - mean) for curve in truth] + [Curve("mean", torch.zeros_like(mean))]
    return values + profile(distance, (lower - mean, upper - mean), differences, (across, f"{unit}, with the mean taken away"))


def _along(images: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """(N,) the values of the first image at those pixels."""
    return images[0, 0].cpu().double()[i, j]


# Regions


def regions_of(posterior: Posterior, masks: Sequence[Tensor], level: float) -> Region:
    """The mean over each of R masks (H, W) of one image, each (R,): all of them from one replay of the draws."""
    count, stacked = len(masks), torch.stack(tuple(masks))[:, None]
    moments = {name: getattr(posterior, name).expand(count, -1, -1, -1) for name in ("mean", "epistemic", "aleatoric")}
    repeated = replace(posterior, **moments, replay=lambda: (draw.expand(count, -1, -1, -1) for draw in posterior.draws()))
    return repeated.region(stacked, level)


def _regions_note(subject: Subject) -> str:
    unit = f" Values are in {subject.stack.value_unit}." if subject.stack.value_unit else ""
    return escaped(f"The mean value of each disc, with the interval of that mean: draws keep how pixels err together.{unit}")


def _regions(subject: Subject) -> str:
    masks = [disc.mask(subject.geometry) for disc in subject.places.discs]
    found = regions_of(subject.posterior, masks, subject.level)
    head = ["", "disc", "pixels", "mean", "std", f"{subject.level:.0%} interval"] + (
        ["truth", "inside"] if subject.truth is not None else []
    )
    rows = [f"<tr>{''.join(_cell(cell, k, 'th') for k, cell in enumerate(head))}</tr>"]
    for number, (disc, mask) in enumerate(zip(subject.places.discs, masks, strict=True)):
        mean, std, lower, upper = (float(getattr(found, name)[number]) for name in ("mean", "std", "lower", "upper"))
        cells = [str(number + 1), disc.name, str(int(mask.sum())), measured(mean, std), f"{std:.2g}"]
        cells.append(f"{measured(lower, std)} to\u00a0{measured(upper, std)}")
        if subject.truth is not None:
            truth = float(subject.truth[0, 0].cpu()[mask].mean())
            cells += [measured(truth, std), "yes" if lower <= truth <= upper else "no"]
        rows.append(f"<tr>{''.join(_cell(cell, k, 'td') for k, cell in enumerate(cells))}</tr>")
    return "".join(rows)


def _cell(text: str, column: int, tag: str) -> str:
    kind = {0: "", 1: "", 2: ' class="right extra"', 4: ' class="right extra"', 5: ' class="right range"'}.get(column, ' class="right"')
    return f"<{tag}{kind}>{escaped(text)}</{tag}>"


# Trust and origin


def _agreement(residual: Residual) -> str:
    found = (
        f"The mean leaves a residual of {short(residual.rms)} (root mean square over all rays; the sinogram's is {short(residual.signal)})."
    )
    if not math.isfinite(residual.ratio):
        return escaped(f"{found} {residual.verdict()}")
    how = "estimated from neighbouring detectors" if residual.estimated else "as the scan states it"
    return escaped(f"{found} The noise, {how}, is {short(residual.noise)}: a ratio of {residual.ratio:.2f}. {residual.verdict()}")


def _table_of_origin(origin: dict[str, Any]) -> str:
    """The provenance in few rows; all of it is in posterior.h5."""
    trained = dict(origin.get("model_provenance") or {})
    rows = {
        "scan": origin.get("scan"),
        "its SHA-256": origin.get("scan_sha256"),
        "model": origin.get("model"),
        "trained": _joined(trained, preset="preset {}", date="{}", seconds="in {} s", hardware="on {}", seed="seed {}"),
        "trained with": _joined(trained, bdgd="bdgd {}", commit="commit {}", torch="torch {}"),
        "reconstructed": _joined(origin, date="{}", seconds="in {} s", hardware="on {}"),
        "with": _joined(origin, bdgd="bdgd {}", commit="commit {}", python="Python {}", torch="torch {}"),
        "draws": _joined(origin, draws="{}", seed="seed {}"),
    }
    return "".join(f"<tr><th>{escaped(key)}</th><td>{escaped(value)}</td></tr>" for key, value in rows.items() if value)


def _joined(values: dict[str, Any], **words: str) -> str:
    """Those of the values that are there, each in its words."""
    return ", ".join(word.format(values[key]) for key, word in words.items() if values.get(key) is not None)
