"""The cells of the paper's tables: a method scored in a setting, once per seed, kept as JSON and never made twice."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdgd.apps.costs import training_cost
from bdgd.apps.evaluate import result_of
from bdgd.apps.presets import changes_since, preset_names, read_preset
from bdgd.apps.provenance import provenance
from bdgd.apps.reproduction import Reproduction
from bdgd.evaluation import METHODS, SETTINGS, find_method, score, table_scans
from bdgd.evaluation.methods import training_of
from bdgd.evaluation.tables import markdown, read_cell, rows, write_cell
from bdgd.models import pretrained, provenance_of
from bdgd.operators import RayTransform


def make_table(job: Reproduction, table: str, setting: str, page: Path | None = None) -> None:
    """Fill the cells of a table and write it as Markdown, also into a page where one is given."""
    for row in rows(setting):
        if job.wants(row.method):
            fill_cell(job, setting, row.method)
    earlier = [told for row in rows(setting) for told in (_made_otherwise(job, setting, row.method), trained_otherwise(row.method)) if told]
    job.publish(table, "\n".join([markdown(job.folder, setting, job.effort.note()), *(f"*{told}*" for told in earlier)]), page)


def trained_otherwise(model: str) -> str:
    """How the training of a shipped model differs from the preset of its name, which has changed since; empty where it does not."""
    text = provenance_of(model).get("preset_text") if model in pretrained() else None
    changes = changes_since(text, read_preset(model)) if text and model in preset_names() else []
    return f"{model} was trained by an earlier preset: {'; '.join(changes)}." if changes else ""


def _made_otherwise(job: Reproduction, setting: str, method: str) -> str:
    """Which seeds of a cell, left as it was, are of another training than that which there is now; empty where none is."""
    entries = {int(entry["provenance"]["seed"]): entry for entry in read_cell(job.folder, setting, method)}
    sources = {seed: method if method in METHODS else job.trained(method, seed) for seed in entries}
    seeds = [seed for seed, source in sources.items() if source is not None and not _is_made(entries[seed], seed, source)]
    return f"{method} was trained again since seed {', '.join(map(str, seeds))} was scored." if seeds else ""


def fill_cell(job: Reproduction, setting: str, method: str) -> None:
    """Add the seeds that a cell lacks, one at a time, so that an interrupted run goes on where it was."""
    cell = [entry for entry in read_cell(job.folder, setting, method) if entry.get("effort") == _effort(job)]
    sources = {seed: method if method in METHODS else job.trained(method, seed) for seed in range(job.seeds)}
    if not any(sources.values()):
        if not cell:
            job.out.note(f"{setting}: {training_cost(method).told()}")
        return
    A = None
    for seed, source in sources.items():
        if source is None or any(_is_made(entry, seed, source) for entry in cell):
            continue
        A = A or RayTransform(SETTINGS[setting], job.device)
        entry = _score(job, A, f"{setting} {method}, seed {seed}", source, seed)
        cell = sorted([*(e for e in cell if e["provenance"]["seed"] != seed), entry], key=lambda e: int(e["provenance"]["seed"]))
        write_cell(job.folder, setting, method, cell)
    seeds = {int(entry["provenance"]["seed"]): entry["recipe"].get("trained") for entry in cell}
    shared = [seed for seed in sources if seed and (training := seeds.get(seed)) and training["seed"] != seed]
    if shared:
        cost = training_cost(method, shared[0])
        job.out.note(
            f"{method}: the noise and draws of seed {', '.join(map(str, shared))} share its one training; {cost.command} makes another"
        )


def _is_made(entry: dict[str, Any], seed: int, source: str) -> bool:
    """Whether the entry is of that seed, and of the training that there is now.

    One of a training with that very seed stands too where only a training with another seed is there now, such as the shipped one.
    """
    if entry["provenance"]["seed"] != seed:
        return False
    if source in METHODS:
        return True
    then, now = entry["recipe"].get("trained") or {}, training_of(provenance_of(source))
    return then == now or then.get("seed") == seed != now["seed"]


def _score(job: Reproduction, A: RayTransform, what: str, source: str, seed: int) -> dict[str, Any]:
    """One entry of a cell: the values of every image, the recipe and where it comes from."""
    start = time.perf_counter()
    with job.out.waiting(f"{what}: preparing"):
        prepared = find_method(source)(A, seed, job.effort)
    preparing = time.perf_counter() - start
    scans = table_scans(A, job.effort.ellipses + 1, seed)
    with job.out.progress(what, len(scans)) as step:
        scores = score(prepared, scans, lambda done, mean: step(done, f"{mean:.2f} dB"))
    entry = {**result_of(scores, prepared.recipe, preparing), "provenance": provenance(seed, A.device)}
    return {"note": job.effort.note(), "effort": _effort(job), **entry} if job.effort.quick else entry


def _effort(job: Reproduction) -> dict[str, Any] | None:
    """What an entry says about its effort: nothing where that is the full one."""
    return asdict(job.effort) if job.effort.quick else None
