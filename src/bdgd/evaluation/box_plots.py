"""Figure 3 of the paper: how PSNR grows from block to block, as box plots over the test ellipses, for both geometries."""

from __future__ import annotations

from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from bdgd.data import ellipse_images
from bdgd.evaluation.figures import new_figure
from bdgd.evaluation.lab import Lab, display_name, side
from bdgd.inference.sampling import last_block
from bdgd.metrics import psnr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDES = {"sparse30": "sparse view: 30 views", "limited120": "limited view: [0°, 120°)"}
_COLOURS = ("tab:blue", "tab:orange", "tab:green")


def box_plots(lab: Lab, title: str) -> tuple[Figure, dict[str, Any]] | None:
    """The figure, and per model and block the quartiles and the mean of the PSNR; None where no model is shipped."""
    values = {setting: psnr_by_block(lab, setting) for setting in _SIDES}
    shown = {setting: models for setting, models in values.items() if models}
    if not shown:
        return None
    figure = new_figure(6.5 * len(shown), 4.2)
    figure.suptitle(title, fontsize=12)
    for axes, (setting, models) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        _draw(axes, models)
        axes.set_title(_SIDES[setting])
    return figure, {name: _summary(blocks) for models in shown.values() for name, blocks in models.items()}


def psnr_by_block(lab: Lab, setting: str) -> dict[str, list[list[float]]]:
    """Per model that is there, per block, the PSNR of every test ellipse image."""
    found = {}
    for name, model in lab.models((f"{setting}-mfvi", f"{setting}-mcdo")).items():
        truth = ellipse_images("test", lab.effort.ellipses, side(model))
        looks = lab.look_after(model, lab.sinograms(model, truth), range(1, last_block(model) + 1), name)
        found[name] = [psnr(look.mean, truth).tolist() for look in looks.values()]
    return found


def _draw(axes: Axes, models: dict[str, list[list[float]]]) -> None:
    """Boxes side by side at each block; a box holds half of the images, whiskers reach 1.5 times its height, dots are outliers."""
    width, handles = 0.8 / len(models), []
    for number, (name, blocks) in enumerate(models.items()):
        places = [k + (number - (len(models) - 1) / 2) * width for k in range(1, len(blocks) + 1)]
        boxes = axes.boxplot(
            blocks, positions=places, widths=0.85 * width, patch_artist=True, manage_ticks=False, flierprops={"markersize": 2}
        )
        for box in boxes["boxes"]:
            box.set(facecolor=_COLOURS[number], alpha=0.6)
        for middle in boxes["medians"]:
            middle.set_color("black")
        handles.append((boxes["boxes"][0], display_name(name)))
    most = max(len(blocks) for blocks in models.values())
    axes.set(xlabel="block", ylabel="PSNR (dB)", xticks=[k for k in range(1, most + 1) if most <= 12 or k % 2 == 0], xlim=(0.3, most + 0.7))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(*zip(*handles, strict=True), loc="lower right", frameon=False)


def _summary(blocks: list[list[float]]) -> dict[str, Any]:
    summary = {}
    for k, values in enumerate(blocks, 1):
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        summary[f"block {k}"] = {"mean": fmean(values), "quartile": low, "median": middle, "upper quartile": high}
    return summary
