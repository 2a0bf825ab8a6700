"""Markdown that commands write: tables, the places of a page that they fill, and the line that says where numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bdgd.checks import InputError
from bdgd.storage import write_text

_MARKS = {"l": "---", "r": "---:", "c": ":-:"}


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table of these cells. align: a letter per column, l, r or c; text at the left of numbers, "lrr...", unless given."""
    marks = [_MARKS[letter] for letter in align or "l" + "r" * (len(columns) - 1)]
    return "\n".join([_line(columns), f"|{'|'.join(marks)}|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def noted(note: str, *parts: str) -> str:
    """The parts with an empty line between them, below a note in bold where there is one."""
    return "\n\n".join([*([f"**{note}**"] if note else []), *parts])


def has_place(path: Path, marker: str) -> bool:
    """Whether a page has a place of that name to be filled."""
    page = path.read_text(encoding="utf-8")
    return all(end in page for end in _ends(marker))


def require_place(path: Path, marker: str) -> None:
    """Raise unless the page has such a place, which is better known before hours of work than after them."""
    start, end = _ends(marker)
    if not path.is_file():
        raise InputError(f"there is no page {path}; make one with the lines {start} and {end}")
    if not has_place(path, marker):
        raise InputError(f"{path} has no place for the table; add the lines {start} and {end}")


def insert(path: Path, marker: str, text: str) -> None:
    """Put the text between <!-- marker --> and <!-- /marker --> of a page."""
    require_place(path, marker)
    page, (start, end) = path.read_text(encoding="utf-8"), _ends(marker)
    before, after = page.split(start)[0], page.split(end, 1)[1]
    write_text(path, f"{before}{start}\n{text}\n{end}{after}")


def _ends(marker: str) -> tuple[str, str]:
    return f"<!-- {marker} -->", f"<!-- /{marker} -->"


def origins(results: Iterable[Mapping[str, Any]]) -> str:
    """The line below a table: the hardware and commits of the results in it, by their "provenance"."""
    return f"*Measured on {machines(result['provenance'] for result in results) or 'nothing yet'}.*"


def machines(made: Iterable[Mapping[str, Any]]) -> str:
    """Each hardware once, with its commits: "AMD EPYC, 2 cores (commits 1c37dc78c6, 36f8be096e); NVIDIA H200 (commit 438a3d7163)"."""
    commits: dict[str, set[str]] = {}
    for origin in made:
        commits.setdefault(str(origin["hardware"]), set()).add(short_commit(str(origin["commit"])))
    return "; ".join(
        f"{hardware} (commit{'s' if len(found) > 1 else ''} {', '.join(sorted(found))})" for hardware, found in sorted(commits.items())
    )


def left_out(names: Iterable[str]) -> list[str]:
    """The line below a table that names what it lacks; none where it lacks nothing."""
    missing = ", ".join(names)
    return [f"*Not measured yet, and left out: {missing}.*"] if missing else []


def short_commit(commit: str) -> str:
    """Ten letters, and whether the tree was that of the commit."""
    return commit[:10] + ("-modified" if commit.endswith("-modified") else "")


def listed(numbers: Iterable[int]) -> str:
    """Each number once: "10 or 100"."""
    return " or ".join(map(str, sorted(set(numbers)))) or "no"
