"""`bdgd reproduce devices`: the same weights, scans and draws in float32 on every device that it was run on, image by image."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.options import make_folder
from bdgd.apps.provenance import file_name, hardware, provenance
from bdgd.apps.reproduction import Reproduction, scored_models
from bdgd.data import named_generator
from bdgd.evaluation import SETTINGS, table_scans
from bdgd.evaluation.methods import training_of
from bdgd.evaluation.pages import left_out, markdown_table, noted, origins
from bdgd.evaluation.tables import read_cell
from bdgd.inference import reconstruct
from bdgd.metrics import psnr
from bdgd.models import Reconstructor, load, ray_transform
from bdgd.storage import read_kept, write_json

#: Devices agree where the means over the test set differ by at most this many dB.
TOLERANCE = 0.02
#: Images that are reconstructed together; no image's result depends on it.
BATCH = {"cuda": 101, "cpu": 1}

Results = dict[str, Any]


def make_devices(job: Reproduction, page: Path | None = None) -> None:
    """Score every shipped model of the paper's settings on this device, and compare it with the devices that were there before."""
    path = make_folder(job.folder / "devices") / f"{file_name(hardware(job.device))}.json"
    devices = {each: _read(each) for each in path.parent.glob("*.json")}
    results, shipped = devices.setdefault(path, {"hardware": hardware(job.device), "models": {}}), dict[str, str]()
    for name in scored_models():
        model = load(name, device=job.device)
        shipped[name] = model.fingerprint()
        identity: Results = {"weights": shipped[name], "effort": asdict(job.effort)}
        if job.device.type == "cuda":
            identity["tf32"] = False  # what was measured before float32 was just that is measured again
        there = results["models"].get(name, {})
        if identity.items() <= there.items() or not job.wants(name):
            continue
        results["models"][name] = {**identity, **(_from_table(job, name, model) or _measured(job, name, model))}
        write_json(path, results)
    text = compared([_of_weights(devices[each], shipped) for each in sorted(devices)], job.effort.note(), shipped)
    job.publish("devices", text, page)


def _read(path: Path) -> Results:
    """What was measured on a device before."""

    def results(kept: Any) -> Results:
        _ = [(cell["psnr"], cell["weights"], cell["provenance"]) for cell in kept["models"].values()], kept["hardware"]
        return dict(kept)

    return read_kept(path, "the results of a device", results, {})


def _of_weights(results: Results, shipped: dict[str, str]) -> Results:
    """What a device made of the weights that are shipped now: another device may have been asked before a model was trained again."""
    return {**results, "models": {name: cell for name, cell in results["models"].items() if cell["weights"] == shipped.get(name)}}


def _from_table(job: Reproduction, name: str, model: Reconstructor) -> Results | None:
    """What the table's cell says, where it was made on this CPU: there everything is float32, with the same scans and draws."""
    if job.device.type != "cpu":
        return None
    setting = next(known for known, geometry in SETTINGS.items() if geometry == model.geometry)
    here = {"seed": 0, "hardware": hardware(job.device)}
    recipe = {"draws": job.effort.draws if model.random else 1, "trained": training_of(model.provenance)}
    for entry in read_cell(job.folder, setting, name):
        if here.items() <= entry["provenance"].items() and entry["recipe"] == recipe and len(entry["psnr"]) == job.effort.ellipses + 1:
            return {"psnr": entry["psnr"], "provenance": {**entry["provenance"], "seconds": round(entry["seconds"], 1)}}
    return None


def _measured(job: Reproduction, name: str, model: Reconstructor) -> Results:
    """What this device makes of the table's scans."""
    start, found = time.perf_counter(), _psnrs(job, name, model)
    return {"psnr": found, "provenance": {**provenance(0, job.device), "seconds": round(time.perf_counter() - start, 1)}}


def _psnrs(job: Reproduction, name: str, model: Reconstructor) -> list[float]:
    """PSNR of the mean of the draws for every scan of the tables, Shepp-Logan last; the draws come from a generator on the CPU."""
    scans = table_scans(ray_transform(model), job.effort.ellipses + 1, 0)
    assert scans.images is not None
    found: list[float] = []
    with job.out.progress(f"devices: {name}", len(scans)) as step:
        batch = BATCH.get(job.device.type, 1)
        for y, truth in zip(scans.sinograms.split(batch), scans.images.split(batch), strict=True):
            mean = reconstruct(model, y, job.effort.draws, generator=named_generator("draws", 0), precision="float32").mean
            found += psnr(mean, truth).tolist()
            step(len(y), f"{found[-1]:.2f} dB")
    return found


def compared(devices: list[Results], note: str = "", wanted: Iterable[str] = ()) -> str:
    """A table with a row per model: PSNR on ellipses / Shepp-Logan by device, and by how much they differ at most.

    wanted: models that are named below where no device has run them.
    """
    names = sorted({name for device in devices for name in device["models"]})
    head = ["", *(device["hardware"] for device in devices), "means differ by", "images differ by at most", "verdict"]
    rows = []
    for name in names:
        cells = [device["models"].get(name) for device in devices]
        rows.append([name, *map(_means, cells), *_differences([cell for cell in cells if cell])])
    table = markdown_table(head, rows, align="l" + "r" * (len(head) - 2) + "l")
    words = "*PSNR in dB on the test ellipses / on Shepp-Logan, float32, the same scans and draws (seed 0).*"
    made = origins(cell for device in devices for cell in device["models"].values())
    return noted(note, table, "\n".join([words, *left_out(sorted(set(wanted) - set(names))), made]))


def _means(cell: Results | None) -> str:
    if cell is None:
        return "not run"
    *ellipses, head = cell["psnr"]
    return f"{sum(ellipses) / len(ellipses):.3f} / {head:.3f}"


def _differences(cells: list[Results]) -> list[str]:
    """By how much two devices' means and single images differ at most, and whether they agree; for the same weights only."""
    if len(cells) < 2 or len({(cell["weights"], len(cell["psnr"])) for cell in cells}) > 1:
        return ["", "", "one device only" if len(cells) < 2 else "other weights or images"]
    columns = list(zip(*(cell["psnr"] for cell in cells), strict=True))  # an image's PSNR on each device
    *ellipses, head = columns
    means = [sum(values) / len(ellipses) for values in zip(*ellipses, strict=True)]
    apart = max(max(means) - min(means), max(head) - min(head))
    return [f"{apart:.4f}", f"{max(max(column) - min(column) for column in columns):.4f}", "agree" if apart <= TOLERANCE else "differ"]
