"""`bdgd reproduce`: the paper's tables, figures and claims from our code, with the paper's numbers beside ours."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bdgd.apps.cells import make_table
from bdgd.apps.console import Output
from bdgd.apps.devices import make_devices
from bdgd.apps.epistemic import make_epistemic
from bdgd.apps.errorbars import make_errorbars
from bdgd.apps.gains import make_gains
from bdgd.apps.honesty import make_honesty
from bdgd.apps.options import Device, choose_device, make_folder
from bdgd.apps.paper import make_claims, make_figure
from bdgd.apps.reproduction import Reproduction, scored_models
from bdgd.checks import InputError, require_choice
from bdgd.evaluation import FULL, QUICK
from bdgd.evaluation.pages import has_place, require_place
from bdgd.evaluation.tables import rows


class What(StrEnum):
    table1 = "table1"
    table2 = "table2"
    fig2 = "fig2"
    fig3 = "fig3"
    fig4 = "fig4"
    fig5 = "fig5"
    fig6 = "fig6"
    worst = "worst"
    gains = "gains"
    claims = "claims"
    errorbars = "errorbars"
    devices = "devices"
    epistemic = "epistemic"
    honesty = "honesty"
    all = "all"


_TABLES = {What.table1: "sparse30", What.table2: "limited120"}
_FIGURES = (What.fig2, What.fig3, What.fig4, What.fig5, What.fig6, What.worst)
#: what fills a place of a page, and what of it is no part of all
_PLACES = (*_TABLES, What.gains, What.claims, What.errorbars, What.devices, What.epistemic, What.honesty)
_ALONE = (What.devices, What.epistemic, What.honesty)
_WHAT = (
    "A table (sparse view, limited view), a figure, the worst test image, the gain over FBP of each of 1000 test images, the claims or"
    " the error bars as numbers, or all of it."
    " devices compares CPU and GPU; epistemic trains ten models, honesty seven, two of them the same."
)

Wanted = Annotated[What, typer.Argument(help=_WHAT)]
Results = Annotated[Path, typer.Option("--results", help="Where everything is kept; --quick uses its folder quick.")]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, help="Seeds of the tables: of test noise and draws, and of the training where RUNS has it.")
]
Runs = Annotated[Path, typer.Option("--runs", help="Trainings of your own: RUNS/MODEL-seedN/model.safetensors.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few test images and draws: minutes on two cores, and says so in all it writes.")]
Images = Annotated[
    int | None, typer.Option("--images", min=1, help="Training images of epistemic and honesty instead of the preset's 4000.")
]
Draws = Annotated[int | None, typer.Option("--draws", min=2, help="Draws of epistemic and honesty instead of 100.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="METHOD", help="For tables, gains and devices: score no other; may be given several times."),
]
Page = Annotated[Path | None, typer.Option("--page", help="A Markdown page with <!-- table1 --> ... <!-- /table1 --> to fill.")]


def reproduce(
    out: Output,
    what: Wanted = What.all,
    results: Results = Path("results"),
    seeds: Seeds = 1,
    runs: Runs = Path("runs"),
    only: Only = None,
    quick: Quick = False,
    page: Page = None,
    images: Images = None,
    draws: Draws = None,
    device: Device = "auto",
) -> None:
    """Make the paper's tables, figures and claims from shipped weights, with the paper's numbers beside ours.

    Tables: FBP, TV and every shipped model on 100 ellipse images and Shepp-Logan. Figures: PNG with a JSON of their numbers.
    What is there already is kept, so an interrupted run goes on where it was; delete a file to make it again. A model that is
    not shipped is left out, with what it would cost to train.

    devices, no part of all: the tables of the shipped models in float32 on this device, beside those of the devices it was run on before.
    epistemic, no part of all: kinds of epistemic uncertainty compared in one table, each trained by the same short schedule into RUNS.
    honesty, no part of all: what the authors' released code does otherwise than the paper's formulas, and what that changes, by the
    same schedule; it uses the trainings of epistemic that are there, and what is kept of table1 and gains.
    """
    if what not in (What.epistemic, What.honesty):
        for option, value in (("--images", images), ("--draws", draws)):
            if value is not None:
                raise InputError(f"{option} is for `bdgd reproduce epistemic` and `honesty`; leave it out")
    if quick and page is not None:
        raise InputError("--quick does not fill a page, which would then show numbers from few images; leave out --page or --quick")
    if page is not None:
        _require_page(page, what)
    for method in only or ():
        require_choice(method, _methods(what), "--only")
    folder, effort = results / "quick" if quick else results, QUICK if quick else FULL
    effort = replace(effort, draws=draws or effort.draws)
    job = Reproduction(out, make_folder(folder), choose_device(device), effort, seeds, runs, tuple(only or ()))
    if quick:
        out.note(f"{job.effort.note()}; writing to {job.folder}")
    for table, setting in _TABLES.items():
        if what in (table, What.all):
            make_table(job, table, setting, page)
    for figure in _FIGURES:
        if what in (figure, What.all):
            make_figure(job, figure)
    if what in (What.gains, What.all):
        make_gains(job, page)
    if what in (What.claims, What.all):
        make_claims(job, page)
    if what in (What.errorbars, What.all):
        make_errorbars(job, page)
    if what == What.devices:  # not in all, since it is the same table again
        make_devices(job, page)
    if what == What.epistemic:  # not in all, which is made from shipped weights
        make_epistemic(job, page, images)
    if what == What.honesty:
        make_honesty(job, page, images)


def _require_page(page: Path, what: What) -> None:
    """Raise, before hours of work, where nothing of what is wanted has a place in the page."""
    wanted = [place for place in _PLACES if place == what or (what == What.all and place not in _ALONE)]
    if not wanted:
        raise InputError(f"--page is for tables, and {what} is a picture with a file of its own; leave it out")
    if not page.is_file() or not any(has_place(page, place) for place in wanted):
        require_place(page, wanted[0])


def _methods(what: What) -> list[str]:
    """What can be scored alone."""
    if what in _TABLES:
        return [row.method for row in rows(_TABLES[what])]
    if what in (What.gains, What.devices):
        return sorted(scored_models())
    raise InputError("--only is for the tables, gains and devices; leave it out")
