"""The command line `bdgd`: the list of its commands, in the order in which `bdgd --help` shows them.

A command is a function in a file of its own: the first parameter is the `Output` it speaks through, the others are its
options, its name is the command's and its docstring the help. What it cannot use it raises as `InputError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import bdgd
from bdgd.apps.bench import bench
from bdgd.apps.calibrate import calibrate
from bdgd.apps.console import as_command
from bdgd.apps.demo import demo
from bdgd.apps.doctor import doctor
from bdgd.apps.evaluate import evaluate
from bdgd.apps.measured import measured
from bdgd.apps.memory import keep_freed_memory
from bdgd.apps.reconstruct import reconstruct
from bdgd.apps.reproduce import reproduce
from bdgd.apps.simulate import simulate
from bdgd.apps.stress import stress
from bdgd.apps.train import train

#: Adding a command is one line here.
COMMANDS: list[Callable[..., None]] = [
    demo,
    doctor,
    reconstruct,
    train,
    simulate,
    evaluate,
    calibrate,
    stress,
    measured,
    reproduce,
    bench,
]


class _PlainFlags:
    """Help that shows a flag by its name alone; typer writes `<bool>` beside it, as if it took a value."""

    def get_params(self, context: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for flag in parameters:
            if getattr(flag, "is_flag", False):
                flag.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    pass


class _Commands(_PlainFlags, TyperGroup):
    pass


app = typer.Typer(
    name="bdgd",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in COMMANDS:
    app.command(cls=_Command)(as_command(function))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bdgd {bdgd.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")]


@app.callback()
def _bdgd(version: Version = False) -> None:
    """CT reconstruction from few or limited views, with error bars.

    Try [bold]bdgd demo[/bold] first; [bold]bdgd doctor[/bold] says what works here.
    """


def main() -> None:
    """The entry point of the `bdgd` script."""
    keep_freed_memory()
    app(prog_name="bdgd")
