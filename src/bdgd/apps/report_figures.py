"""The figures of a report: images with their colour bars, the slices of a stack, and the profile."""

from __future__ import annotations

import torch
from torch import Tensor

from bdgd.apps.pictures import Colours, Curve, colour_bar, escaped, marks, percent, png, profile, short, spread_colours
from bdgd.apps.subject import Subject


def image_figures(subject: Subject) -> list[str]:
    """Every image of the report as an HTML figure, in their order; with truth and error where the truth is known."""
    posterior, unit = subject.posterior, subject.grid.value_unit or "value"
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
    shown.append(("Standard deviation", _std_words(subject), std, spread, ""))
    if error is not None:
        shown.append(("Error", "|mean − truth|, on the scale of the standard deviation", error, spread, ""))
    shown.append(("Epistemic part", "standard deviation over the draws of the weights", epistemic, spread_colours(epistemic), ""))
    shown.append((f"Width of the {percent(subject.level)} interval", "upper minus lower bound", width, spread_colours(width), ""))
    return [_figure(*parts, unit) for parts in shown]


def _std_words(subject: Subject) -> str:
    """What the picture of the standard deviation shows; where it is one colour, why."""
    aleatoric = subject.posterior.aleatoric[0, 0]
    constant = float(aleatoric.max()) > 0 and float(aleatoric.max() - aleatoric.min()) <= 1e-3 * float(aleatoric.max())
    value = subject.grid.with_unit(short(float(aleatoric.mean().sqrt())))
    return "epistemic and aleatoric together" + (f"; this model's aleatoric part is {value} in every pixel" if constant else "")


def _figure(title: str, words: str, image: Tensor, colours: Colours, overlay: str, unit: str) -> str:
    picture = f'<img src="{png(image, colours)}" alt="{escaped(title)}" width="{image.shape[0]}" height="{image.shape[1]}">'
    caption = f"<figcaption><b>{escaped(title)}</b>{escaped(words)}</figcaption>"
    return f'<figure>{caption}<div class="image">{picture}{overlay}</div>{colour_bar(image, colours, unit)}</figure>'


def stack_section(subject: Subject) -> str:
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
        f"{len(drawn)} of {subject.grid.slices} slices: the mean from 0 to {subject.grid.with_unit(short(value.high))},"
        " its mean standard deviation, and the residual in multiples of the noise. All slices are in posterior.h5."
    )
    return f'<section><h2>The stack</h2><p class="note">{escaped(words)}</p><div class="slices">{"".join(drawn)}</div></section>'


def profile_legend(subject: Subject) -> str:
    """What the curves and the band of the profile are."""
    entries = [("mean", "mean", False), ("band", f"{percent(subject.level)} interval", True), ("fbp", "filtered back-projection", False)]
    entries += [("truth", "truth", False)] if subject.truth is not None else []

    def sample(name: str, area: bool) -> str:
        drawn = '<rect class="band" width="24" height="10"/>' if area else f'<polyline class="{name}" points="0,5 24,5"/>'
        return f'<svg viewBox="0 0 24 10" aria-hidden="true">{drawn}</svg>'

    return "".join(f"<li>{sample(name, area)}{escaped(words)}</li>" for name, words, area in entries)


def profile_drawings(subject: Subject) -> str:
    """The values along the line, and once more with the mean taken away, where a narrow interval can be seen."""
    distance, i, j = subject.places.profile.pixels(subject.geometry)
    lower, upper = (_along(bound, i, j) for bound in subject.posterior.interval(subject.level))
    mean, unit = _along(subject.posterior.mean, i, j), subject.grid.value_unit or "value"
    truth = [] if subject.truth is None else [Curve("truth", _along(subject.truth, i, j))]
    across = f"distance along the line ({subject.grid.unit})" if subject.grid.unit else "distance along the line"
    values = profile(distance, (lower, upper), [Curve("fbp", _along(subject.fbp, i, j)), *truth, Curve("mean", mean)], (across, unit))
    differences = [Curve("truth", curve.values - mean) for curve in truth] + [Curve("mean", torch.zeros_like(mean))]
    return values + profile(distance, (lower - mean, upper - mean), differences, (across, f"{unit}, with the mean taken away"))


def _along(images: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """(N,) the values of the first image at those pixels."""
    return images[0, 0].cpu().double()[i, j]
