"""What choosing on the test set buys: the score of the best of several candidates, chosen on the images it is scored on or on others.

With m[c, s] the mean PSNR of candidate c on the test set s, one of several disjoint ones of equal size, and c_s the best candidate there,

    gain(s) = m[c_s, s] - mean over t != s of m[c_t, s],

both on the same images, so that it does not matter how hard these are. It is never negative, and 0 where every set chooses alike.
The candidates are the trainings behind the tables, and the shipped ones on a thousand images: their values are kept, image by image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_count

#: Images of the authors' test set and of the tables'.
TEST_SETS = (10, 100)
LEAST_SETS = 3  # of two, leaving one out leaves nothing to compare, so nothing tells the error of the gain
#: What one might choose among: methods whose images are about as good.
METHODS = ("sparse30-dgd", "sparse30-mfvi", "sparse30-mcdo")
#: The method whose trainings are compared with each other.
SEEDS_OF = "sparse30-dgd"
#: of a table: by method, an entry for every seed; of the gains: by model, an entry
Cells = Mapping[str, Sequence[Mapping[str, Any]]]
Gains = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Optimism:
    """What choosing among `candidates` on test sets of `images` images buys, in dB.

    gain: mean over the sets; error: its standard error, sets as the unit, by the jackknife. agreement: of all pairs of sets, the share
    that choose alike. spread: standard deviation over the sets of the mean PSNR of the candidate that is best on all images.
    """

    candidates: int
    images: int
    sets: int
    gain: float
    error: float
    agreement: float
    spread: float


def optimism(quality: Tensor, images: int) -> Optimism:
    """From the PSNR (C, N) of C candidates on N images, which are cut into disjoint test sets of `images` each.

    The gains of n sets are not independent, since each set's choice is in all of them: their spread over sqrt(n) is too small where the
    candidates differ. With g_j the mean gain of the sets but j, the standard error is that of the jackknife,
    sqrt((n - 1) / n * sum_j (g_j - mean g)^2).
    """
    candidates, available = quality.shape
    sets = available // require_count(images, "images")
    if sets < LEAST_SETS:
        raise InputError(f"at least {LEAST_SETS} test sets are compared, but {available} images make {sets} of {images}; take smaller sets")
    means = quality.double()[:, : sets * images].reshape(candidates, sets, images).mean(2)  # (C, sets)
    best = means.argmax(0)  # (sets,)
    scores = means[best]  # scores[t, s]: what the choice of set t scores on set s
    lead = scores.diagonal() - scores  # lead[t, s]: of the choice of s over that of t, on s
    gain = lead.sum() / (sets * (sets - 1))  # a set's own choice adds nothing
    others = (lead.sum() - lead.sum(0) - lead.sum(1)) / ((sets - 1) * (sets - 2))  # g_j: neither j's images nor its choice
    error = (sets - 1) * float(others.std()) / sets**0.5
    alike = float((best[:, None] == best).sum() - sets) / (sets * (sets - 1))
    overall = means[means.mean(1).argmax()]
    return Optimism(candidates, images, sets, float(gain), error, alike, float(overall.std()))


def own_trainings(cell: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries of a cell whose seed was that of a training too, and not only of noise and draws."""
    return [entry for entry in cell if (entry["recipe"].get("trained") or {}).get("seed") == entry["provenance"]["seed"]]


def families(cells: Cells, gains: Gains) -> dict[str, Tensor]:
    """What is chosen among, by name: the PSNR (C, N) of C > 1 candidates on N ellipse images, Shepp-Logan left out.

    Trainings of other seeds have other noise on the same images, as in the tables; the methods, on more images, have the same.
    """
    trainings = {method: [entry["psnr"][:-1] for entry in own_trainings(cell)] for method, cell in cells.items()}
    found = {
        "the seed": trainings.get(SEEDS_OF, []),
        "the method": [gains[model]["psnr"] for model in METHODS if model in gains],
        "method and seed": [values for method in METHODS for values in trainings.get(method, [])],
    }
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items() if len(values) > 1}


def selection_scores(cells: Cells, gains: Gains) -> dict[str, Any]:
    """What choosing on test images buys in each family, and how far PSNR differs between trainings of other seeds."""
    chosen = {
        name: [asdict(optimism(quality, size)) for size in TEST_SETS if quality.shape[1] >= LEAST_SETS * size]
        for name, quality in families(cells, gains).items()
    }
    return {
        "families": {name: sizes for name, sizes in chosen.items() if sizes},
        "seeds": seed_spread(own_trainings(cells.get(SEEDS_OF, []))),
    }


def seed_spread(trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The standard deviations over trainings of one method, and by how many commits these were made; None where there are not two."""
    if len(trainings) < 2:
        return None
    ellipses, head = [fmean(entry["psnr"][:-1]) for entry in trainings], [float(entry["psnr"][-1]) for entry in trainings]
    images, commits = len(trainings[0]["psnr"]) - 1, len({entry["recipe"]["trained"].get("commit") for entry in trainings})
    spread = {"psnr_std": stdev(ellipses), "shepp_logan_std": stdev(head)}
    return {"trainings": len(trainings), "commits": commits, "images": images, **spread}
