"""What the paper claims, as numbers with a verdict: each claim is one function of a `Lab`, and none is hidden.

A claim is measured with our recipe and, where those models are shipped, with the authors' (their
kl_weight). What cannot be measured, because a model is not shipped, has no verdict and says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from bdgd.data import shepp_logan
from bdgd.evaluation.lab import Lab, Look, display_name, side
from bdgd.evaluation.maps import edge_contrast, spread, text_contrast
from bdgd.evaluation.pages import markdown_table, noted
from bdgd.evaluation.paper_figures import shown_blocks
from bdgd.evaluation.subjects import ellipse_pictures, faint_ellipse, text_pictures
from bdgd.evaluation.tables import read_cell

#: A variance is "a multiple" of another from this factor on, and a map "finds" something from this AUROC on (1/2 is chance).
MULTIPLE, FOUND = 2.0, 0.75
AUTHORS = "-paper"  # the ending of a model of the authors' recipe
_SETTINGS = {"sparse30": "sparse view", "limited120": "limited view 120°", "limited60": "limited view 60°"}


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    statement: how it is judged. models: those it is measured with. numbers: what was measured, by name. holds: the verdict, None where
    a model is not there; `missing` names it.
    """

    name: str
    statement: str
    models: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    holds: bool | None = None
    missing: tuple[str, ...] = ()

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


def beats(lab: Lab, setting: str, rival: str, recipe: str = "") -> Claim:
    """BDGD-MFVI reconstructs better than a rival, by the cells of the tables: the same images with the same noise."""
    names = (f"{setting}-mfvi{recipe}", f"{setting}-{rival}{recipe}")
    words = f"BDGD-MFVI beats {display_name(names[1]).split(',')[0]}, {_SETTINGS[setting]}"
    statement = "mean PSNR above the rival's, on the ellipses and on Shepp-Logan"
    ours, theirs = ({cell["provenance"]["seed"]: cell["psnr"] for cell in read_cell(lab.folder, setting, name)} for name in names)
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return Claim(words, statement, names, missing=tuple(name for name, cell in zip(names, (ours, theirs), strict=True) if not cell))
    gains = [[a - b for a, b in zip(ours[seed], theirs[seed], strict=True)] for seed in seeds]  # dB, Shepp-Logan last
    ellipses = [gain for row in gains for gain in row[:-1]]
    numbers = {
        "ellipses dB": fmean(ellipses),
        "Shepp-Logan dB": fmean(row[-1] for row in gains),
        "ellipse images won %": 100 * fmean(gain > 0 for gain in ellipses),
        "seeds": len(seeds),
    }
    return Claim(words, statement, names, numbers, numbers["ellipses dB"] > 0 and numbers["Shepp-Logan dB"] > 0)


def reconstruction_phase(lab: Lab, recipe: str = "") -> Claim:
    """Variance falls from the first to the middle block."""
    return _phase(lab, f"sparse30-mfvi{recipe}", "Reconstruction phase", "falls from the first to the middle block", lambda a, b, c: b < a)


def fine_tuning_phase(lab: Lab, recipe: str = "") -> Claim:
    """Variance rises again from the middle to the last block."""
    return _phase(lab, f"sparse30-mfvi{recipe}", "Fine-tuning phase", "rises from the middle to the last block", lambda a, b, c: c > b)


def dropout_stays_low(lab: Lab, recipe: str = "") -> Claim:
    """With dropout there is no fine-tuning phase."""
    words = "falls from the first to the last block and does not rise from the middle one"
    return _phase(lab, f"sparse30-mcdo{recipe}", "No fine-tuning phase in BDGD-MCDO", words, lambda a, b, c: c < a and c <= b)


def shorter_arc(lab: Lab, recipe: str = "") -> Claim:
    """The variance rises as the arc shrinks."""
    return _more_variance(lab, "limited60", "limited120", recipe)


def limited_view(lab: Lab, recipe: str = "") -> Claim:
    """The variance of a limited view is above that of a sparse one."""
    return _more_variance(lab, "limited120", "sparse30", recipe)


def text_stands_out(lab: Lab, setting: str, recipe: str = "") -> Claim:
    """Inside a text that no training image contains, the variance is a multiple of that outside."""
    name = f"{setting}-mfvi{recipe}"
    statement = f'mean variance inside "ICPR 2020" at least {MULTIPLE:g} times that outside'
    return _about_text(lab, name, f"Text stands out, {_SETTINGS[setting]}", statement, lambda n: n["text / rest"] >= MULTIPLE)


def text_is_found(lab: Lab, setting: str, recipe: str = "") -> Claim:
    """The variance map finds the pixels of the text."""
    name, statement = f"{setting}-mfvi{recipe}", f"AUROC of the variance as a detector of the text's pixels at least {FOUND:g}"
    return _about_text(lab, name, f"Text is found, {_SETTINGS[setting]}", statement, lambda n: n["AUROC"] >= FOUND)


def faint_ellipse_visible(lab: Lab, recipe: str = "") -> Claim:
    """A faint large ellipse is visible in the variance: the map along its edge against the flat pixels near it."""
    name = f"limited120-mfvi{recipe}"
    statement = f"mean variance along its edge at least {MULTIPLE:g} times that of the flat pixels near it"
    numbers = _faint(lab, name)
    if numbers is None:
        return Claim("Faint ellipse in the variance", statement, (name,), missing=(name,))
    return Claim("Faint ellipse in the variance", statement, (name,), numbers, numbers["edge / flat"] >= MULTIPLE)


def more_detail_than_dropout(lab: Lab, recipe: str = "") -> Claim:
    """The variance of MFVI shows the faint ellipse's edge better than that of dropout."""
    names = (f"limited120-mfvi{recipe}", f"limited120-mcdo{recipe}")
    words, statement = "Faint ellipse: more detail than BDGD-MCDO", "AUROC of the variance along its edge above that of BDGD-MCDO"
    found = [_faint(lab, name) for name in names]
    ours, theirs = found
    if ours is None or theirs is None:
        return Claim(words, statement, names, missing=tuple(n for n, numbers in zip(names, found, strict=True) if numbers is None))
    key = "AUROC of the edge"
    return Claim(words, statement, names, {"MFVI": ours[key], "MCDO": theirs[key]}, ours[key] > theirs[key])


#: Every claim, in the order of the paper; each is called with the lab and `recipe`.
CLAIMS: Sequence[Callable[..., Claim]] = (
    *(partial(beats, setting=setting, rival=rival) for setting in ("sparse30", "limited120") for rival in ("mcdo", "dgd")),
    reconstruction_phase,
    fine_tuning_phase,
    dropout_stays_low,
    shorter_arc,
    limited_view,
    *(partial(check, setting=setting) for setting in _SETTINGS for check in (text_stands_out, text_is_found)),
    faint_ellipse_visible,
    more_detail_than_dropout,
)


def check_claims(lab: Lab) -> Iterator[Claim]:
    """Every claim with our recipe, each followed by the authors' where all of its models are there."""
    for claim in CLAIMS:
        yield claim(lab, recipe="")
        known = list(lab.missing)
        theirs = claim(lab, recipe=AUTHORS)
        if theirs.missing:
            lab.missing[:] = known  # nobody asked for the authors' model, so it is not missing
        else:
            yield theirs


def markdown(claims: Sequence[Claim], note: str = "") -> str:
    """The claims as a table, with how many hold."""
    marks = {True: "yes", False: "**no**", None: "not yet"}
    rows = [(claim.name, claim.statement, claim.recipe, claim.told(), marks[claim.holds]) for claim in claims]
    table = markdown_table(("claim", "judged by", "recipe", "measured", "holds"), rows, align="llllc")
    return noted(note, table, summary(claims))


def summary(claims: Sequence[Claim]) -> str:
    """How many hold, in a sentence."""
    held, failed, open_ = (sum(claim.holds is verdict for claim in claims) for verdict in (True, False, None))
    return f"{held} hold, {failed} do not, {open_} cannot be measured yet."


def _phase(lab: Lab, name: str, words: str, statement: str, judge: Callable[[float, float, float], bool]) -> Claim:
    """A claim on the mean variance on Shepp-Logan after the first, middle and last block; that on ellipses is told beside it."""
    statement, variances = f"variance on Shepp-Logan {statement}", lab.once(("phases", name), partial(_phases, lab, name))
    if variances is None:
        return Claim(words, statement, (name,), missing=(name,))
    (_, first), (_, middle), (_, last), *_ = variances.items()
    return Claim(words, statement, (name,), variances, judge(first, middle, last))


def _phases(lab: Lab, name: str) -> dict[str, float] | None:
    """The mean variance after the first, middle and last block: "block 1" on Shepp-Logan, "ellipses block 1" on ellipses, and so on."""
    if (model := lab.model(name)) is None:
        return None
    numbers: dict[str, float] = {}
    for phantom, images in (("", shepp_logan(side(model))), ("ellipses ", ellipse_pictures(lab.effort.claim_images, side(model)))):
        for block, look in lab.look_after(model, lab.sinograms(model, images), shown_blocks(model)).items():
            numbers[f"{phantom}block {block}"] = spread(look)
    return numbers


def _more_variance(lab: Lab, harder: str, easier: str, recipe: str) -> Claim:
    """A claim that the harder setting has more variance than the easier one, on the same ellipse images."""
    names = (f"{harder}-mfvi{recipe}", f"{easier}-mfvi{recipe}")
    words, statement = f"Variance: {_SETTINGS[harder]} above {_SETTINGS[easier]}", "mean variance over the same ellipse images is larger"
    looks = [_look(lab, name, text=False) for name in names]
    if missing := tuple(name for name, look in zip(names, looks, strict=True) if look is None):
        return Claim(words, statement, names, missing=missing)
    hard, easy = (spread(look) for look in looks if look is not None)
    return Claim(words, statement, names, {_SETTINGS[harder]: hard, _SETTINGS[easier]: easy, "ratio": hard / max(easy, 1e-30)}, hard > easy)


def _about_text(lab: Lab, name: str, words: str, statement: str, judge: Callable[[dict[str, float]], bool]) -> Claim:
    """A claim on the images with the text; how much more variance its pixels have than without it is told beside it."""
    plain, written = _look(lab, name, text=False), _look(lab, name, text=True)
    if plain is None or written is None:
        return Claim(words, statement, (name,), missing=(name,))
    _, mask = text_pictures(1, written.mean.shape[2])
    here = mask.expand_as(written.epistemic)
    numbers = text_contrast(written, mask)
    numbers["times without the text"] = float(written.epistemic[here].mean()) / max(float(plain.epistemic[here].mean()), 1e-30)
    return Claim(words, statement, (name,), numbers, judge(numbers))


def _look(lab: Lab, name: str, text: bool) -> Look | None:
    """The claims' ellipse images, with or without the text, through a model."""

    def make() -> Look | None:
        if (model := lab.model(name)) is None:
            return None
        count, size = lab.effort.claim_images, side(model)
        images = text_pictures(count, size)[0] if text else ellipse_pictures(count, size)
        return lab.look(model, lab.sinograms(model, images))

    return lab.once(("look", name, text), make)


def _faint(lab: Lab, name: str) -> dict[str, float] | None:
    """How the faint ellipse's edge stands out in a model's variance; None where the model is not there."""

    def make() -> dict[str, float] | None:
        if (model := lab.model(name)) is None:
            return None
        subject = faint_ellipse(side(model))
        return edge_contrast(lab.look(model, lab.sinograms(model, subject.image)), subject.edge, subject.flat)

    return lab.once(("faint", name), make)
