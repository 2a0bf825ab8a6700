"""`bdgd demo`: the paper's sparse-view scan of two phantoms, reconstructed, as a figure, a table and a report."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from bdgd.apps.console import Output
from bdgd.apps.options import Device, Seed, choose_device, make_folder, wrong_draws
from bdgd.apps.outputs import Grid
from bdgd.apps.places import default_places
from bdgd.apps.provenance import hardware, provenance
from bdgd.apps.report import report
from bdgd.apps.subject import Subject
from bdgd.classical import fbp, tv
from bdgd.data import GaussianNoise, ellipse_images, named_generator, shepp_logan, simulate
from bdgd.evaluation import Panel, Scale, panels, save_figure
from bdgd.evaluation.strata import object_pixels
from bdgd.inference import Posterior, alarm, reconstruct_and_keep
from bdgd.inference.residual import residual
from bdgd.metrics import psnr, ssim
from bdgd.models import Reconstructor, load, ray_transform
from bdgd.storage import write_json, write_text

MODEL = "sparse30-mfvi"
NOISE = GaussianNoise(0.01)
LEVEL = 0.9  # of the intervals in the figure
PHANTOMS = ("Shepp-Logan", "ellipses")
TV: dict[str, Any] = {"weight": 1e-4, "isotropic": False}  # what `bdgd evaluate tv` chooses on validation ellipses
ELLIPSE_IMAGE = 3  # of the test set
NEXT = [
    ("bdgd doctor", "what runs here, whether it is right, and how fast"),
    ("bdgd simulate -o scan.h5", "a scan of your own making"),
    ("bdgd reconstruct scan.h5", "its image with error bars"),
    ("bdgd evaluate --images 11", "methods compared on more images"),
]


Folder = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]
Open = Annotated[bool, typer.Option("--open", help="Show the report afterwards.")]


def demo(
    out: Output,
    output: Folder = Path("demo"),
    open: Open = False,
    draws: Annotated[int, typer.Option("--draws", min=2, help="Monte-Carlo draws.")] = 100,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Reconstruct a scan of 30 views with error bars, by shipped weights, beside FBP and TV; write figure and report. Needs no input."""
    where = choose_device(device)
    make_folder(output)
    start = time.perf_counter()
    model = load(MODEL, device=where)
    if wrong := wrong_draws(model, draws):
        out.note(wrong)
    model = model.calibrated_for(draws)
    truth = torch.cat((shepp_logan(128), ellipse_images("test", ELLIPSE_IMAGE + 1)[ELLIPSE_IMAGE:]))
    y = simulate(model.A, truth, NOISE, generator=named_generator("demo noise", seed)).sinograms.to(where)
    estimates, posteriors = _reconstructed(out, model, y, draws, seed)
    origin = {**provenance(seed, where), "model": MODEL, "draws": draws}
    command = f"bdgd demo --draws {draws} --seed {seed} -o {shlex.quote(str(output))}"
    _report(output, model, y[:1], truth[:1], posteriors[0], {**origin, "model_provenance": model.provenance}, command)
    rows = _score(truth, estimates)
    _write(output, truth, estimates, posteriors, rows, origin)
    out.table(
        ("phantom", "method", "PSNR / dB", "SSIM"),
        [(row["phantom"], row["method"], f"{row['psnr']:.2f}", f"{row['ssim']:.4f}") for row in rows],
        "30 views of 128 x 128 pixels, 1 % noise",
        right=("PSNR / dB", "SSIM"),
    )
    written = f"{output / 'report.html'}, {output / 'demo.png'} and {output / 'demo.json'}"
    out.say(f"wrote {written} in {time.perf_counter() - start:.1f} s on {hardware(where)}")
    out.table(("", ""), [*_activation(), *NEXT], "Try next")
    if open and typer.launch(str(output / "report.html")):
        out.note(f"no program opened {output / 'report.html'}; open it by hand")


def _activation() -> list[tuple[str, str]]:
    """How to put the command on the path, where it was started by its place in an environment, as `make demo` does."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("bdgd") is not None or not script.is_file():
        return []
    return [(f"source {shlex.quote(os.path.relpath(script))}", "first: puts the command bdgd on your path")]


def _reconstructed(out: Output, model: Reconstructor, y: Tensor, draws: int, seed: int) -> tuple[dict[str, Tensor], list[Posterior]]:
    """The phantoms' images (B, 1, H, W) on the CPU by each method, and the posterior of each phantom."""
    with out.progress("reconstructing", 2 + len(PHANTOMS) * draws) as step:
        estimates = {"FBP": fbp(model.A, y).cpu()}
        step(figure="TV")
        estimates["TV"] = tv(model.A, y, **TV).cpu()
        step(figure=f"bdgd, {draws} draws")
        # One by one: the report looks at the draws of the first alone, and an image's result does not depend on its batch.
        posteriors = [
            reconstruct_and_keep(model, part, draws, generator=named_generator("demo draws", seed), on_draw=lambda _: step())
            for part in y.split(1)
        ]
    estimates["bdgd"] = torch.cat([posterior.mean.cpu() for posterior in posteriors])
    return estimates, posteriors


def _report(
    folder: Path, model: Reconstructor, y: Tensor, truth: Tensor, posterior: Posterior, origin: dict[str, Any], command: str
) -> None:
    """The report of the first phantom, as `bdgd reconstruct` would write it."""
    geometry = ray_transform(model).geometry
    subject = Subject(
        name=f"{PHANTOMS[0]} phantom",
        geometry=geometry,
        grid=Grid(1, geometry.image_size, geometry.pixel_size),
        posterior=posterior,
        fbp=fbp(model.A, y),
        residual=residual(model.A, posterior.mean, y, NOISE),
        places=default_places(geometry),
        level=0.95,
        origin=origin,
        command=command,
        truth=truth,
        alarm=alarm(model, y, posterior) if model.has_alarm else None,
    )
    write_text(folder / "report.html", report(subject))


def _score(truth: Tensor, estimates: dict[str, Tensor]) -> list[dict[str, Any]]:
    """One row per phantom and method."""
    quality = {name: (psnr(estimate, truth).tolist(), ssim(estimate, truth).tolist()) for name, estimate in estimates.items()}
    return [
        {"phantom": phantom, "method": name, "psnr": psnrs[i], "ssim": ssims[i]}
        for i, phantom in enumerate(PHANTOMS)
        for name, (psnrs, ssims) in quality.items()
    ]


def _write(
    folder: Path,
    truth: Tensor,
    estimates: dict[str, Tensor],
    posteriors: list[Posterior],
    rows: list[dict[str, Any]],
    origin: dict[str, Any],
) -> None:
    """The figure and the numbers. For each phantom a line of images, and one of bdgd's error beside what bdgd says about it."""
    title = {(row["phantom"], row["method"]): f"{row['method']}, {row['psnr']:.1f} dB" for row in rows}
    error = (estimates["bdgd"] - truth).abs()
    inside = [_covered(posterior, t) for posterior, t in zip(posteriors, truth, strict=True)]
    error_scale = Scale("error, standard deviation and half of the interval", 0.0, float(torch.quantile(error, 0.998)), "magma")
    epistemic = torch.cat([posterior.epistemic.sqrt().cpu() for posterior in posteriors])
    epistemic_scale = Scale("epistemic standard deviation", 0.0, float(torch.quantile(epistemic, 0.998)), "magma")
    shown: list[list[Panel | None]] = []
    for i, (phantom, posterior) in enumerate(zip(PHANTOMS, posteriors, strict=True)):
        lower, upper = posterior.interval(LEVEL)
        shown.append([Panel(truth[i, 0], "truth"), *(Panel(image[i, 0], title[phantom, name]) for name, image in estimates.items())])
        shown.append([
            Panel(error[i, 0], "error of bdgd", error_scale),
            Panel(posterior.std[0, 0].cpu(), "standard deviation", error_scale),
            Panel(((upper - lower) / 2)[0, 0].cpu(), f"{LEVEL:.0%} interval: {inside[i]:.0%} of the object inside", error_scale),
            Panel(epistemic[i, 0], "of which between draws", epistemic_scale),
        ])  # fmt: skip
    save_figure(panels(shown, [name for phantom in PHANTOMS for name in (phantom, "how far to trust it")]), folder / "demo.png")
    described = {"views": 30, "noise": NOISE.to_dict(), "tv": TV, "level": LEVEL, "covered": dict(zip(PHANTOMS, inside, strict=True))}
    write_json(folder / "demo.json", {**described, "provenance": origin, "results": rows})


def _covered(posterior: Posterior, truth: Tensor) -> float:
    """The part of the object's pixels of truth (1, H, W) that lies in the interval."""
    lower, upper = (end[0].cpu() for end in posterior.interval(LEVEL))
    return float(((lower <= truth) & (truth <= upper))[object_pixels(truth)].float().mean())
