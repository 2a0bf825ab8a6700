"""Claims about which method reconstructs better: judged by what the tables and Figure 3 keep, on the same images with the same noise.

Two trainings of one method differ too. A difference of two means counts as luck below twice its standard error,

    s * sqrt(1 / n_1 + 1 / n_2),    n the trainings of each method, s the larger of the two standard deviations over seeds;

a method without training has no such term. Where a method was trained once, s is what the other knows about the luck of training.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bdgd.evaluation.claim import Claim
from bdgd.evaluation.lab import Lab, display_name
from bdgd.evaluation.tables import read_cell, trainings
from bdgd.storage import read_kept

SETTINGS = {"sparse30": "sparse view", "limited120": "limited view 120°", "limited60": "limited view 60°"}
#: The methods that BDGD-MFVI is compared with.
RIVALS = ("mcdo", "dgd", "lpd", "tv", "fbp")
#: "The first few blocks", in which the paper finds BDGD-MFVI and BDGD-MCDO alike.
FEW = 3


#: The results of two methods, one per seed, in the same order.
Cells = tuple[list[dict[str, Any]], list[dict[str, Any]]]


class Lead(NamedTuple):
    """By how many dB a method is ahead, and what luck can do: twice the standard error, 0 where there is one seed only."""

    mean: float
    luck: float


def beats(lab: Lab, setting: str, rival: str, recipe: str = "") -> Claim:
    """BDGD-MFVI reconstructs better than a rival."""
    names = (f"{setting}-mfvi{recipe}", _method(setting, rival, recipe))
    words = f"BDGD-MFVI beats {_called(names[1])}, {SETTINGS[setting]}"
    statement = "mean PSNR above the rival's, on the ellipses and on Shepp-Logan"
    cells, missing = _compared(lab, setting, names)
    if not cells[0]:
        return Claim(words, statement, names, missing=missing)
    ellipses, head = _lead(cells, slice(None, -1)), _lead(cells, slice(-1, None))
    won = [a > b for ours, theirs in zip(*cells, strict=True) for a, b in zip(ours["psnr"][:-1], theirs["psnr"][:-1], strict=True)]
    numbers = {**_told("ellipses", ellipses), **_told("Shepp-Logan", head), "ellipse images won %": 100 * fmean(won)}
    lucky = min(abs(lead.mean) - lead.luck for lead in (ellipses, head)) < 0
    return Claim(words, statement, names, numbers | _counted(cells), ellipses.mean > 0 and head.mean > 0, within_luck=lucky)


def dropout_is_like_dgd(lab: Lab, recipe: str = "") -> Claim:
    """On the ellipses BDGD-MCDO is nearly identical to DGD."""
    names = (f"sparse30-mcdo{recipe}", f"sparse30-dgd{recipe}")
    words, statement = "BDGD-MCDO is like DGD on the ellipses, sparse view", "mean PSNR differs by no more than luck can do"
    cells, missing = _compared(lab, "sparse30", names)
    if not cells[0]:
        return Claim(words, statement, names, missing=missing)
    lead = _lead(cells, slice(None, -1))
    return Claim(words, statement, names, _told("ellipses", lead) | _counted(cells), abs(lead.mean) <= lead.luck)


def dropout_beats_dgd(lab: Lab, recipe: str = "") -> Claim:
    """On Shepp-Logan BDGD-MCDO is better than DGD."""
    names = (f"sparse30-mcdo{recipe}", f"sparse30-dgd{recipe}")
    words, statement = "BDGD-MCDO beats DGD on Shepp-Logan, sparse view", "mean PSNR above the rival's"
    cells, missing = _compared(lab, "sparse30", names)
    if not cells[0]:
        return Claim(words, statement, names, missing=missing)
    lead = _lead(cells, slice(-1, None))
    numbers = _told("Shepp-Logan", lead) | _counted(cells)
    return Claim(words, statement, names, numbers, lead.mean > 0, within_luck=abs(lead.mean) < lead.luck)


def gains_by_more_blocks(lab: Lab, setting: str, recipe: str = "") -> Claim:
    """The first few blocks of BDGD-MFVI and BDGD-MCDO are alike; later ones improve BDGD-MFVI further."""
    names = (f"{setting}-mfvi{recipe}", f"{setting}-mcdo{recipe}")
    words = f"More blocks gain more than in BDGD-MCDO, {SETTINGS[setting]}"
    statement = f"lead in mean PSNR over BDGD-MCDO (Figure 3) larger after the last block than after block {FEW}"
    kept: dict[str, Any] = read_kept(lab.folder / "fig3.json", "the numbers of Figure 3", lambda record: dict(record["numbers"]), {})
    if missing := tuple(name for name in names if name not in kept):
        return Claim(words, statement, names, missing=tuple(f"{name} in Figure 3" for name in missing))
    leads = [ours["mean"] - theirs["mean"] for ours, theirs in zip(*(kept[name].values() for name in names), strict=True)]
    numbers = {f"block {block} dB": leads[block - 1] for block in sorted({1, min(FEW, len(leads)), len(leads)})}
    return Claim(words, statement, names, numbers, leads[-1] > leads[min(FEW, len(leads)) - 1])


def _method(setting: str, kind: str, recipe: str) -> str:
    """The name of a method's cell. Classical methods have no model, and of LPD's training the paper says nothing: there is one of each."""
    return kind if kind in ("tv", "fbp") else f"{setting}-lpd" if kind == "lpd" else f"{setting}-{kind}{recipe}"


def _called(method: str) -> str:
    return display_name(method).split(",")[0] if "-" in method else method.upper()


def _compared(lab: Lab, setting: str, names: tuple[str, str]) -> tuple[Cells, tuple[str, ...]]:
    """The results of both methods for the seeds that both have, and the methods that have none at all."""
    ours, theirs = ({cell["provenance"]["seed"]: cell for cell in read_cell(lab.folder, setting, name)} for name in names)
    seeds = sorted(set(ours) & set(theirs))
    missing = tuple(name for name, cell in zip(names, (ours, theirs), strict=True) if not cell)
    return ([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]), missing


def _lead(cells: Cells, images: slice) -> Lead:
    """How far the first is ahead of the second on these images."""
    means = [[fmean(cell["psnr"][images]) for cell in method] for method in cells]
    spread = max(stdev(values) for values in means) if len(means[0]) > 1 else 0.0
    share = sum(1 / number for method in cells if (number := trainings(method)))
    return Lead(fmean(means[0]) - fmean(means[1]), 2 * spread * math.sqrt(share))


def _told(where: str, lead: Lead) -> dict[str, float]:
    return {f"{where} dB": lead.mean, f"luck {where} dB": lead.luck}


def _counted(cells: Cells) -> dict[str, float]:
    """Seeds, and the trainings behind them where a method has fewer."""
    fewest = min((number for method in cells if (number := trainings(method))), default=0)
    counts: dict[str, float] = {"seeds": len(cells[0])}
    return counts | ({"trainings at least": fewest} if 0 < fewest < len(cells[0]) else {})
