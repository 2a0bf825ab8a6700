"""A claim of the paper as a value: how it is judged, what was measured, and the verdict; and how a list of them is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bdgd.evaluation.pages import markdown_table, noted

PAPERS = "-paper"  # the ending of a model of the paper's recipe
#: Why a verdict is not firm: another set of trainings might well have given the other one, or it is not known what luck can do.
LUCK, UNKNOWN = "within luck", "luck unknown"


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    statement: how it is judged. models: those it is measured with. numbers: what was measured, by names that end with their unit, if
    they have one; the luck of a number is "luck of" its name. holds: the verdict, None where something is not there; `missing` names it.
    doubt: why the verdict is not firm, `LUCK` or `UNKNOWN`; empty where the claim does not compare trainings.
    """

    name: str
    statement: str
    models: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    holds: bool | None = None
    missing: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def recipe(self) -> str:
        """By whose recipe the models were trained."""
        return "paper's" if any(name.endswith(PAPERS) for name in self.models) else "ours"

    def told(self) -> str:
        """The numbers in words, or what is missing."""
        if self.missing:
            return f"not measured: {', '.join(self.missing)} is not there yet"
        if not self.numbers:
            return "not measured: the methods have no seed in common"
        return "; ".join(self._number(name) for name in self.numbers if not name.startswith("luck of "))

    def _number(self, name: str) -> str:
        """One number with its unit: a lead with its sign, and what luck can do where that is known."""
        words, unit = (name[: -len(end)], end) if (end := f" {name.split()[-1]}") in (" dB", " %") else (name, "")
        value = self.numbers[name]
        shown = f"{value:{'+' if name.startswith('lead') else ''}.2f}" if unit == " dB" else f"{value:.3g}"
        luck = self.numbers.get(f"luck of {name}")
        return f"{words} {shown}{unit}" + (f" (luck {luck:.2f})" if luck is not None else "")

    def verdict(self) -> str:
        """In Markdown; what does not hold stands out."""
        if self.holds is None:
            return "not yet"
        return ("yes" if self.holds else "**no**") + (f", {self.doubt}" if self.doubt else "")


def markdown(claims: Sequence[Claim], note: str = "") -> str:
    """The claims as a table, with how many hold."""
    rows = [(claim.name, claim.statement, claim.recipe, claim.told(), claim.verdict()) for claim in claims]
    table = markdown_table(("claim", "judged by", "recipe", "measured", "holds"), rows, align="llllc")
    return noted(note, table, summary(claims))


def summary(claims: Sequence[Claim]) -> str:
    """How many hold, in a sentence."""
    held, failed, open_ = (sum(claim.holds is verdict for claim in claims) for verdict in (True, False, None))
    doubted = sum(bool(claim.doubt) for claim in claims)
    return f"{held} hold, {failed} do not, {open_} cannot be measured yet" + (f"; {doubted} verdicts are not firm." if doubted else ".")
