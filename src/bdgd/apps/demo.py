"""`bdgd demo`: the paper's sparse-view scan of two phantoms, reconstructed, as a figure and a table."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from bdgd.apps.console import Output
from bdgd.apps.options import Device, Seed, choose_device, make_folder
from bdgd.apps.provenance import hardware, provenance
from bdgd.classical import fbp, tv
from bdgd.data import GaussianNoise, ellipse_images, named_generator, shepp_logan, simulate
from bdgd.evaluation import Panel, Scale, panels, save_figure
from bdgd.metrics import psnr, ssim
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.storage import write_json

NOISE = GaussianNoise(0.01)
PHANTOMS = ("Shepp-Logan", "ellipses")
METHODS = {"FBP": fbp, "TV": lambda A, y: tv(A, y, weight=TV_WEIGHT)}
TV_WEIGHT = 1e-4  # what `bdgd evaluate tv` chooses on validation images
ELLIPSE_IMAGE = 3  # of the test set
NEXT = [
    ("bdgd doctor", "what runs here, whether it is right, and how fast"),
    ("bdgd simulate -o scan.h5", "a scan of your own making"),
    ("bdgd evaluate --images 11", "both methods on more images"),
]


class YesNo(StrEnum):
    yes = "yes"
    no = "no"


Folder = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]
Open = Annotated[YesNo, typer.Option("--open", help="Show the figure afterwards.")]


def demo(out: Output, output: Folder = Path("demo"), open: Open = YesNo.no, seed: Seed = 0, device: Device = "auto") -> None:
    """Simulate a scan with 30 views, reconstruct it by FBP and TV, and write a figure. Needs no input."""
    where = choose_device(device)
    make_folder(output)
    start = time.perf_counter()
    A = RayTransform(ParallelBeam.sparse(image_size=128, views=30), where)
    truth = torch.cat((shepp_logan(128), ellipse_images("test", ELLIPSE_IMAGE + 1)[ELLIPSE_IMAGE:]))
    scans = simulate(A, truth, NOISE, generator=named_generator("demo noise", seed))
    estimates: dict[str, Tensor] = {}
    with out.progress("reconstructing", len(METHODS)) as step:
        for name, method in METHODS.items():
            estimates[name] = method(A, scans.sinograms.to(where)).cpu()
            step(figure=name)
    rows = _score(truth, estimates)
    _write(output, truth, estimates, rows, provenance(seed, where))
    out.table(
        ("phantom", "method", "PSNR / dB", "SSIM"),
        [(row["phantom"], row["method"], f"{row['psnr']:.2f}", f"{row['ssim']:.4f}") for row in rows],
        "30 views of 128 x 128 pixels, 1 % noise",
        right=("PSNR / dB", "SSIM"),
    )
    out.say(f"wrote {output / 'demo.png'} and {output / 'demo.json'} in {time.perf_counter() - start:.1f} s on {hardware(where)}")
    out.table(("", ""), NEXT, "Try next")
    if open == YesNo.yes and typer.launch(str(output / "demo.png")):
        out.note(f"no program opened {output / 'demo.png'}; open it by hand")


def _score(truth: Tensor, estimates: dict[str, Tensor]) -> list[dict[str, Any]]:
    """One row per phantom and method."""
    quality = {name: (psnr(estimate, truth).tolist(), ssim(estimate, truth).tolist()) for name, estimate in estimates.items()}
    return [
        {"phantom": phantom, "method": name, "psnr": psnrs[i], "ssim": ssims[i]}
        for i, phantom in enumerate(PHANTOMS)
        for name, (psnrs, ssims) in quality.items()
    ]


def _write(folder: Path, truth: Tensor, estimates: dict[str, Tensor], rows: list[dict[str, Any]], origin: dict[str, Any]) -> None:
    """The figure (truth, reconstructions, error of TV) and the numbers."""
    title = {(row["phantom"], row["method"]): f"{row['method']}, {row['psnr']:.1f} dB" for row in rows}
    error = Scale("error of TV", -0.1, 0.1, "RdBu_r")
    shown = []
    for i, phantom in enumerate(PHANTOMS):
        reconstructions = [Panel(estimate[i, 0], title[phantom, name]) for name, estimate in estimates.items()]
        difference = Panel(estimates["TV"][i, 0] - truth[i, 0], "TV - truth", error)
        shown.append([Panel(truth[i, 0], "truth"), *reconstructions, difference])
    save_figure(panels(shown, PHANTOMS), folder / "demo.png")
    described = {"views": 30, "noise": NOISE.to_dict(), "tv_weight": TV_WEIGHT}
    write_json(folder / "demo.json", {**described, "provenance": origin, "results": rows})
