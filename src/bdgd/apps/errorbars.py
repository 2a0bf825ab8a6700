"""What is asked of the shipped error bars, measured on fresh images: results/errorbars.json, .md and .png."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.provenance import measured_on, provenance
from bdgd.apps.reproduction import Reproduction
from bdgd.evaluation.figures import save_small
from bdgd.evaluation.pages import markdown_table
from bdgd.evaluation.promises import FRESH, measure_promises, promise_bars
from bdgd.evaluation.reliability import uncertainty_figure
from bdgd.evaluation.requirements import BAR_COLUMNS, Bar
from bdgd.models import Reconstructor, load
from bdgd.storage import write_json, write_text

#: The model whose error bars are shown to the world.
MODEL = "sparse30-mfvi"


def make_errorbars(job: Reproduction, page: Path | None = None) -> None:
    """Measure every bar for the shipped model, or for that of the runs; write numbers, table and picture.

    Files that are there for the same weights, calibration and images are kept.
    """
    source = job.trained(MODEL, 0)
    model = load(source or MODEL, device=job.device)
    if model.calibration is None:
        job.out.note(
            f"errorbars: {MODEL} is not calibrated yet; bdgd calibrate {MODEL} --head 2000 makes a file that is, for RUNS/{MODEL}-seed0"
        )
        return
    images, texts = (12, 3) if job.effort.quick else (1000, 100)
    bars = model.calibration.fingerprint()
    about = {"model": MODEL, "weights": model.fingerprint(), "calibration": bars, "images": images, "texts": texts, "seed": FRESH}
    if _is_there(job.folder, about):
        job.out.note(f"errorbars: {job.folder / 'errorbars.json'} is there, nothing to measure")
    else:
        _measure(job, model, about)
    job.publish("errorbars", (job.folder / "errorbars.md").read_text(encoding="utf-8").rstrip(), page, say=False)


def _is_there(folder: Path, about: dict[str, Any]) -> bool:
    """Whether table and picture are there, and the numbers are those of what is asked for."""
    if not all((folder / f"errorbars.{kind}").is_file() for kind in ("json", "md", "png")):
        return False
    try:
        made = json.loads((folder / "errorbars.json").read_text(encoding="utf-8"))["provenance"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(made, dict) and about.items() <= made.items()


def _measure(job: Reproduction, model: Reconstructor, about: dict[str, Any]) -> None:
    images, texts, start = about["images"], about["texts"], time.perf_counter()
    with job.out.progress("errorbars", images) as step:
        measured = measure_promises(model, images, texts, lambda done, nll: step(done, f"NLL {nll:.2f}"))
    bars = promise_bars(measured)
    seconds = round(time.perf_counter() - start, 1)
    origin = {**about, "seconds": seconds, **provenance(FRESH, job.device)}
    note = f"QUICK: {images} images instead of 1000" if job.effort.quick else ""
    told = f"{MODEL}, {images} fresh ellipse images, {texts} with text, {texts} with the axis off."
    text = bars_as_markdown(bars, f"{told} {note}." if note else told, origin)
    write_text(job.folder / "errorbars.md", text + "\n")
    numbers = {"provenance": origin, "bars": [asdict(bar) for bar in bars], **measured.to_dict()}
    write_json(job.folder / "errorbars.json", {"note": note, **numbers} if note else numbers)
    title = f"{MODEL}, {images} fresh images"
    save_small(uncertainty_figure(measured.scores.strata, f"{title}\n{note}" if note else title), job.folder / "errorbars.png")
    job.out.table(BAR_COLUMNS, [bar.cells() for bar in bars], note)
    job.out.say(f"wrote {job.folder / 'errorbars.json'}, errorbars.md and errorbars.png")


def bars_as_markdown(bars: list[Bar], title: str, origin: dict[str, Any]) -> str:
    """The bars as a table, and below it what was measured and where."""
    table = markdown_table(BAR_COLUMNS, [bar.cells() for bar in bars], align="llll")
    return f"{table}\n\n*{title} {measured_on(origin)}*"
