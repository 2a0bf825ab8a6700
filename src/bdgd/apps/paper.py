"""The paper's figures and claims as files: each picture with a JSON beside it, the claims as JSON and Markdown."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.cells import fill_cell, trained_otherwise
from bdgd.apps.costs import training_cost
from bdgd.apps.provenance import provenance
from bdgd.apps.reproduction import Reproduction
from bdgd.evaluation.claim import PAPERS, Claim, markdown, summary
from bdgd.evaluation.claims import check_claims
from bdgd.evaluation.figures import save_small
from bdgd.evaluation.lab import Lab
from bdgd.evaluation.pages import origins
from bdgd.evaluation.paper_figures import FIGURES, WORST, table_scores
from bdgd.models import pretrained
from bdgd.storage import write_json


def make_figure(job: Reproduction, name: str) -> None:
    """Write NAME.png and NAME.json, unless they are there, made with this effort by the models that are shipped now."""
    picture, record = job.folder / f"{name}.png", job.folder / f"{name}.json"
    if name == "worst":
        fill_cell(job, "sparse30", WORST)
    if picture.is_file() and _is_current(job, name, record):
        job.out.note(f"{name}: {picture} is there already; delete {record} to make it again")
        return
    lab, start = job.lab(name), time.perf_counter()
    with job.out.waiting(f"{name}: reconstructing"):
        drawn = FIGURES[name](lab)
    _tell_missing(job, name, lab.missing)
    if drawn is None:
        job.out.note(f"{name}: left out, none of its models is shipped yet, or the table was made by another training")
        return
    save_small(drawn.figure, picture)
    write_json(record, {"figure": name, "shows": drawn.shows, **_origin(job, lab, start), "numbers": drawn.numbers})
    job.out.say(f"wrote {picture}: {drawn.shows}")


def make_claims(job: Reproduction, page: Path | None = None) -> None:
    """Measure every claim, print them and write claims.json and claims.md."""
    make_figure(job, "fig3")
    for setting in ("sparse30", "limited120"):
        shipped = [f"{setting}-{kind}{PAPERS}" for kind in ("mfvi", "mcdo", "dgd") if f"{setting}-{kind}{PAPERS}" in pretrained()]
        for method in ("fbp", "tv", *(f"{setting}-{kind}" for kind in ("mfvi", "mcdo", "dgd", "lpd")), *shipped):
            fill_cell(job, setting, method)
    lab, start, claims = job.lab("claims"), time.perf_counter(), list[Claim]()
    with job.out.waiting("claims: reconstructing"):
        for claim in check_claims(lab):
            lab.say(f"{claim.name} ({claim.recipe})")
            claims.append(claim)
    lab.missing = sorted({name for claim in claims for name in claim.missing})
    _tell_missing(job, "claims", lab.missing)
    origin, results = _origin(job, lab, start), [entry for cell in lab.cells.values() for entry in cell]
    looked_at = {name: [_source(entry) for entry in cell] for name, cell in lab.cells.items()}
    earlier = [told for name in sorted({*lab.used, *(cell.split()[-1] for cell in lab.cells)}) if (told := trained_otherwise(name))]
    job.publish("claims", "\n\n".join([markdown(claims, job.effort.note()), *earlier, origins([*results, origin])]), page, say=False)
    kept = {**origin, "cells": looked_at, "summary": summary(claims), "claims": [asdict(claim) for claim in claims]}
    write_json(job.folder / "claims.json", kept)
    rows = [(claim.name, claim.recipe, claim.told(), "" if claim.holds is None else job.out.mark(claim.holds)) for claim in claims]
    job.out.table(("claim", "recipe", "measured", "holds"), rows, job.effort.note())
    job.out.say(f"{summary(claims)} Wrote {job.folder / 'claims.md'} and {job.folder / 'claims.json'}")


def _source(entry: dict[str, Any]) -> dict[str, Any]:
    """Which result of a table it is, and of which training."""
    return {"seed": entry["provenance"]["seed"], "commit": entry["provenance"]["commit"], "trained": entry["recipe"].get("trained")}


def _origin(job: Reproduction, lab: Lab, start: float) -> dict[str, Any]:
    """What every record says about how it came about."""
    return {
        "note": job.effort.note(),
        "effort": asdict(job.effort),
        "models": lab.used,
        "missing": [asdict(training_cost(name)) for name in lab.missing],
        "seconds": round(time.perf_counter() - start, 1),
        "provenance": provenance(lab.seed, job.device),
    }


def _is_current(job: Reproduction, name: str, record: Path) -> bool:
    """Whether a figure's record is of these models and this effort, and the worst image's of the table as it is now."""
    try:
        made = json.loads(record.read_text())
        models, missing = dict(made["models"]), {cost["model"] for cost in made["missing"]}
        lowest = dict(made["numbers"]).get("psnr in the table")
    except (OSError, ValueError, KeyError, TypeError):
        return False
    lab = job.lab("")
    lab.models(list(models))
    if lab.used != models or missing & set(pretrained()) or made.get("effort") != asdict(job.effort):
        return False
    return name != "worst" or lowest == min(table_scores(lab), default=None)


def _tell_missing(job: Reproduction, what: str, missing: list[str]) -> None:
    for name in missing:
        job.out.note(f"{what}: {training_cost(name).told()}")
