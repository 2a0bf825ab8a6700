"""The folder that a training writes, so that it survives being killed at any moment.

    settings.json                what the run was started with; a resumed run must have the same
    preset.toml, environment.json  of `bdgd train`: the preset, and versions, hardware, date
    metrics.jsonl                one line per finished epoch and per finished stage
    block-03.safetensors         the weights of a finished stage
    progress.safetensors         parameters and optimiser state inside the stage in progress
    tensorboard/                 the same numbers for TensorBoard, where it is installed

Every file but the metrics appears whole or not at all; a metrics line that was cut off is dropped when the run is resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import Scans
from bdgd.models import Reconstructor, read_tensors, write_tensors
from bdgd.storage import replacing, write_json

Record = dict[str, Any]
Report = Callable[[Record], None]


def rank() -> int:
    """The number of this process among those that train together; the first, 0, is the one that writes and reports."""
    return dist.get_rank() if dist.is_initialized() else 0


@dataclass(frozen=True)
class History:
    """What a training measured: one record per finished stage (a block, or the whole model)."""

    stages: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """One column of the records: `history["validation_psnr"]`."""
        return [record.get(name) for record in self.stages]


def tell(report: Report | None, record: Record) -> None:
    """One process speaks for all."""
    if report and rank() == 0:
        report(record)


class RunFolder:
    """Opens a new run folder, or with `resume` one that was started with the same settings."""

    def __init__(self, path: str | Path, settings: dict[str, Any], *, resume: bool = False):
        self.path, self.writes = Path(path), rank() == 0
        self._board: Any = None
        settings = json.loads(json.dumps(settings))  # as they will be read back
        known = self.path / "settings.json"
        exists = _exists(known)
        if exists:
            self._require_same(_read_json(known), settings)
            if not resume:
                raise InputError(f"{self.path} already holds a run; resume it, or choose another folder")
        _meet()  # every process has looked before the first one writes
        if self.writes and not exists:
            self._create(settings)
        if self.writes:
            self._sweep()

    def _create(self, settings: dict[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the run folder {self.path}: {error.strerror}; choose another place") from None
        write_json(self.path / "settings.json", settings)

    def _sweep(self) -> None:
        """Remove what a killed process was just writing."""
        for unfinished in self.path.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)

    def _require_same(self, there: dict[str, Any], here: dict[str, Any]) -> None:
        for name in sorted(there.keys() | here.keys()):
            if there.get(name) != here.get(name):
                was, now = _short(there.get(name)), _short(here.get(name))
                raise InputError(f"{self.path} holds a run with other settings: {name} is {was} there, {now} here; choose another folder")

    def finished(self, stage: str) -> dict[str, Tensor] | None:
        """The weights of a finished stage, or None."""
        path = self._file(stage)
        return read_tensors(path)[0] if path.exists() else None

    def finish(self, stage: str, weights: dict[str, Tensor], record: Record) -> None:
        """Keep the weights of a stage and its metrics; its progress is no longer needed."""
        if self.writes:
            self.append(record)
            write_tensors(self._file(stage), weights, {"stage": stage, **record})
            (self.path / "progress.safetensors").unlink(missing_ok=True)
            if self._board:
                self._board.flush()
        _meet()  # no process looks for the progress of the next stage before that of this one is gone

    def save_progress(self, stage: str, step: int, tensors: dict[str, Tensor]) -> None:
        """Keep what a step changes, after so many steps of the stage."""
        if self.writes:
            write_tensors(self.path / "progress.safetensors", tensors, {"stage": stage, "step": step})

    def restore(self, stage: str, tensors: dict[str, Tensor]) -> int:
        """Fill `tensors` with the progress inside the stage and give its step; 0 where there is none."""
        path = self.path / "progress.safetensors"
        stored, header = read_tensors(path) if path.exists() else ({}, {})
        step = int(header["step"]) if header.get("stage") == stage else 0
        if step:
            for name, tensor in tensors.items():
                tensor.copy_(stored[name])
        if self.writes:
            self._forget_after(stage, step)
        return step

    def append(self, record: Record) -> None:
        """One metrics line, on the disk before training goes on."""
        if not self.writes:
            return
        try:
            with (self.path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.path / 'metrics.jsonl'}: {error.strerror}; make room or choose another folder") from None
        for name, value in record.items():
            if isinstance(value, float) and (board := self._tensorboard()):
                board.add_scalar(f"{record['stage']}/{name}", value, record.get("step", 0))

    def records(self) -> list[Record]:
        """All metrics lines; one that a kill cut off is left out."""
        return list(self._lines())

    def _lines(self) -> Iterator[Record]:
        path = self.path / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                yield json.loads(line)
            except ValueError:
                return

    def _forget_after(self, stage: str, step: int) -> None:
        """Drop the lines that the resumed stage will write again."""
        kept = [line for line in self._lines() if line["stage"] != stage or 0 < line.get("step", 0) <= step]
        with replacing(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def _file(self, stage: str) -> Path:
        return self.path / f"{stage}.safetensors"

    def _tensorboard(self) -> Any:
        """A TensorBoard writer where the package is installed, else False."""
        if self._board is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._board = False
            else:
                self._board = SummaryWriter(str(self.path / "tensorboard"))
        return self._board


def open_run(
    run: str | Path | None, model: Reconstructor, scans: Scans, validation: Scans | None, settings: dict[str, Any], resume: bool
) -> RunFolder | None:
    """The run folder, with the model as it starts and the scans added to what must agree on resuming."""
    if run is None:
        return None
    described = {
        "model": type(model).__name__,
        "arguments": model.arguments(),
        "weights": model.fingerprint(),
        "geometry": model.geometry.to_dict() if model.geometry is not None else None,
        "images": len(scans),
        "validation_images": len(validation) if validation is not None else None,
        "noise": scans.noise.to_dict() if scans.noise is not None else None,
        "first_scan": _sizes(scans),
        "first_validation_scan": _sizes(validation) if validation is not None else None,
    }
    return RunFolder(run, settings | described, resume=resume)


def _sizes(scans: Scans) -> list[str]:
    """The lengths of the first sinogram and image, which tell scans of other images or another operator; rounding elsewhere does not."""
    return [f"{float(part[0].double().norm()):.3e}" for part in (scans.sinograms, scans.images) if part is not None]


def _meet() -> None:
    """Wait until all processes that train together are here."""
    if dist.is_initialized():
        dist.barrier()


def _exists(path: Path) -> bool:
    """Whether there is such a file; a folder that must not be looked into is an error."""
    try:
        return path.exists()
    except OSError as error:
        raise InputError(f"cannot look into {path.parent}: {error.strerror}; choose another run folder") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); choose another run folder") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is not the settings of a run; choose another folder")
    return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
