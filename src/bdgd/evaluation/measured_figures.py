"""A picture of measured scans: what every method makes of three of them, and where its segmentation is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bdgd.evaluation.challenge import MeasuredScan, ViewCondition
from bdgd.evaluation.figures import Panel, Scale, panels
from bdgd.evaluation.measured import Reconstructed
from bdgd.evaluation.measured_methods import MeasuredMethod
from bdgd.evaluation.measured_tables import MISSING, chosen_setting, read_entries
from bdgd.evaluation.segmentation import matthews, rotated, segmented
from bdgd.models import pretrained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Which scans are shown under which condition: one easy, one hard, and one that no method can solve.
FIGURES = (("ta", "views60"), ("04b", "arc60"), ("07a", "arc30"))
_ATTENUATION = Scale("attenuation (1/mm)", 0.0, 0.06)  # of acrylic: 0.035 in hardened scans, 0.05 in corrected ones
_STD = Scale("standard deviation (1/mm)", 0.0, 0.015, "magma")  # 0.3 of acrylic; the same in every row, so that rows compare
_ERRORS = Scale("segmentation minus the organisers'", -1.0, 1.0, "RdBu_r")


def measured_figure(
    folder: Path, shown: Sequence[tuple[MeasuredScan, ViewCondition]], method: Callable[[str], MeasuredMethod | None]
) -> Figure:
    """A row per scan: FBP, TV, where a model is shipped its mean and standard deviation, and the errors of the segmentations."""
    with_models = any(f"{condition.model}-mfvi" in pretrained() for _, condition in shown)
    drawn = [_row(folder, scan, condition, method, with_models) for scan, condition in shown]
    return panels(drawn, [f"{scan.name}, {condition.title}" for scan, condition in shown])


def _row(
    folder: Path, scan: MeasuredScan, condition: ViewCondition, method: Callable[[str], MeasuredMethod | None], with_models: bool
) -> list[Panel]:
    """FBP, TV, with_models a model's mean and standard deviation, and where the segmentations of TV and the model are wrong."""
    fbp = _found(folder, "fbp", method("fbp"), scan, condition)
    tv = _found(folder, "tv", method("tv"), scan, condition)
    row = [Panel(_seen(fbp), "FBP", _ATTENUATION), Panel(_seen(tv), "TV", _ATTENUATION)]
    errors = [_errors(tv, scan, "TV")]
    if with_models:
        name = f"{condition.model}-mfvi"
        trained = _found(folder, name, method(name), scan, condition) if name in pretrained() else None
        row += _model_panels(trained, scan)
        errors.append(_errors(trained, scan, "BDGD"))
    return row + errors


def _found(folder: Path, name: str, method: MeasuredMethod | None, scan: MeasuredScan, condition: ViewCondition) -> Reconstructed:
    """The image of the setting that the table takes for this scan; where there is no choice yet, the first."""
    assert method is not None
    entries = read_entries(folder, condition.name, name)
    wanted = chosen_setting(entries, scan.name, "mcc_inside") if scan.name in entries else None
    first = None
    for setting, found in method([scan], condition):
        first = first or found
        if setting == wanted or wanted is None:
            return found
    assert first is not None
    return first


def _model_panels(found: Reconstructed | None, scan: MeasuredScan) -> list[Panel]:
    """Mean and standard deviation; two blank panels where there is no model."""
    if found is None or found.posterior is None:
        blank = torch.zeros(scan.segmentation.shape)
        return [Panel(blank, f"BDGD: {MISSING}", _ATTENUATION)] * 2
    std = rotated(found.posterior.std, found.rotations[0])[0, 0]
    return [Panel(_seen(found), "BDGD mean", _ATTENUATION), Panel(std, "BDGD std", _STD)]


def _seen(found: Reconstructed) -> Tensor:
    """(N, N) the first image, turned to lie as the object did."""
    return rotated(found.images, found.rotations[0])[0, 0]


def _errors(found: Reconstructed | None, scan: MeasuredScan, name: str) -> Panel:
    """1 where the segmentation has acrylic that the organisers' has not, -1 where it misses some."""
    if found is None:
        return Panel(torch.zeros(scan.segmentation.shape), f"{name}: {MISSING}", _ERRORS)
    estimate = segmented(found.images, found.rotations[0])
    inside = matthews(estimate, scan.segmentation, scan.inside)
    title = f"{name}: MCC inside {inside:.2f}" if inside is not None else name
    return Panel(estimate.float() - scan.segmentation.float(), title, _ERRORS)
