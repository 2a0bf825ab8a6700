"""`report.html`: one file, without network, that says what was reconstructed, with what, and how far to trust it.

Every text that may come from a file passes through `escaped`; the page's own rules forbid it to load or run anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from torch import Tensor

import bdgd
from bdgd.apps.pictures import escaped, percent, short
from bdgd.apps.report_figures import image_figures, profile_drawings, profile_legend, stack_section
from bdgd.apps.subject import Subject
from bdgd.evaluation.known_truth import on_object, range_of
from bdgd.inference import Alarm
from bdgd.inference.residual import Residual
from bdgd.inference.witnesses import IN_WORDS
from bdgd.metrics import psnr
from bdgd.operators import FanBeam


def report(subject: Subject) -> str:
    """The page as text."""
    template = Template(files("bdgd.apps").joinpath("report.html").read_text(encoding="utf-8"))
    name = subject.name + (f", slice {subject.slice}" if subject.grid.slices > 1 else "")
    shown, facts = image_figures(subject), _facts(subject)
    return template.substitute(
        version=escaped(bdgd.__version__),
        title=escaped(f"{name}: reconstruction with error bars"),
        heading=escaped(name),
        lead=_lead(subject),
        facts="".join(f"<div><dt>{escaped(key)}</dt><dd>{escaped(value)}</dd></div>" for key, value in facts),
        fact_columns="3" if len(facts) % 3 == 0 else "5" if len(facts) % 5 == 0 else "4",
        columns="4" if len(shown) > 6 else "3",
        printed_columns="5" if len(shown) == 5 else "4",
        rendering="pixelated" if max(subject.grid.image_size) <= 400 else "auto",
        pictures="".join(shown),
        slices=stack_section(subject),
        legend=profile_legend(subject),
        profile=profile_drawings(subject),
        regions_note=_regions_note(subject),
        regions=_regions(subject),
        agreement=_agreement(subject.residual),
        notes=_notes(subject.notes),
        origin=_table_of_origin(subject.origin),
        command=escaped(subject.command),
    )


def rounded(value: float, std: float) -> str:
    """A value with as many decimals as its standard deviation has to two digits."""
    if not (math.isfinite(std) and std > 0):
        return f"{value:.4g}"
    decimals = min(max(1 - math.floor(math.log10(std)), 0), 9)
    return f"{value:.{decimals}f}"


# What was done


def _lead(subject: Subject) -> str:
    """The first sentences: what was done, whether the error bars are calibrated, and whether they can hold for this scan."""
    model, draws = escaped(subject.origin.get("model", "a model")), subject.posterior.number
    made = "one pass" if draws == 1 else f"{draws} draws"
    if subject.calibrated:
        trust = f"Its intervals of level {percent(subject.level)} are calibrated on scans of known truth."
    elif subject.posterior.origin.moved:
        trust = "A smooth rest was added, and its error bars moved along: a calibration of the model says nothing about the sum."
    else:
        trust = "Its error bars are as the model states them, not calibrated: they rank pixels, and may be too narrow or too wide."
    turned = subject.origin.get("rotation_degrees")
    lies = f" Turn the image by {turned:g} degrees counter-clockwise to see it as the object lay." if turned else ""
    doubt = f' <b class="doubt">{escaped(subject.doubt())}</b>' if subject.doubt() else ""
    return f"Reconstructed from {subject.geometry.views} views by {made} through the model {model}. {trust}{lies}{doubt}"


def _facts(subject: Subject) -> list[tuple[str, str]]:
    """The box of numbers at the top, by name."""
    geometry, unit = subject.geometry, subject.grid.unit
    (wide, high), size = geometry.image_size, f"{geometry.pixel_size:.4g}" + (f" {unit}" if unit else "")
    beam, arc = "fan" if isinstance(geometry, FanBeam) else "parallel", math.degrees(geometry.arc[1])
    facts = [
        ("Image", f"{wide} × {high} pixels, size {size}"),
        ("Scan", f"{beam} beam, {geometry.views} views over {arc:.4g}°, {geometry.detectors} detectors"),
        ("Standard deviation, mean", subject.grid.with_unit(short(float(subject.posterior.std.mean())))),
        ("Residual / noise", _ratio(subject.residual)),
    ]
    if subject.alarm is not None:
        facts.append(("Alarm", _light(subject.alarm)))
    if subject.grid.slices > 1:
        facts.insert(1, ("Slice", f"{subject.slice} of 0 to {subject.grid.slices - 1}"))
    if subject.truth is not None:
        facts += _against_truth(subject, subject.truth.cpu())
    return facts


def _light(alarm: Alarm) -> str:
    """The traffic light in words: how many ordinary images look at least as unusual, and what is unusual."""
    share = f"{float(alarm.p[0]):.0%}" if alarm.p[0] >= 0.01 else "under 1%"
    why = "" if alarm.light[0] == "green" else f"; by its {alarm.reason()}: {IN_WORDS[alarm.reason()]}"
    return f"{alarm.light[0]}: {share} of ordinary images look as unusual{why}"


def _ratio(residual: Residual) -> str:
    if not math.isfinite(residual.ratio):
        return "noise not known"
    return f"{residual.ratio:.2f}" + (", noise estimated" if residual.estimated else "")


def against_truth(image: Tensor, truth: Tensor) -> float:
    """PSNR in dB with the data range of the truth."""
    return float(psnr(image.cpu(), truth, range_of(truth)))


def _against_truth(subject: Subject, truth: Tensor) -> list[tuple[str, str]]:
    mean, start = (against_truth(image, truth) for image in (subject.posterior.mean, subject.fbp))
    inside, _ = on_object(subject.posterior, truth, subject.level)
    return [
        ("PSNR, mean (FBP)", f"{mean:.2f} ({start:.2f}) dB"),
        (f"Truth in the {percent(subject.level)} interval", f"{inside:.1%} of the object's pixels"),
    ]


# Regions


def _regions_note(subject: Subject) -> str:
    words = ["The mean value of each disc, with the interval of that mean; draws keep how pixels err together."]
    if subject.posterior.origin.calibration is None:
        words.append(
            "Without a calibration the aleatoric part counts as independent from pixel to pixel, so the intervals may be too narrow."
        )
    if subject.grid.value_unit:
        words.append(f"Values are in {subject.grid.value_unit}.")
    return escaped(" ".join(words))


def _regions(subject: Subject) -> str:
    """The rows of the table of discs."""
    masks = [disc.mask(subject.geometry) for disc in subject.places.discs]
    found = [subject.posterior.region(mask, subject.level) for mask in masks]
    head = ["", "disc", "pixels", "mean", "std", f"{percent(subject.level)} interval"] + (
        ["truth", "inside"] if subject.truth is not None else []
    )
    rows = [f"<tr>{''.join(_cell(cell, k, 'th') for k, cell in enumerate(head))}</tr>"]
    for number, (disc, mask) in enumerate(zip(subject.places.discs, masks, strict=True)):
        mean, std, lower, upper = (float(getattr(found[number], name)) for name in ("mean", "std", "lower", "upper"))
        cells = [str(number + 1), disc.name, str(int(mask.sum())), rounded(mean, std), rounded(std, std)]
        cells.append(f"{rounded(lower, std)} to\u00a0{rounded(upper, std)}")
        if subject.truth is not None:
            truth = float(subject.truth[0, 0].cpu()[mask].mean())
            cells += [rounded(truth, std), "yes" if lower <= truth <= upper else "no"]
        rows.append(f"<tr>{''.join(_cell(cell, k, 'td') for k, cell in enumerate(cells))}</tr>")
    return "".join(rows)


def _cell(text: str, column: int, tag: str) -> str:
    kind = {0: "", 1: "", 2: ' class="right extra"', 4: ' class="right extra"', 5: ' class="right range"'}.get(column, ' class="right"')
    return f"<{tag}{kind}>{escaped(text)}</{tag}>"


# Trust and origin


def _agreement(residual: Residual) -> str:
    """How well the image explains its measurement, in words."""
    found = (
        f"The mean leaves a residual of {short(residual.rms)} (root mean square over all rays; the sinogram's is {short(residual.signal)})."
    )
    if not math.isfinite(residual.ratio):
        return escaped(f"{found} {residual.verdict()}")
    if residual.estimated:
        noise = f"The noise, estimated from neighbouring detectors, is at most about {short(residual.noise)}: a ratio of at least"
    else:
        noise = f"The noise, as the scan states it, is {short(residual.noise)}: a ratio of"
    return escaped(f"{found} {noise} {residual.ratio:.2f}. {residual.verdict()}")


def _notes(notes: Sequence[str]) -> str:
    """The section that says what was done to the scan, if anything was."""
    if not notes:
        return ""
    items = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    return f'<section class="whole"><h2>What was done to the scan</h2><ul>{items}</ul></section>'


def _table_of_origin(origin: dict[str, Any]) -> str:
    """The provenance in few rows; all of it is in posterior.h5."""
    trained = dict(origin.get("model_provenance") or {})
    rows = {
        "scan": origin.get("scan"),
        "its SHA-256": origin.get("scan_sha256"),
        "model": origin.get("model"),
        "trained": _joined(trained, preset="preset {}", date="{}", seconds="in {} s", hardware="on {}", seed="seed {}"),
        "trained with": _joined(trained, bdgd="bdgd {}", commit="commit {}", torch="torch {}", precision="{} convolutions"),
        "reconstructed": _joined(origin, date="{}", seconds="in {} s", hardware="on {}"),
        "with": _joined(origin, bdgd="bdgd {}", commit="commit {}", python="Python {}", torch="torch {}"),
        "draws": _joined(origin, draws="{}", seed="seed {}"),
    }
    return "".join(f"<tr><th>{escaped(key)}</th><td>{escaped(value)}</td></tr>" for key, value in rows.items() if value)


def _joined(values: dict[str, Any], **words: str) -> str:
    """Those of the values that are there, each in its words."""
    return ", ".join(word.format(values[key]) for key, word in words.items() if values.get(key) is not None)
