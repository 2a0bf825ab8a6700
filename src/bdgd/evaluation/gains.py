"""By how much a model's image of each test scan is better than the filtered back-projection of the same scan: does it ever do harm?

The images are those of the set "test", the first of which are the tables'; a mean over images cannot say what happens to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from bdgd.data import ellipse_images
from bdgd.evaluation.benchmark import Effort, Told, images_at_once, noisy_scans, true_images
from bdgd.evaluation.methods import find_method
from bdgd.evaluation.pages import markdown_table
from bdgd.metrics import psnr
from bdgd.operators import RayTransform

#: Draws per image at most: their mean is hardly better from a hundred, and a thousand images take a tenth of the time.
DRAWS = 10

_COLUMNS = ("model", "draws", "images", "below FBP", "least gain (dB)", "mean gain (dB)", "lowest PSNR (dB)", "median PSNR (dB)")


def measure_gains(model: str, A: RayTransform, images: int, effort: Effort, report: Told) -> dict[str, Any]:
    """PSNR of the model and of FBP for the first so many test images, in their order. `report(images, least gain so far)`."""
    learned, fbp = (find_method(name)(A, 0, replace(effort, draws=min(DRAWS, effort.draws))) for name in (model, "fbp"))
    scans = noisy_scans(A, ellipse_images("test", images, A.domain_shape[1]), "test noise")
    found: dict[str, list[float]] = {"psnr": [], "fbp": []}
    batch = images_at_once(A.device)
    for y, truth in zip(scans.sinograms.split(batch), true_images(scans).split(batch), strict=True):
        for name, method in (("psnr", learned), ("fbp", fbp)):
            found[name] += [round(value, 4) for value in psnr(method.reconstruct(y), truth).tolist()]
        report(len(y), min(gains_of(found)))
    return {"draws": learned.recipe["draws"], **found}


def gains_of(cell: Mapping[str, Any]) -> list[float]:
    """The gain of every image in dB."""
    return [model - start for model, start in zip(cell["psnr"], cell["fbp"], strict=True)]


def gains_table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per model: how many images are worse than their FBP, and the images with the least gain and the lowest PSNR, by number."""
    return markdown_table(_COLUMNS, [_row(name, cells[name]) for name in sorted(cells)])


def _row(name: str, cell: Mapping[str, Any]) -> tuple[str, ...]:
    gains, scores = gains_of(cell), cell["psnr"]
    worse = sum(gain < 0 for gain in gains)
    return (
        name,
        str(cell["draws"]),
        str(len(gains)),
        f"**{worse}**" if worse else "none",
        f"{min(gains):.1f} (image {gains.index(min(gains))})",
        f"{fmean(gains):.1f}",
        f"{min(scores):.1f} (image {scores.index(min(scores))})",
        f"{median(scores):.1f}",
    )
