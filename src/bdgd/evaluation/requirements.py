"""What the project asks of itself, one bar at a time: how much is wanted, how much was measured, and whether that is enough."""

from __future__ import annotations

from dataclasses import dataclass

MET, NOT_MET, NOT_HERE = "met", "not met", "not measured here"
#: The columns of a table of bars.
BAR_COLUMNS = ("what", "wanted", "measured", "verdict")


@dataclass(frozen=True)
class Bar:
    """One requirement: what, how much is wanted, how much was measured, and the verdict with a word where it needs one."""

    what: str
    wanted: str
    measured: str
    verdict: str

    def cells(self) -> tuple[str, ...]:
        """Its row under `BAR_COLUMNS`."""
        return self.what, self.wanted, self.measured, self.verdict
