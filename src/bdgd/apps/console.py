"""How commands speak: results on stdout, progress and errors on stderr; a terminal gets tables and bars, all else plain lines."""

from __future__ import annotations

import inspect
import io
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bdgd.checks import InputError
from bdgd.storage import let_go_of_files

#: Exit codes: the job failed, an input was wrong, Ctrl-C.
FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130

_SECONDS_BETWEEN_LINES = 10.0  # of progress, where there is no bar
_STYLES = {"✓": "green", "✗": "bold red"}


class Step(Protocol):
    """Reports that `done` more items of a progress are finished, and the figure to show beside it."""

    def __call__(self, done: int = 1, figure: str = "") -> None: ...


class Output:
    """Where a command's words go. `quiet` leaves out notes and progress and makes tables plain."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that cannot show a letter must not end the work
        self._results = Console(highlight=False, markup=False)
        self._progress = Console(highlight=False, markup=False, stderr=True)

    def say(self, text: str) -> None:
        """A result."""
        self._results.print(text, soft_wrap=True)

    def note(self, text: str) -> None:
        """What is going on; left out by --quiet."""
        if not self.quiet:
            self._progress.print(text, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", right: Sequence[str] = ()) -> None:
        """Rows of text under their columns; the columns named in `right` are aligned there."""
        words = [[word for line in (columns, *rows) for word in line[k].split()] for k in range(len(columns))]
        widths = [max(map(len, column), default=0) for column in words]  # a table that is narrower would cut numbers off
        if self.quiet or not self._results.is_terminal or sum(widths) + 3 * len(widths) + 1 > self._results.width:
            self._plain_table(columns, rows, title, right)
            return
        table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_header=any(columns))
        for name, width in zip(columns, widths, strict=True):
            table.add_column(name, justify="right" if name in right else "left", min_width=width)
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        self._results.print(table)

    def _plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, right: Sequence[str]) -> None:
        lines = ([columns] if any(columns) else []) + list(rows)
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        if title:
            self.say(title)
        for line in lines:
            cells = [
                cell.rjust(width) if name in right else cell.ljust(width) for cell, width, name in zip(line, widths, columns, strict=True)
            ]
            self.say("  ".join(cells).rstrip())

    def mark(self, good: bool) -> str:
        """A tick or a cross, in letters that the output can show."""
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        try:
            "✓✗".encode(encoding)
        except UnicodeEncodeError:
            return "ok" if good else "NO"
        return "✓" if good else "✗"

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Shows that work of unknown length goes on: something that moves on a terminal, a note elsewhere."""
        if self._progress.is_terminal and not self.quiet:
            with self._progress.status(Text(what)):
                yield
        else:
            self.note(what)
            yield

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Step]:
        """`with out.progress("TV", 101) as step: ...; step(10, figure="38.4 dB")`: a bar with the time left, or a line now and then."""
        if self.quiet:
            yield lambda done=1, figure="": None
        elif self._progress.is_terminal:
            with _bar(self._progress) as bar:
                task = bar.add_task(what, total=total, figure="")
                yield lambda done=1, figure="": bar.update(task, advance=done, figure=figure)
        else:
            yield _Lines(self.note, what, total)


def _bar(console: Console) -> Progress:
    what, figure = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[figure]}"))
    return Progress(what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True), figure, console=console, transient=True)


class _Lines:
    """Progress where no bar can be drawn: a line every few seconds, and one at the end of work that took so long."""

    def __init__(self, note: Callable[[str], None], what: str, total: int):
        self.note, self.what, self.total, self.done = note, what, total, 0
        self.start = self.last = time.monotonic()

    def __call__(self, done: int = 1, figure: str = "") -> None:
        self.done += done
        now = time.monotonic()
        elapsed, finished = now - self.start, self.done >= self.total
        if (elapsed if finished else now - self.last) < _SECONDS_BETWEEN_LINES:
            return
        self.last = now
        seconds = f"{elapsed:.0f} s" if finished else f"{elapsed * (self.total / max(self.done, 1) - 1):.0f} s left"
        self.note(", ".join(filter(None, (f"{self.what}: {self.done}/{self.total}", seconds, figure))))


_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Results alone, in plain lines: no progress, no notes, no colours, no boxes.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """`function(out, **options)` as typer takes it: with --quiet and --debug, and with every error made a sentence and an exit code."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("quiet", _Quiet), ("debug", _Debug))
    ]

    def command(quiet: bool, debug: bool, **options: Any) -> None:
        if code := run(lambda: function(Output(quiet), **options), debug):
            raise typer.Exit(code)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return command


def run(job: Callable[[], None], debug: bool = False) -> int:
    """The exit code of the job. An error becomes one line on stderr, after its traceback if `debug`."""
    try:
        job()
    except (typer.Exit, typer.Abort, BrokenPipeError):  # BrokenPipeError: the reader of a pipe has gone, and typer ends quietly
        raise
    except KeyboardInterrupt:
        code = _report("interrupted; files that were already written are complete", INTERRUPTED, debug)
    except (InputError, OSError) as error:
        return _report(sentence(error), WRONG_INPUT, debug)
    except Exception as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):  # PyTorch's on a CPU
            return _report("there is not enough memory; take fewer or smaller images, or another --device", FAILED, debug)
        return _report(f"this should not have happened ({type(error).__name__}: {sentence(error)}); --debug shows where", FAILED, debug)
    else:
        return 0
    let_go_of_files()
    return code


def _report(sentence: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"bdgd: {sentence}", file=sys.stderr)
    return code


def sentence(error: Exception) -> str:
    """The message on one line; for an error of the system, the file and the reason without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
