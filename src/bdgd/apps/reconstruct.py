"""`bdgd reconstruct`: sinograms in, images with error bars and a report out, scan after scan and slice after slice."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from bdgd.apps.console import Output, Step
from bdgd.apps.options import Device, Seed, choose_device
from bdgd.apps.outputs import NAMES, posterior_files
from bdgd.apps.pictures import percent, spread_colours
from bdgd.apps.provenance import digest, printable, provenance
from bdgd.apps.report import against_truth, report
from bdgd.apps.scan_tasks import Task, examine, result_folders
from bdgd.apps.subject import Subject, Thumbnail
from bdgd.checks import InputError
from bdgd.classical import fbp
from bdgd.data import Scans
from bdgd.evaluation.figures import Panel, Scale, panels
from bdgd.inference import Posterior, alarm, explain_rest, reconstruct_and_keep
from bdgd.inference import reconstruct as sample
from bdgd.inference.residual import residual
from bdgd.models import Reconstructor, load, pretrained
from bdgd.storage import replacing_together

#: What a reader of the report must know about --rest.
_ADDED = (
    "the smooth rest that the model leaves of the scan was added to its images: the intervals moved along, and what a calibration"
    " guarantees holds for the model's own images"
)
#: What is most often wrong with a scan that its image does not explain.
_TO_CHECK = (
    "Check that its values are line integrals, its unit of length, its axis (--axis estimate), which way its angles run, and the model."
)
_THUMBNAILS, _THUMBNAIL_PIXELS = 12, 160

Files = Annotated[list[Path], typer.Argument(metavar="SCAN", help="Scan files: a sinogram, or a stack of them, with their geometry.")]
Model = Annotated[str, typer.Option("--model", "-m", help=f"A .safetensors file, or a shipped model: {', '.join(pretrained())}.")]
Level = Annotated[float, typer.Option("--level", help="Level of the intervals, between 0 and 1.")]
Regions = Annotated[Path | None, typer.Option("--regions", help="TOML file with discs and a profile line for the report.")]
Shown = Annotated[
    int | None, typer.Option("--slice", min=0, help="The slice of a stack that the report shows; the middle one unless given.")
]
Axis = Annotated[
    str | None,
    typer.Option("--axis", metavar="N|estimate", help="The detector that sees the axis of rotation, or estimate: in place of the file's."),
]
Rest = Annotated[bool, typer.Option("--rest", help="Add the smooth image that explains what the model leaves of the scan.")]
Nifti = Annotated[bool, typer.Option("--nifti", help="Also write mean.nii and std.nii.")]


def reconstruct(
    out: Output,
    scans: Files,
    model: Model = "sparse30-mfvi",
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")] = Path("reconstruction"),
    draws: Annotated[int, typer.Option("--draws", min=1, help="Monte-Carlo draws.")] = 100,
    level: Level = 0.95,
    regions: Regions = None,
    slice: Shown = None,
    nifti: Nifti = False,
    rest: Rest = False,
    axis: Axis = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Reconstruct scans with a trained model: mean, standard deviation and interval per pixel, and a report.

    Writes posterior.h5, mean.tif, std.tif, posterior.png and report.html to OUTPUT, or to one folder per scan inside it for
    several scans. Open report.html first.
    """
    where = choose_device(device)
    if not 0 < level < 1:
        raise InputError(f"--level must lie between 0 and 1, got {level:g}")
    network = load(model, device=where)
    job = _Job(network, model, draws, level, seed, nifti, regions, rest, axis)
    tasks = [
        examine(path, network, draws, regions=regions, shown=slice, axis=_axis(axis)) for path in scans
    ]  # all of them, before the first is worked on
    for task in tasks:
        for note in task.notes:
            out.note(f"{task.path.name}: {note}")
    folders = result_folders(output, [task.path for task in tasks])
    done: list[_Line] = []
    with out.progress("reconstructing", sum(task.grid.slices for task in tasks) * (draws if network.random else 1)) as step:
        for task, folder in zip(tasks, folders, strict=True):
            done += _work(task, job, folder, step)
    _summarise(out, done, folders)


def _axis(text: str | None) -> float | str | None:
    """The option as `open_stack` takes it: a number, "estimate", or None for what the file says."""
    if text is None or text == "estimate":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--axis takes the number of a detector or the word estimate, got {text!r}") from None


@dataclass(frozen=True, eq=False)
class _Job:
    """What all scans share."""

    network: Reconstructor
    model: str
    draws: int
    level: float
    seed: int
    nifti: bool
    regions: Path | None
    rest: bool
    axis: str | None

    def command(self, task: Task, folder: Path) -> str:
        """The line that makes this result again."""
        words = ["bdgd", "reconstruct", str(task.path), "--model", self.model, "--draws", str(self.draws), "--level", f"{self.level:g}"]
        words += ["--seed", str(self.seed)]
        words += ["--regions", str(self.regions)] if self.regions else []
        words += ["--slice", str(task.shown)] if task.grid.slices > 1 else []
        words += ["--nifti"] if self.nifti else []
        words += ["--rest"] if self.rest else []
        words += ["--axis", self.axis] if self.axis is not None else []
        return shlex.join([*words, "-o", str(folder)])


@dataclass(frozen=True)
class _Line:
    """What the summary says of one slice."""

    scan: str
    cells: list[str]
    doubt: str  # why its error bars need not hold


def _work(task: Task, job: _Job, folder: Path, step: Step) -> list[_Line]:
    """Reconstruct one file and write its folder; a line of the summary for every slice."""
    start, origin = time.perf_counter(), _origin(task, job)
    job = job if task.calibrated else replace(job, network=job.network.with_calibration(None))
    spread_out = set(torch.linspace(0, task.grid.slices - 1, min(task.grid.slices, _THUMBNAILS)).round().int().tolist())
    lines, thumbnails, shown = [], [], None
    with replacing_together(folder, earlier=NAMES) as temporary:
        with posterior_files(temporary, task.grid, job.level, origin, nifti=job.nifti) as add:
            for index, scan in enumerate(task.slices()):
                subject = _reconstruct(task, job, scan, index, step)
                add(subject.posterior)
                lines.append(_Line(task.path.name, _row(task.path.name, subject), subject.doubt()))
                if task.grid.slices > 1 and index in spread_out:
                    thumbnails.append(_thumbnail(subject))
                shown = subject if index == task.shown else shown
        assert shown is not None
        figure = panels([picture(shown.posterior, job.level, shown.truth, shown.grid.value_unit)])
        figure.savefig(temporary / "posterior.png", dpi=160)
        origin["seconds"] = round(time.perf_counter() - start, 1)
        page = report(replace(shown, origin=origin, thumbnails=thumbnails, command=job.command(task, folder)))
        (temporary / "report.html").write_text(page, encoding="utf-8")
    return lines


def _reconstruct(task: Task, job: _Job, scan: Scans, index: int, step: Step) -> Subject:
    """One slice, every one with the same draws of the weights: its result does not depend on the stack it is in."""
    A, y = job.network.A, scan.sinograms.to(job.network.device)
    generator = torch.Generator().manual_seed(job.seed)
    make = reconstruct_and_keep if index == task.shown else sample  # the report looks at the draws of the slice it shows
    posterior = make(job.network, y, job.draws, generator=generator, on_draw=lambda _: step())
    if not bool(posterior.mean.isfinite().all() & posterior.std.isfinite().all()):
        raise InputError(
            f"{task.path}, slice {index}: the image is not finite; the scan's largest value is {float(y.abs().max()):.3g},"
            " check that it holds line integrals, -log of the transmitted share"
        )
    light = alarm(job.network, y, posterior) if job.network.has_alarm else None  # of what the model itself says
    posterior = explain_rest(job.network, y, posterior) if job.rest else posterior
    return Subject(
        name=printable(task.path.name),
        geometry=task.geometry,
        grid=task.grid,
        posterior=posterior,
        fbp=fbp(A, y),
        residual=residual(A, posterior.mean, y, scan.noise, scan.correction),
        places=task.places,
        level=job.level,
        truth=scan.images,
        slice=index,
        alarm=light,
        notes=(*task.notes, _ADDED) if job.rest else task.notes,
    )


def _thumbnail(subject: Subject) -> Thumbnail:
    """The mean, averaged over so many pixels that it gets small."""
    mean = subject.posterior.mean
    factor = -(-max(mean.shape[2:]) // _THUMBNAIL_PIXELS)
    small = torch.nn.functional.avg_pool2d(mean, factor, ceil_mode=True)[0, 0].cpu()
    return Thumbnail(subject.slice, small, float(subject.posterior.std.mean()), subject.residual.ratio)


def _origin(task: Task, job: _Job) -> dict[str, Any]:
    """Where the result comes from: the scan by its hash, the model with its own provenance, and what ran."""
    asked: dict[str, Any] = {"model": printable(job.model), "draws": job.draws if job.network.random else 1, "level": job.level}
    asked["calibrated"] = task.calibrated and not job.rest  # see `Origin.moved`
    asked |= {"rest": True} if job.rest else {}
    found: dict[str, Any] = {"scan": printable(task.path.name), "scan_sha256": digest(task.path)}
    found |= {"notes": list(task.notes)} if task.notes else {}
    found |= {"rotation_degrees": round(math.degrees(task.rotation), 6)} if task.rotation else {}
    found |= {"correction": task.correction.to_dict()} if task.correction is not None else {}
    return found | asked | provenance(job.seed, job.network.device) | {"model_provenance": job.network.provenance}


def picture(posterior: Posterior, level: float = 0.95, truth: Tensor | None = None, unit: str = "") -> list[Panel]:
    """Panels of the first image, coloured as in the report: mean, standard deviation, the error where the truth is known, and the rest."""
    lower, upper = posterior.interval(level)
    named = f" ({unit})".replace("$", r"\$") if unit else ""  # a dollar would start mathematics

    def spread(label: str, images: dict[str, Tensor]) -> list[Panel]:
        colours = spread_colours(*images.values())
        scale = Scale(label + named, colours.low, colours.high, colours.name)
        return [Panel(image, title, scale) for title, image in images.items()]

    mean, std, epistemic = posterior.mean[0, 0], posterior.std[0, 0], posterior.epistemic[0, 0].sqrt()
    error = {} if truth is None else {"error": (mean.cpu() - truth[0, 0].cpu()).abs()}
    return [
        Panel(mean, "mean", Scale(f"value{named}", 0.0, float(mean.max()) or 1.0)),
        *spread("standard deviation, absolute error" if error else "standard deviation", {"std": std} | error),
        *spread("epistemic standard deviation", {"epistemic std": epistemic}),
        *spread(f"width of the {percent(level)} interval", {f"{percent(level)} interval width": (upper - lower)[0, 0]}),
    ]


def _row(name: str, subject: Subject) -> list[str]:
    posterior = subject.posterior
    figures = [f"{float(posterior.mean.max()):.4g}", f"{float(posterior.std.mean()):.3g}", f"{float(posterior.std.max()):.3g}"]
    quality = "" if subject.truth is None else f"{against_truth(posterior.mean, subject.truth.cpu()):.2f}"
    return [name, str(subject.slice), *figures, f"{subject.residual.ratio:.2f}", subject.alarm.light[0] if subject.alarm else "", quality]


def _summarise(out: Output, lines: Sequence[_Line], folders: Sequence[Path]) -> None:
    rows = [line.cells for line in lines]
    columns = ["scan", "slice", "largest value", "mean std", "largest std", "residual / noise", "alarm", "PSNR (dB)"]
    told = [k for k in range(len(columns)) if any(row[k] for row in rows)]  # no alarm without a calibration, no PSNR without the truth
    columns, rows = [columns[k] for k in told], [[row[k] for k in told] for row in rows]
    out.table(columns, rows, right=columns[1:])
    for scan in dict.fromkeys(line.scan for line in lines if line.doubt):
        doubts = [line.doubt for line in lines if line.scan == scan and line.doubt]
        more = f" (and {len(doubts) - 1} more of its slices)" if len(doubts) > 1 else ""
        out.note(f"{scan}{more}: {doubts[0]} {_TO_CHECK}")
    for folder in folders:
        out.say(f"wrote {folder}; open {folder / 'report.html'}")
