"""Several trainings of one command, some of them at the same time: a small one alone does not fill a GPU.

Each worker is a thread with a CUDA stream of its own that trains one preset after the other. What would disturb the others is done
in turns (`bdgd.training.turns`), and all randomness has keys, so a training ends with the same weights as by itself.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bdgd.apps.console import Output, Step, sentence
from bdgd.apps.forecast import require_memory_for_several
from bdgd.apps.presets import Preset, with_seed
from bdgd.apps.training import epochs_of, require_same_preset, train_preset
from bdgd.checks import InputError
from bdgd.training.turns import Stopped, turn, until

#: Trainings at once on a GPU; `bdgd bench --only training` measures what that is worth.
AT_ONCE_ON_GPU = 3
#: PyTorch has 32 streams per priority and hands them out in a circle; two workers must not share one.
MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Job:
    """One training: a preset and the folder that it is trained in."""

    preset: Preset
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def done(self) -> bool:
        """Whether its model is there; a folder that holds another preset's is refused."""
        require_same_preset(self.preset, self.folder)
        return (self.folder / "model.safetensors").is_file()


@dataclass(frozen=True)
class Outcome:
    """How a training ended: its seconds and the validation PSNR in dB of its last stage, or what went wrong."""

    job: Job
    seconds: float = 0.0
    quality: float = 0.0
    error: Exception | None = None

    @property
    def reason(self) -> str:
        """Why it failed, as a sentence."""
        if self.error is None:
            return ""
        return (
            sentence(self.error) if isinstance(self.error, InputError | OSError) else f"{type(self.error).__name__}: {sentence(self.error)}"
        )

    def told(self) -> str:
        """The outcome as a line."""
        if self.error is not None:
            return f"{self.job.name} failed: {self.reason}"
        return f"{self.job.name}: {self.seconds:.0f} s, validation {self.quality:.2f} dB"


def make_jobs(presets: Sequence[Preset], seeds: Sequence[int] | None, runs: Path) -> list[Job]:
    """Every preset with every seed, or with its own, each in runs/PRESET-seedN, where `bdgd reproduce --runs` looks for it."""
    wanted = [with_seed(preset, seed) for preset in presets for seed in (seeds or [preset.seed])]
    jobs = [Job(preset, runs / f"{preset.name}-seed{preset.seed}") for preset in wanted]
    for n, job in enumerate(jobs):
        if job.folder in [earlier.folder for earlier in jobs[:n]]:
            raise InputError(f"two of the trainings are called {job.name}; give every preset once, in files of different names")
    return jobs


def parse_seeds(text: str) -> list[int]:
    """The seeds of "5", which are 0 to 4, or of "0,3,7"."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    seeds = list(range(numbers[0])) if len(numbers) == 1 and "," not in text else numbers
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds must be how many, such as 5, or different seeds from 0 on, such as 0,3,7; got {text!r}")
    return seeds


def train_jobs(out: Output, jobs: Sequence[Job], device: torch.device, *, at_once: int | None = None, resume: bool = False) -> None:
    """Train what is not there yet, with one bar over all epochs and a line per training; at the end a table of the new ones.

    One that fails does not stop the others; InputError, or RuntimeError where it was not the input's fault, at the end.
    """
    missing = [job for job in jobs if not job.done]
    for job in jobs:
        if job not in missing:
            out.note(f"{job.name}: {job.folder / 'model.safetensors'} is there, nothing to train")
    _require_free(missing, resume)
    if not missing:
        return
    at_once = min(at_once or (AT_ONCE_ON_GPU if device.type == "cuda" else 1), len(missing))
    require_memory_for_several([job.preset for job in missing], at_once, device)
    out.note(f"{len(missing)} trainings, {at_once} at once, on {device}")
    with out.progress("training", sum(epochs_of(job.preset) for job in missing)) as step:
        live = _Live(out, step)
        outcomes = train_several(missing, device, at_once=at_once, resume=resume, report=live.epoch, finished=live.end)
    _summarise(out, outcomes)
    _raise_failures(outcomes)


def train_several(
    jobs: Sequence[Job],
    device: torch.device,
    *,
    at_once: int,
    resume: bool = False,
    report: Callable[[Job, dict[str, Any]], None] | None = None,
    finished: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Train the jobs in `at_once` threads; how each ended, in their order.

    report: called after every epoch and stage, finished: after every training, both in the thread that trains. An interrupt of the
    calling thread stops all of them at their next step, after which --resume goes on from the last epoch.
    """
    waiting, stop, outcomes = queue.SimpleQueue[Job](), threading.Event(), dict[Path, Outcome]()
    for job in jobs:
        waiting.put(job)

    def work(stream: AbstractContextManager[Any]) -> None:
        with stream, until(stop):
            for job in _taken_from(waiting):
                outcome = _train(job, device, stop, resume, report)
                if outcome is None:
                    return
                outcomes[job.folder] = outcome
                if finished is not None:
                    finished(outcome)

    streams = _streams(at_once, device)
    with ThreadPoolExecutor(at_once, thread_name_prefix="training") as pool:
        workers = [pool.submit(work, stream) for stream in streams]
        try:
            wait(workers)
        finally:
            stop.set()
    for worker in workers:
        worker.result()  # raises what went wrong outside of the trainings
    return [outcomes[job.folder] for job in jobs]


def _streams(count: int, device: torch.device) -> list[AbstractContextManager[Any]]:
    """One CUDA stream per worker, all of a priority that captures do not use, so that none of them is ever captured on."""
    if device.type != "cuda":
        return [nullcontext() for _ in range(count)]
    return [torch.cuda.stream(torch.cuda.Stream(device, priority=-1)) for _ in range(count)]


def _taken_from(waiting: queue.SimpleQueue[Job]) -> Iterator[Job]:
    while True:
        try:
            yield waiting.get_nowait()
        except queue.Empty:
            return


def _train(
    job: Job, device: torch.device, stop: threading.Event, resume: bool, report: Callable[[Job, dict[str, Any]], None] | None
) -> Outcome | None:
    """One training in this thread; None where all were asked to stop. Its memory is given back before others have the turn."""
    with turn():
        if stop.is_set():
            return None
        try:
            tell = None if report is None else lambda record: report(job, record)
            about = train_preset(job.preset, job.folder, device, resume=resume, report=tell).provenance
        except Stopped:
            return None
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they hold the images and the captured step
            return Outcome(job, error=error)
        return Outcome(job, about["seconds"], about["stages"][-1]["validation_psnr"])


def _require_free(jobs: Sequence[Job], resume: bool) -> None:
    """Raise before any work where a folder holds the beginning of a training that was not asked to go on."""
    begun = [job for job in jobs if (job.folder / "settings.json").exists()]
    if begun and not resume:
        raise InputError(
            f"{begun[0].folder} holds a training that was interrupted; add --resume to go on with it, or choose another folder"
        )


class _Live:
    """One bar for all: moves by one per epoch with the last message, and by what is left of a training that ended."""

    def __init__(self, out: Output, step: Step):
        self.out, self.step, self.lock = out, step, threading.Lock()
        self.counted: dict[Path, int] = {}
        self.quality: dict[Path, str] = {}

    def epoch(self, job: Job, record: dict[str, Any]) -> None:
        with self.lock:
            if "loss" not in record:
                self.quality[job.folder] = f" validation {record['validation_psnr']:.2f} dB"
                return
            said = f"{job.name} {record['stage']} loss {record['loss']:.4f}{self.quality.get(job.folder, '')}"
            self._move(job, 1, said)

    def end(self, outcome: Outcome) -> None:
        with self.lock:
            self._move(outcome.job, epochs_of(outcome.job.preset), outcome.job.name)
            self.out.note(outcome.told())

    def _move(self, job: Job, epochs: int, said: str) -> None:
        """Never beyond what a training was counted with, as a block may be trained again."""
        before = self.counted.get(job.folder, 0)
        self.counted[job.folder] = min(before + epochs, epochs_of(job.preset))
        if self.counted[job.folder] > before:
            self.step(self.counted[job.folder] - before, said)


def _summarise(out: Output, outcomes: Sequence[Outcome]) -> None:
    trained = [outcome for outcome in outcomes if outcome.error is None]
    if trained:
        rows = [[outcome.job.name, f"{outcome.seconds:.0f}", f"{outcome.quality:.2f}"] for outcome in trained]
        columns = ["training", "seconds", "validation PSNR (dB)"]
        out.table(columns, rows, title=f"trained in {trained[0].job.folder.parent}", right=columns[1:])


def _raise_failures(outcomes: Sequence[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        text = f"{len(failed)} of {len(outcomes)} trainings failed: {'; '.join(f'{o.job.name}: {o.reason}' for o in failed)}"
        wrong_input = all(isinstance(outcome.error, InputError | OSError) for outcome in failed)
        raise (InputError if wrong_input else RuntimeError)(text) from failed[0].error
