"""The paper's figures and claims as files: each picture with a JSON beside it, the claims as JSON and Markdown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
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
    """Measure every claim and write claims.json and claims.md, unless they are there, made from what there is now; publish them."""
    make_figure(job, "fig3")
    for setting in ("sparse30", "limited120"):
        shipped = [name for kind in ("mfvi", "mcdo", "dgd") if (name := f"{setting}-{kind}{PAPERS}") in pretrained()]
        for method in ("fbp", "tv", *(f"{setting}-{kind}" for kind in ("mfvi", "mcdo", "dgd", "lpd")), *shipped):
            fill_cell(job, setting, method)
    record, text = job.folder / "claims.json", job.folder / "claims.md"
    if text.is_file() and _claims_are_current(job, record):
        job.out.note(f"claims: {text} is there already; delete {record} to make it again")
        job.publish("claims", text.read_text(encoding="utf-8").strip(), page)
        return
    lab, start, claims = job.lab("claims"), time.perf_counter(), list[Claim]()
    with job.out.waiting("claims: reconstructing"):
        for claim in check_claims(lab):
            lab.say(f"{claim.name} ({claim.recipe})")
            claims.append(claim)
    lab.missing = sorted({name for claim in claims for name in claim.missing})
    _tell_missing(job, "claims", lab.missing)
    origin, results = _origin(job, lab, start), [entry for cell in lab.cells.values() for entry in cell]
    earlier = [told for name in sorted({*lab.used, *(cell.split()[-1] for cell in lab.cells)}) if (told := trained_otherwise(name))]
    job.publish("claims", "\n\n".join([markdown(claims, job.effort.note()), *earlier, origins([*results, origin])]), page, say=False)
    known = {"cells": _looked_at(lab), "papers": _papers_models()}
    write_json(record, {**origin, **known, "summary": summary(claims), "claims": [asdict(claim) for claim in claims]})
    rows = [(claim.name, claim.recipe, claim.told(), "" if claim.holds is None else job.out.mark(claim.holds)) for claim in claims]
    job.out.table(("claim", "recipe", "measured", "holds"), rows, job.effort.note())
    job.out.say(f"{summary(claims)} Wrote {text} and {record}")


def _looked_at(lab: Lab) -> dict[str, list[dict[str, Any]]]:
    """Which results of the tables were looked for, and of which trainings those are that are there."""
    return {name: [_source(entry) for entry in cell] for name, cell in lab.cells.items()}


def _source(entry: dict[str, Any]) -> dict[str, Any]:
    return {"seed": entry["provenance"]["seed"], "commit": entry["provenance"]["commit"], "trained": entry["recipe"].get("trained")}


def _papers_models() -> list[str]:
    """The shipped models of the paper's recipe, with which claims are judged once more."""
    return [name for name in pretrained() if name.endswith(PAPERS)]


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
    """Whether a figure is of these models and this effort, and the worst image's of the table as it is now."""
    lab = job.lab("")
    return _unchanged(
        record,
        lambda made: _of_these_models(lab, made)
        and (name != "worst" or made["numbers"]["psnr in the table"] == min(table_scores(lab), default=None)),
    )


def _claims_are_current(job: Reproduction, record: Path) -> bool:
    """Whether the claims were judged by these models, this effort, and the results that the tables have now."""
    lab = job.lab("")

    def judge(made: dict[str, Any]) -> bool:
        for cell in made["cells"]:
            lab.cell(*cell.split())
        return _of_these_models(lab, made) and made["papers"] == _papers_models() and made["cells"] == _looked_at(lab)

    return _unchanged(record, judge)


def _of_these_models(lab: Lab, made: dict[str, Any]) -> bool:
    """Whether a record is of the lab's effort and of the models that are shipped now, and lacks none that is."""
    lab.models(list(made["models"]))
    missing = {cost["model"] for cost in made["missing"]}
    return lab.used == made["models"] and not missing & set(pretrained()) and made["effort"] == asdict(lab.effort)


def _unchanged(record: Path, judge: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether there is a record that was made, by `judge`, from what there is now; one that cannot be read is made again."""
    try:
        return judge(json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _tell_missing(job: Reproduction, what: str, missing: list[str]) -> None:
    for name in missing:
        job.out.note(f"{what}: {training_cost(name).told()}")
