"""Claims about which method reconstructs better: judged by what the tables and Figure 3 keep, on the same images with the same noise.

Two trainings of one method differ too. A difference of two means counts as luck below twice its standard error,

    s * sqrt(1 / n_1 + 1 / n_2),    n the trainings of each method, s the larger of the standard deviations over several trainings;

a method without training has no such term. Where every method was trained once, nobody knows what luck can do.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bdgd.evaluation.claim import LUCK, UNKNOWN, Claim
from bdgd.evaluation.lab import Lab, display_name
from bdgd.evaluation.tables import trainings
from bdgd.storage import read_kept

SETTINGS = {"sparse30": "sparse view", "limited120": "limited view 120°", "limited60": "limited view 60°"}
#: The methods that BDGD-MFVI is compared with.
RIVALS = ("mcdo", "dgd", "lpd", "tv", "fbp")
#: Where the paper itself excepts the ellipses from its claim.
ON_SHEPP_LOGAN = {("sparse30", "lpd")}
#: "Nearly identical" are means that differ by at most so many dB; "comparable" ones by at most so many.
IDENTICAL, COMPARABLE = 0.2, 0.5
#: "The first few blocks", in which the paper finds BDGD-MFVI and BDGD-MCDO comparable.
FEW = 3
ELLIPSES, SHEPP_LOGAN = "lead on ellipses dB", "lead on Shepp-Logan dB"

#: The results of two methods, one per seed, in the same order.
Cells = tuple[list[dict[str, Any]], list[dict[str, Any]]]


class Lead(NamedTuple):
    """By how many dB a method is ahead, and what luck can do: twice the standard error, None where nobody knows."""

    mean: float
    luck: float | None

    def doubt(self, bar: float = 0.0) -> str:
        """Why it is not firm on which side of a bar the lead is."""
        return UNKNOWN if self.luck is None else LUCK if abs(self.mean - bar) < self.luck else ""

    def told(self, name: str) -> dict[str, float]:
        """The numbers of a claim."""
        return {name: self.mean} | ({} if self.luck is None else {f"luck of {name}": self.luck})


def beats(lab: Lab, setting: str, rival: str, recipe: str = "") -> Claim:
    """BDGD-MFVI reconstructs better than a rival."""
    names = (f"{setting}-mfvi{recipe}", _method(setting, rival, recipe))
    words = f"BDGD-MFVI beats {_called(names[1])}, {SETTINGS[setting]}"
    one = (setting, rival) in ON_SHEPP_LOGAN
    statement = f"mean PSNR above the rival's, on {'' if one else 'the ellipses and on '}Shepp-Logan"
    cells, missing = _compared(lab, setting, names)
    if not cells[0]:
        return Claim(words, statement, names, missing=missing)
    ellipses, head = _lead(cells, slice(None, -1)), _lead(cells, slice(-1, None))
    won = [a > b for ours, theirs in zip(*cells, strict=True) for a, b in zip(ours["psnr"][:-1], theirs["psnr"][:-1], strict=True)]
    numbers = {**ellipses.told(ELLIPSES), **head.told(SHEPP_LOGAN), "ellipse images won %": 100 * fmean(won)}
    judged = [head] if one else [ellipses, head]
    against = [lead for lead in judged if lead.mean <= 0]  # a firm one of them decides, whatever the other
    doubt = min(lead.doubt() for lead in against) if against else max(lead.doubt() for lead in judged)
    return Claim(words, statement, names, numbers | _counted(cells), not against, doubt=doubt)


def dropout_is_like_dgd(lab: Lab, recipe: str = "") -> Claim:
    """On the ellipses BDGD-MCDO is nearly identical to DGD."""
    names = (f"sparse30-mcdo{recipe}", f"sparse30-dgd{recipe}")
    words, statement = "BDGD-MCDO is like DGD on the ellipses, sparse view", f"mean PSNR differs by at most {IDENTICAL:g} dB"
    cells, missing = _compared(lab, "sparse30", names)
    if not cells[0]:
        return Claim(words, statement, names, missing=missing)
    lead = _lead(cells, slice(None, -1))
    apart = Lead(abs(lead.mean), lead.luck)
    return Claim(words, statement, names, lead.told(ELLIPSES) | _counted(cells), apart.mean <= IDENTICAL, doubt=apart.doubt(IDENTICAL))


def dropout_beats_dgd(lab: Lab, recipe: str = "") -> Claim:
    """On Shepp-Logan BDGD-MCDO is better than DGD."""
    names = (f"sparse30-mcdo{recipe}", f"sparse30-dgd{recipe}")
    words, statement = "BDGD-MCDO beats DGD on Shepp-Logan, sparse view", "mean PSNR above the rival's"
    cells, missing = _compared(lab, "sparse30", names)
    if not cells[0]:
        return Claim(words, statement, names, missing=missing)
    lead = _lead(cells, slice(-1, None))
    return Claim(words, statement, names, lead.told(SHEPP_LOGAN) | _counted(cells), lead.mean > 0, doubt=lead.doubt())


def gains_by_more_blocks(lab: Lab, setting: str, recipe: str = "") -> Claim:
    """The first few blocks of BDGD-MFVI and BDGD-MCDO are comparable; later ones improve BDGD-MFVI further.

    Figure 3 has one training of each; what its luck is, the table of the setting tells.
    """
    names = (f"{setting}-mfvi{recipe}", f"{setting}-mcdo{recipe}")
    words = f"Comparable with BDGD-MCDO at first, then ahead, {SETTINGS[setting]}"
    statement = (
        f"lead in mean PSNR over BDGD-MCDO (Figure 3) within {COMPARABLE:g} dB up to block {FEW}, and larger after the last block than then"
    )
    kept: dict[str, Any] = read_kept(lab.folder / "fig3.json", "the numbers of Figure 3", lambda record: dict(record["numbers"]), {})
    if missing := tuple(name for name in names if name not in kept):
        return Claim(words, statement, names, missing=tuple(f"{name} in Figure 3" for name in missing))
    leads = [ours["mean"] - theirs["mean"] for ours, theirs in zip(*(kept[name].values() for name in names), strict=True)]
    few = min(FEW, len(leads))
    numbers = {f"lead after block {block} dB": leads[block - 1] for block in sorted({1, few, len(leads)})}
    comparable = max(abs(lead) for lead in leads[:few]) <= COMPARABLE
    cells, _ = _compared(lab, setting, names)
    change = Lead(leads[-1] - leads[few - 1], _luck(cells, slice(None, -1), trained=(1, 1)) if cells[0] else None)
    return Claim(words, statement, names, numbers, comparable and change.mean > 0, doubt=change.doubt() if comparable else "")


def _method(setting: str, kind: str, recipe: str) -> str:
    """The name of a method's cell. Classical methods have no model, and of LPD's training the paper says nothing: there is one of each."""
    return kind if kind in ("tv", "fbp") else f"{setting}-lpd" if kind == "lpd" else f"{setting}-{kind}{recipe}"


def _called(method: str) -> str:
    return display_name(method).split(",")[0] if "-" in method else method.upper()


def _compared(lab: Lab, setting: str, names: tuple[str, str]) -> tuple[Cells, tuple[str, ...]]:
    """The results of both methods for the seeds that both have, and the methods that have none at all."""
    ours, theirs = ({cell["provenance"]["seed"]: cell for cell in lab.cell(setting, name)} for name in names)
    seeds = sorted(set(ours) & set(theirs))
    missing = tuple(name for name, cell in zip(names, (ours, theirs), strict=True) if not cell)
    return ([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]), missing


def _lead(cells: Cells, images: slice) -> Lead:
    """How far the first is ahead of the second on these images."""
    ours, theirs = (fmean(_means(method, images)) for method in cells)
    counts = trainings(cells[0]), trainings(cells[1])
    return Lead(ours - theirs, _luck(cells, images, counts))


def _luck(cells: Cells, images: slice, trained: tuple[int, int]) -> float | None:
    """Twice the standard error of a lead of means over so many trainings each; None where no method has several."""
    spreads = [stdev(_means(method, images)) for method in cells if trainings(method) > 1]
    if not spreads:
        return None if any(trained) else 0.0
    return 2 * max(spreads) * math.sqrt(sum(1 / number for number in trained if number))


def _means(cell: list[dict[str, Any]], images: slice) -> list[float]:
    """The mean PSNR of each seed."""
    return [fmean(result["psnr"][images]) for result in cell]


def _counted(cells: Cells) -> dict[str, float]:
    """Seeds, and the fewest trainings behind those of either method where these are fewer."""
    fewest = min((number for method in cells if (number := trainings(method))), default=0)
    counts: dict[str, float] = {"seeds": len(cells[0])}
    return counts | ({"trainings of one": fewest} if 0 < fewest < len(cells[0]) else {})
