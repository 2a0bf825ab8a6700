"""Figures 2 to 6 of the paper from the shipped weights, and the test set's worst image.

A figure is a function of a `Lab` that returns the picture with the numbers it shows, or None where no model of it is shipped.
Variances are shown as their logarithm, on one scale per figure, so that blocks, methods and geometries can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bdgd.classical import fbp
from bdgd.data import shepp_logan
from bdgd.evaluation.benchmark import table_scans
from bdgd.evaluation.box_plots import box_plots
from bdgd.evaluation.classical import chosen_tv
from bdgd.evaluation.figures import Panel, Scale, panels
from bdgd.evaluation.lab import Lab, Look, display_name, quality, side
from bdgd.evaluation.maps import edge_contrast, spread, text_contrast, variance_panel, variance_scale
from bdgd.evaluation.methods import training_of
from bdgd.evaluation.subjects import ellipse_pictures, faint_ellipse, text_pictures
from bdgd.evaluation.tables import read_cell
from bdgd.inference.sampling import last_block
from bdgd.metrics import psnr
from bdgd.models import Reconstructor, pretrained, provenance_of, ray_transform

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GEOMETRIES = {"sparse30": "30 views over 180°", "limited60": "60 views over 60°", "limited120": "120 views over 120°"}

#: The model whose worst image is shown.
WORST = "sparse30-mfvi"


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure, what it shows in words, and the numbers it shows."""

    figure: Figure
    shows: str
    numbers: dict[str, Any]


def shown_blocks(model: Reconstructor) -> tuple[int, ...]:
    """The first, the middle and the last block: 1, 5 and 10 of the paper's ten."""
    blocks = last_block(model)
    return tuple(sorted({1, (blocks + 1) // 2, blocks}))


def draw_fig2(lab: Lab) -> Drawn | None:
    """Shepp-Logan from 30 views: mean and variance after the first, the middle and the last block."""
    models = {name: m for name, m in lab.models(("sparse30-mfvi", "sparse30-mcdo", "sparse30-mfvi-paper")).items() if m.random}
    if not models:
        return None
    first = next(iter(models.values()))
    truth = shepp_logan(side(first))
    blocks = min((shown_blocks(model) for model in models.values()), key=len)  # every row has as many panels
    looks = {name: lab.look_after(model, lab.sinograms(model, truth), blocks) for name, model in models.items()}
    scale = variance_scale(look.epistemic for path in looks.values() for look in path.values())
    start = fbp(ray_transform(first), lab.sinograms(first, truth)).cpu()
    numbers: dict[str, Any] = {"FBP": quality(start, truth)}
    left = [Panel(truth[0, 0], "truth"), Panel(start[0, 0], f"FBP, {numbers['FBP']['psnr']:.1f} dB")]
    rows: list[list[Panel | None]] = []
    for name, path in looks.items():
        numbers[name] = {f"block {k}": {**quality(look.mean, truth), "variance": spread(look)} for k, look in path.items()}
        means = [Panel(look.mean[0, 0], f"after block {k}, {float(psnr(look.mean, truth)):.1f} dB") for k, look in path.items()]
        variances = [variance_panel(look.epistemic, f"variance after {k}, mean {spread(look):.1e}", scale) for k, look in path.items()]
        rows.append([left[len(rows)] if len(rows) < 2 else None, *means, *variances])
    shows = "Figure 2: Shepp-Logan from 30 views, mean and epistemic variance after blocks of the cascade"
    return Drawn(panels(rows, [display_name(name) for name in looks], lab.title(shows)), shows, numbers)


def draw_fig3(lab: Lab) -> Drawn | None:
    """Box plots of PSNR by block for both geometries."""
    shows = "Figure 3: PSNR of the test ellipses after each block"
    drawn = box_plots(lab, lab.title(shows))
    return None if drawn is None else Drawn(drawn[0], shows, drawn[1])


def draw_fig4(lab: Lab) -> Drawn | None:
    """The limited-view image with a faint large ellipse: all methods, once with the grey values of the ellipse, and the variances."""
    models = lab.models([f"limited120-{kind}" for kind in ("lpd", "dgd", "mfvi", "mcdo", "best")])
    if not models:
        return None
    first = next(iter(models.values()))
    A, subject = ray_transform(first), faint_ellipse(side(first))
    truth, y = subject.image, lab.sinograms(first, subject.image)
    tv = chosen_tv(A, read_cell(lab.folder, "limited120", "tv"), lab.seed, lab.effort)
    looks = {name: Look(image.cpu(), torch.zeros_like(truth)) for name, image in (("FBP", fbp(A, y)), ("TV", tv.reconstruct(y)))}
    looks |= {display_name(name): lab.look(model, y) for name, model in models.items()}
    random = {display_name(name) for name, model in models.items() if model.random}
    scale = variance_scale(looks[name].epistemic for name in random) if random else None
    window = Scale("value, window of the faint ellipse", 0.0, 4 * subject.contrast)
    error_scale = Scale("absolute error", 0.0, 4 * subject.contrast, "magma")
    rows = [
        [Panel(truth[0, 0], "truth")],
        [Panel(truth[0, 0], "truth", window)],
        [Panel(subject.edge.float(), "edge of the faint ellipse")],
    ]
    numbers: dict[str, Any] = {"contrast of the faint ellipse": subject.contrast}
    for name, look in looks.items():
        numbers[name] = quality(look.mean, truth)
        rows[0].append(Panel(look.mean[0, 0], f"{name}, {numbers[name]['psnr']:.1f} dB"))
        rows[1].append(Panel(look.mean[0, 0], name, window))
        if name in random and scale is not None:
            numbers[name] |= edge_contrast(look, subject.edge, subject.flat)
            rows[2].append(variance_panel(look.epistemic, f"variance, edge / flat {numbers[name]['edge / flat']:.2g}", scale))
        else:
            rows[2].append(Panel((look.mean - truth)[0, 0].abs(), "error", error_scale))
    names = ("all values", f"values up to {window.high:.2g}", "error or variance")
    shows = "Figure 4: limited view [0°, 120°), an ellipse that almost blends into the background"
    return Drawn(panels(rows, names, lab.title(shows)), shows, numbers)


def draw_fig5(lab: Lab) -> Drawn | None:
    """Mean, variance and error of one ellipse image in three geometries."""
    return _geometries(lab, "Figure 5: mean and epistemic variance in different geometries", text=False)


def draw_fig6(lab: Lab) -> Drawn | None:
    """The same with a text that no training image contains."""
    return _geometries(lab, 'Figure 6: the same with the text "ICPR 2020", which no training image contains', text=True)


def _geometries(lab: Lab, shows: str, text: bool) -> Drawn | None:
    models = lab.models(("sparse30-mfvi", "sparse30-mfvi-paper", "limited60-mfvi", "limited120-mfvi"))
    if not models:
        return None
    size = side(next(iter(models.values())))
    written, mask = text_pictures(1, size)
    truth = written if text else ellipse_pictures(1, size)
    looks = {name: lab.look(model, lab.sinograms(model, truth)) for name, model in models.items()}
    scale = variance_scale(look.epistemic for look in looks.values())
    errors = {name: (look.mean - truth)[0, 0].abs() for name, look in looks.items()}
    error_scale = Scale("absolute error", 0.0, max(float(torch.quantile(error, 0.995)) for error in errors.values()) or 1.0, "magma")
    numbers: dict[str, Any] = {}
    rows: list[list[Panel | None]] = [
        [Panel(truth[0, 0], "truth")],
        [Panel(mask[0, 0].float(), "where the text is") if text else None],
        [None],
    ]
    for name, look in looks.items():
        numbers[name] = {**quality(look.mean, truth), "variance": spread(look), **(text_contrast(look, mask) if text else {})}
        told = f"mean {spread(look):.1e}" if not text else "text / rest {text / rest:.2g}, AUROC {AUROC:.2f}".format(**numbers[name])
        rows[0].append(Panel(look.mean[0, 0], f"{_geometry_name(name)}\n{numbers[name]['psnr']:.1f} dB"))
        rows[1].append(variance_panel(look.epistemic, f"variance, {told}", scale))
        rows[2].append(Panel(errors[name], "error", error_scale))
    return Drawn(panels(rows, ("mean", "epistemic variance", "error"), lab.title(shows)), shows, numbers)


def draw_worst(lab: Lab) -> Drawn | None:
    """The test ellipse image that the shipped model reconstructs worst, by the PSNR in its cell of Table I."""
    name, model, found = WORST, lab.model(WORST), table_scores(lab)
    if model is None or not found:
        return None
    scores = torch.tensor(found, dtype=torch.float64)
    number = int(scores.argmin())
    scan = table_scans(ray_transform(model), len(scores) + 1)[number]
    assert scan.images is not None
    truth, look, start = scan.images.cpu(), lab.look(model, scan.sinograms), fbp(ray_transform(model), scan.sinograms).cpu()
    error, std = (look.mean - truth)[0, 0].abs(), look.epistemic[0, 0].sqrt()
    share = float(error.square().flatten().sort(descending=True).values[: max(1, error.numel() // 100)].sum() / error.square().sum())
    numbers: dict[str, Any] = {
        "image": number,
        "of": len(scores),
        "psnr in the table": float(scores.min()),
        "median psnr in the table": float(scores.median()),
        "FBP": quality(start, truth),
        name: {**quality(look.mean, truth), "mean std": float(std.mean()), "mean error": float(error.mean())},
        "squared error in the worst 1 % of the pixels": share,
    }
    row = [
        Panel(truth[0, 0], f"truth, test image {number}"),
        Panel(start[0, 0], f"FBP, {numbers['FBP']['psnr']:.1f} dB"),
        Panel(look.mean[0, 0], f"{display_name(name)}, {numbers[name]['psnr']:.1f} dB"),
        Panel(error, f"error: {share:.0%} of its square in 1 % of pixels", Scale("absolute error", 0.0, float(error.max()), "magma")),
        Panel(std, "epistemic std", Scale("epistemic standard deviation", 0.0, float(std.max()) or 1.0, "magma")),
    ]
    shows = f"The worst of {len(scores)} test ellipse images by PSNR, 30 views"
    return Drawn(panels([row], title=lab.title(shows)), shows, numbers)


def table_scores(lab: Lab) -> list[float]:
    """PSNR of the test ellipses, with the first noise, by the training of `WORST` that is shipped; empty where its cell has none."""
    shipped = training_of(provenance_of(WORST)) if WORST in pretrained() else None
    for entry in read_cell(lab.folder, "sparse30", WORST):
        if entry["provenance"]["seed"] == 0 and entry["recipe"].get("trained") == shipped:
            return [float(value) for value in entry["psnr"][:-1]]  # the last is Shepp-Logan
    return []


def _geometry_name(model: str) -> str:
    return _GEOMETRIES[model.split("-")[0]] + (", paper's recipe" if model.endswith("-paper") else "")


#: The figures by the name under which `bdgd reproduce` knows them.
FIGURES: dict[str, Callable[[Lab], Drawn | None]] = {
    "fig2": draw_fig2,
    "fig3": draw_fig3,
    "fig4": draw_fig4,
    "fig5": draw_fig5,
    "fig6": draw_fig6,
    "worst": draw_worst,
}
