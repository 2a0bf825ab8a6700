"""`bdgd reconstruct`: sinograms in, images with error bars out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from bdgd.apps.console import Output
from bdgd.apps.options import Device, Seed, choose_device, make_folder
from bdgd.apps.provenance import provenance
from bdgd.checks import InputError
from bdgd.data import Scans, read_scans
from bdgd.evaluation.figures import Panel, Scale, panels, save_figure
from bdgd.inference import Posterior, alarm
from bdgd.inference import reconstruct as sample
from bdgd.metrics import psnr
from bdgd.models import Reconstructor, load
from bdgd.storage import replacing


def reconstruct(
    out: Output,
    scan: Annotated[Path, typer.Argument(help="A scan: HDF5 with a sinogram and its geometry, as `bdgd simulate` writes it.")],
    model: Annotated[str, typer.Option("--model", "-m", help="A shipped model by name, or a .safetensors file.")] = "sparse30-mfvi",
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")] = Path("reconstruction"),
    draws: Annotated[int, typer.Option("--draws", min=1, help="Monte-Carlo draws.")] = 100,
    level: Annotated[float, typer.Option("--level", help="Level of the interval.")] = 0.95,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Reconstruct a scan with a trained model: mean, standard deviation and interval per pixel.

    Writes OUTPUT/posterior.h5 (mean, std, epistemic, aleatoric, lower, upper, provenance) and OUTPUT/posterior.png.
    """
    where = choose_device(device)
    scans = read_scans(scan)
    network = load(model, device=where)
    _require_same_geometry(scans, network, model)
    folder = make_folder(output)
    calibrated = _whether_calibrated(out, network, scans, draws)
    source = {"scan": scan.name, "model": model, "draws": draws, "level": level, "model_provenance": network.provenance}
    posteriors = []
    with out.progress("reconstructing", len(scans)) as step:
        for index in range(len(scans)):
            y = scans.sinograms[index : index + 1].to(where)
            posteriors.append(sample(network, y, draws, generator=torch.Generator().manual_seed(seed)))
            step(1)
    lights = [alarm(network, scans.sinograms[i : i + 1].to(where), p).light[0] for i, p in enumerate(posteriors)] if calibrated else None
    _write(folder / "posterior.h5", posteriors, level, calibrated, source | provenance(seed, where))
    save_figure(panels([picture(posteriors[0], level, scans.images, calibrated)]), folder / "posterior.png")
    _summarise(out, posteriors, scans, folder, lights)


def _whether_calibrated(out: Output, network: Reconstructor, scans: Scans, draws: int) -> bool:
    """Whether the model has a calibration that holds for these scans; a note where it has one that does not."""
    if network.calibration is None:
        return False
    try:
        network.calibration.require(draws if network.random else 1, "weights")
        network.calibration.require_noise(scans.noise.to_dict() if scans.noise is not None else None)
    except InputError as reason:
        out.note(f"the intervals are not calibrated: {reason}")
        return False
    return True


def picture(posterior: Posterior, level: float = 0.95, truth: Tensor | None = None, calibrated: bool | None = None) -> list[Panel]:
    """Panels of the first image: mean, standard deviation, interval width, and the error where the truth is known."""
    lower, upper = posterior.interval(level, calibrated=calibrated)
    value = Scale("value", 0.0, float(posterior.mean[0].max()))
    spread = Scale("standard deviation", 0.0, float(posterior.std[0].max()), "magma")
    width = Scale(f"width of the {level:.0%} interval", 0.0, float((upper - lower)[0].max()), "magma")
    epistemic = posterior.epistemic[0, 0].sqrt()
    shown = [
        Panel(posterior.mean[0, 0], "mean", value),
        Panel(epistemic, "epistemic std", Scale("epistemic standard deviation", 0.0, float(epistemic.max()), "magma")),
        Panel(posterior.std[0, 0], "std", spread),
        Panel((upper - lower)[0, 0], f"{level:.0%} interval width", width),
    ]
    if truth is not None:
        error = (posterior.mean[:1].cpu() - truth[:1].cpu())[0, 0].abs()
        shown.append(Panel(error, "absolute error", Scale("absolute error", 0.0, float(error.max()), "magma")))
    return shown


def _require_same_geometry(scans: Scans, model: Reconstructor, name: str) -> None:
    ours, theirs = scans.geometry, getattr(model.A, "geometry", None)
    if ours == theirs or ours is None:
        return
    mine, known = ours.to_dict(), theirs.to_dict() if theirs is not None else {}
    differing = [key for key in mine if mine.get(key) != known.get(key)]
    words = "; ".join(f"{key} is {_short(mine.get(key))} in the scan and {_short(known.get(key))} in the model" for key in differing)
    raise InputError(f"the model {name} was trained for another geometry: {words}; train a model for this geometry with bdgd train")


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"{len(value)} values from {value[0]:.4g} to {value[-1]:.4g}"
    return f"{value}"


def _write(path: Path, posteriors: list[Posterior], level: float, calibrated: bool, source: dict[str, Any]) -> None:
    """One slice per scan in every dataset (B, H, W)."""
    import json

    import h5py

    with replacing(path) as temporary, h5py.File(temporary, "x") as file:
        for name in ("mean", "std", "epistemic", "aleatoric"):
            file[name] = torch.cat([getattr(p, name)[:, 0] for p in posteriors]).cpu().numpy()
        intervals = [p.interval(level, calibrated=calibrated) for p in posteriors]
        for side, name in enumerate(("lower", "upper")):
            file[name] = torch.cat([interval[side][:, 0] for interval in intervals]).cpu().numpy()
        file.attrs["level"], file.attrs["calibrated"] = level, calibrated
        file.attrs["provenance"] = json.dumps(source)


def _summarise(out: Output, posteriors: list[Posterior], scans: Scans, folder: Path, lights: list[str] | None) -> None:
    rows = []
    for index, posterior in enumerate(posteriors):
        row = [str(index), f"{float(posterior.mean.max()):.4g}", f"{float(posterior.std.mean()):.3g}", f"{float(posterior.std.max()):.3g}"]
        if scans.images is not None:
            row.append(f"{float(psnr(posterior.mean.cpu(), scans.images[index : index + 1])):.2f}")
        rows.append(row + ([lights[index]] if lights else []))
    columns = ["slice", "largest value", "mean std", "largest std"] + (["PSNR (dB)"] if scans.images is not None else [])
    out.table(columns + (["alarm"] if lights else []), rows, right=columns)
    out.say(f"wrote {folder / 'posterior.h5'} and {folder / 'posterior.png'}")
