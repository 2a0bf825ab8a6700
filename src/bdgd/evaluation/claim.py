"""A claim of the paper as a value: how it is judged, what was measured, and the verdict; and how a list of them is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bdgd.evaluation.pages import markdown_table, noted

AUTHORS = "-paper"  # the ending of a model of the authors' recipe


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    statement: how it is judged. models: those it is measured with. numbers: what was measured, by name. holds: the verdict, None where
    something is not there; `missing` names it. within_luck: another set of trainings might well have given the other verdict.
    """

    name: str
    statement: str
    models: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    holds: bool | None = None
    missing: tuple[str, ...] = ()
    within_luck: bool = False

    @property
    def recipe(self) -> str:
        """By whose recipe the models were trained."""
        return "authors'" if any(name.endswith(AUTHORS) for name in self.models) else "ours"

    def told(self) -> str:
        """The numbers in words, or what is missing."""
        if self.missing:
            return f"not measured: {', '.join(self.missing)} is not there yet"
        if not self.numbers:
            return "not measured: the methods have no seed in common"
        return ", ".join(f"{name} {value:.3g}" for name, value in self.numbers.items())

    def verdict(self) -> str:
        """In Markdown; what does not hold stands out."""
        if self.holds is None:
            return "not yet"
        return ("yes" if self.holds else "**no**") + (", within luck" if self.within_luck else "")


def markdown(claims: Sequence[Claim], note: str = "") -> str:
    """The claims as a table, with how many hold."""
    rows = [(claim.name, claim.statement, claim.recipe, claim.told(), claim.verdict()) for claim in claims]
    table = markdown_table(("claim", "judged by", "recipe", "measured", "holds"), rows, align="llllc")
    return noted(note, table, summary(claims))


def summary(claims: Sequence[Claim]) -> str:
    """How many hold, in a sentence."""
    held, failed, open_ = (sum(claim.holds is verdict for claim in claims) for verdict in (True, False, None))
    lucky = sum(claim.within_luck for claim in claims)
    return f"{held} hold, {failed} do not, {open_} cannot be measured yet" + (f"; {lucky} verdicts are within luck." if lucky else ".")
