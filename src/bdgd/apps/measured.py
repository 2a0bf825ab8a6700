"""`bdgd measured`: FBP, TV and trained models on the measured scans of the Helsinki Tomography Challenge 2022."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bdgd.apps.console import Output
from bdgd.apps.options import Device, Seed, choose_device, make_folder, require_writable
from bdgd.apps.provenance import provenance
from bdgd.checks import InputError
from bdgd.evaluation import FULL
from bdgd.evaluation.challenge import CONDITIONS, TRAINING, MeasuredScan, ViewCondition, find_scans, read_measured
from bdgd.evaluation.figures import Panel, Scale, panels, save_figure
from bdgd.evaluation.measured import disc_scores
from bdgd.evaluation.measured_figures import FIGURES, measured_figure
from bdgd.evaluation.measured_methods import (
    LINEAR,
    REST,
    MeasuredMethod,
    References,
    corrected,
    evaluate_scans,
    measured_fbp,
    measured_model,
    measured_tv,
    require_same,
)
from bdgd.evaluation.measured_tables import is_complete, is_made_by, label, measured_markdown, read_entries, write_entries
from bdgd.evaluation.mismatch import CORRECTION, mismatch, mismatch_table, read_mismatch
from bdgd.evaluation.pages import has_place, insert, require_place
from bdgd.evaluation.tooth import evaluate_tooth, read_tooth, read_tooth_scores, tooth_table
from bdgd.models import Reconstructor, load, pretrained
from bdgd.storage import write_json, write_text

Folder = Annotated[Path, typer.Argument(help="The challenge's scans as downloaded: .mat files, or compact .npz files.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="METHOD",
        help="fbp, tv, a model's name or file, also with +rest, each also with +linear; without any, all that is shipped.",
    ),
]
Results = Annotated[Path, typer.Option("--output", "-o", help="Where scores and tables are kept.")]
Scans = Annotated[list[str] | None, typer.Option("--scan", help="Only this scan (ta, 01a, ...); may be repeated.")]
Conditions = Annotated[list[str] | None, typer.Option("--condition", help=f"One of {', '.join(CONDITIONS)}; may be repeated.")]
WithReference = Annotated[bool, typer.Option("--reference/--no-reference", help="PSNR against TV from left-out views: slow on a CPU.")]
WithFigure = Annotated[bool, typer.Option("--figure", help="Also draw measured.png: three scans, each with every method.")]
Page = Annotated[Path | None, typer.Option("--page", help="A Markdown page with <!-- views60 --> ... <!-- /views60 --> and so on to fill.")]
ToothFile = Annotated[Path | None, typer.Option("--tooth", help="Also TomoPy's tooth (.npz) with a third of its views.")]
ToothModel = Annotated[str | None, typer.Option("--tooth-model", help="A model for it: 61 views, 256 x 256 pixels of two detectors.")]
Draws = Annotated[int, typer.Option("--draws", min=1, help="Monte-Carlo draws of a trained model.")]

#: Scans that go together on a CPU: more share the reading of the matrix, fewer are lost when it is interrupted.
_ON_CPU = 4
#: The methods that are no models.
_PLAIN = ("disc", "fbp", "tv")


def measured(
    out: Output,
    folder: Folder,
    methods: Names = None,
    output: Results = Path("results/measured"),
    scan: Scans = None,
    condition: Conditions = None,
    reference: WithReference = True,
    figure: WithFigure = False,
    page: Page = None,
    draws: Draws = FULL.draws,
    seed: Seed = 0,
    tooth: ToothFile = None,
    tooth_model: ToothModel = None,
    device: Device = "auto",
) -> None:
    """Score methods on measured scans: few views and limited arcs, against segmentation, left-out views and the filled disc.

    Scores that are there already are kept, so an interrupted run goes on where it was; delete a method's file to make them again.
    Those of another model of the same name, other draws or another seed are replaced.
    Example: bdgd measured htc2022 fbp --no-reference
    """
    where, conditions = choose_device(device), [_condition(name) for name in condition or CONDITIONS]
    _require_page(page, [asked.name for asked in conditions] + (["tooth"] if tooth is not None else []))
    everything = find_scans(folder)
    references = References(make_folder(output) / "references", where) if reference else None
    job = _Job(output, _chosen(everything, scan), references, draws, seed, where)
    asked_for = methods or []
    methods = [job.evaluated_as(name) for name in asked_for]  # a wrong name is said before any work is done
    for name in (name for name in asked_for if name not in methods):
        out.note(f"{name} carries a correction, so that it is evaluated on corrected scans, as {name}{LINEAR}")
    for asked in conditions:
        for name in methods or _available(out, job, asked):
            _fill(out, job, asked, name)
    _describe_mismatch(out, output, everything, where, page)
    for asked in conditions:
        text = measured_markdown(output, asked)
        write_text(output / f"{asked.name}.md", text + "\n")
        _show(out, page, asked.name, text)
    if tooth is not None:
        _tooth(out, job, tooth, tooth_model)
    if scores := read_tooth_scores(output / "tooth.json"):
        _show(out, page, "tooth", tooth_table(scores))
    if figure:
        _draw(out, output, everything, job.method)


def _require_page(page: Path | None, markers: Sequence[str]) -> None:
    """Raise, before any work is done, where the page cannot be written or lacks a place for what is asked for."""
    if page is not None:
        for marker in markers:
            require_place(page, marker)
        require_writable(page)


def _show(out: Output, page: Path | None, marker: str, table: str) -> None:
    """A table on the terminal, and in its place of the page, if it has one."""
    if page is not None and has_place(page, marker):
        insert(page, marker, table)
    out.say(table + "\n")


def _condition(name: str) -> ViewCondition:
    if name not in CONDITIONS:
        raise InputError(f"--condition must be one of {', '.join(CONDITIONS)}, got {name!r}")
    return CONDITIONS[name]


def _chosen(paths: dict[str, Path], names: Sequence[str] | None) -> dict[str, Path]:
    for name in names or ():
        if name not in paths:
            raise InputError(f"--scan must be one of {', '.join(paths)}, which the folder holds, got {name!r}")
    return {name: path for name, path in paths.items() if not names or name in names}


def _available(out: Output, job: _Job, condition: ViewCondition) -> list[str]:
    """Everything that fits the condition, a model that carries a correction only with it; a model that is not shipped is named."""
    wanted = [f"{condition.model}-{kind}" for kind in ("dgd", "mfvi")]
    for name in wanted:
        if name not in pretrained():
            out.note(f"{condition.name}: no trained model {name} is shipped yet; its row stays empty")
    models = [name for name in wanted if name in pretrained()]
    methods = ["fbp", "tv", *models, *(f"{name}{REST}" for name in models)]
    return ["disc", *(name for name in methods if job.evaluated_as(name) == name), *(f"{name}{LINEAR}" for name in methods)]


@dataclass(frozen=True, eq=False)
class _Job:
    """What all conditions and methods share; scans and models are read once."""

    folder: Path
    paths: dict[str, Path]
    references: References | None
    draws: int
    seed: int
    device: torch.device
    scans: dict[str, MeasuredScan] = field(default_factory=dict)
    models: dict[str, Reconstructor] = field(default_factory=dict)

    def scan(self, name: str, linear: bool) -> MeasuredScan:
        """With linear, its air and beam hardening corrected."""
        key = f"{name}{LINEAR}" if linear else name
        if key not in self.scans:
            self.scans[key] = corrected(self.scan(name, False)) if linear else read_measured(name, self.paths[name])
        return self.scans[key]

    def method(self, name: str) -> MeasuredMethod | None:
        """The method of a name, with or without +linear; None is the filled disc, which looks at the segmentation alone."""
        plain = name.removesuffix(LINEAR)
        if plain == "disc":
            return None
        if plain in ("fbp", "tv"):
            return partial(measured_fbp if plain == "fbp" else measured_tv, self.device)
        return partial(measured_model, self.model(plain), self.draws, self.seed, rest=plain.endswith(REST))

    def model(self, name: str) -> Reconstructor:
        """The model of a name, with or without +rest."""
        name = name.removesuffix(REST)
        if name not in pretrained() and not Path(name).is_file():
            raise InputError(f"METHOD must be disc, fbp, tv, a shipped model, or the file of a model, got {name!r}; check its name")
        if name not in self.models:
            self.models[name] = load(name, device=self.device)
        return self.models[name]

    def made_by(self, name: str) -> dict[str, Any] | None:
        """What the scores of a model depend on besides the scan; None for a method that is no model."""
        plain = name.removesuffix(LINEAR)
        if plain in _PLAIN:
            return None
        model = self.model(plain)
        draws = self.draws if model.random else 1
        calibration = model.calibrated_for(draws).calibration
        fingerprint = None if calibration is None else calibration.fingerprint()
        return {"weights": model.fingerprint(), "calibration": fingerprint, "draws": draws, "seed": self.seed}

    def evaluated_as(self, name: str) -> str:
        """The name, with +linear for a model that carries a correction: its values are those of corrected scans and of no others."""
        plain = name.removesuffix(LINEAR)
        if plain in _PLAIN or (correction := self.model(plain).correction) is None:
            return name
        require_same(correction, CORRECTION)
        return f"{plain}{LINEAR}"


def _fill(out: Output, job: _Job, condition: ViewCondition, name: str) -> None:
    """Add the scans that are not there yet: all at once on a GPU, which takes as long as one; a few at a time on a CPU."""
    method, made_by, before = job.method(name), job.made_by(name), read_entries(job.folder, condition.name, name)
    shipped = name.removesuffix(LINEAR).removesuffix(REST) in pretrained()
    there = {scan: entry for scan, entry in before.items() if is_made_by(entry, made_by, shipped=shipped)}
    if len(there) < len(before):
        out.note(f"{condition.name}: {label(name)}.json is of another model of that name, other draws or another seed; it is made again")
    needed = job.references is not None and method is not None
    missing = [scan for scan in job.paths if not is_complete(there.get(scan), needed)]
    together = _ON_CPU if job.device.type == "cpu" else len(job.paths)
    with out.progress(f"{condition.name} {name}", len(missing)) as step:
        for first in range(0, len(missing), together):
            scans = [job.scan(scan, name.endswith(LINEAR)) for scan in missing[first : first + together]]
            results = _results(name, method, scans, condition, job.references)
            origin = provenance(job.seed, job.device)
            own = {"provenance": origin} if made_by is None else {"made_by": made_by, "provenance": origin}
            there |= {scan: {"results": found, **own} for scan, found in results.items()}
            write_entries(job.folder, condition.name, name, there)
            last = scans[-1].name
            step(len(scans), f"{last}: {max((score['mcc_inside'] or 0.0) for score in results[last].values()):.3f}")


def _results(
    name: str, method: MeasuredMethod | None, scans: Sequence[MeasuredScan], condition: ViewCondition, references: References | None
) -> dict[str, dict[str, dict[str, float | None]]]:
    """{scan: {setting: {score: value}}}."""
    if method is None:
        return {scan.name: {"disc": asdict(disc_scores(scan))} for scan in scans}
    return evaluate_scans(name, method, scans, condition, references)


def _describe_mismatch(out: Output, folder: Path, paths: dict[str, Path], device: torch.device, page: Path | None) -> None:
    """How the scanner departs from y = A x, measured on those training scans that are there."""
    training = {name: path for name, path in paths.items() if name in TRAINING}
    if not training:
        return
    kept = folder / "mismatch.json"
    found, origin = read_mismatch(kept)
    if [entry.name for entry in found] != list(training):
        with out.waiting("measuring air, noise, axis and beam hardening on the training scans"):
            found = [mismatch(read_measured(name, path), device) for name, path in training.items()]
        origin = provenance(None, device)
        write_json(kept, {"scans": [asdict(entry) for entry in found], "provenance": origin})
    text = mismatch_table(found, origin)
    write_text(folder / "mismatch.md", text + "\n")
    _show(out, page, "mismatch", text)


def _tooth(out: Output, job: _Job, path: Path, model: str | None) -> None:
    """Score the methods on the tooth, and write tooth.json and tooth.png."""
    scans, network = read_tooth(path), None if model is None else load(model, device=job.device)
    with out.waiting("reconstructing the tooth"):
        scores, images = evaluate_tooth(scans, job.device, network, job.draws, job.seed)
    write_json(job.folder / "tooth.json", {"scores": [asdict(s) for s in scores], "provenance": provenance(job.seed, job.device)})
    scale = Scale("attenuation per detector width", 0.0, float(images["reference"].quantile(0.998)))
    save_figure(panels([[Panel(image[-1, 0], name, scale) for name, image in images.items()]]), job.folder / "tooth.png")
    out.say(f"wrote {job.folder / 'tooth.png'}")


def _draw(out: Output, folder: Path, paths: dict[str, Path], method: Callable[[str], MeasuredMethod | None]) -> None:
    """Write measured.png, from those of its scans that the folder holds."""
    shown = [(read_measured(scan, paths[scan]), CONDITIONS[name]) for scan, name in FIGURES if scan in paths]
    if not shown:
        raise InputError(f"--figure shows the scans {', '.join(scan for scan, _ in FIGURES)}, and the folder holds none of them")
    if lacking := [scan for scan, _ in FIGURES if scan not in paths]:
        out.note(f"measured.png: the folder does not hold {', '.join(lacking)}, so that their rows are left out")
    with out.waiting("drawing"):
        save_figure(measured_figure(folder, shown, method), folder / "measured.png")
    out.say(f"wrote {folder / 'measured.png'}")
