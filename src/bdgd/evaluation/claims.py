"""What the paper claims, as numbers with a verdict: each claim is one function of a `Lab`, and none is hidden.

A claim is measured with our recipe and, where those models are shipped, with the paper's (as its
authors' code has it). What cannot be measured, because a model is not shipped, has no verdict and says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from bdgd.data import shepp_logan
from bdgd.evaluation.claim import PAPERS, Claim
from bdgd.evaluation.lab import Lab, Look, side
from bdgd.evaluation.maps import edge_contrast, share_above, spread, text_contrast
from bdgd.evaluation.paper_figures import shown_blocks
from bdgd.evaluation.subjects import ellipse_pictures, faint_ellipse, text_pictures
from bdgd.evaluation.table_claims import RIVALS, SETTINGS, beats, dropout_beats_dgd, dropout_is_like_dgd, gains_by_more_blocks
from bdgd.metrics import psnr

#: A variance is "a multiple" of another from this factor on, and a map "finds" something from this AUROC on (1/2 is chance).
MULTIPLE, FOUND = 2.0, 0.75
#: The blocks that the paper stops at in sparse view; PSNR that rises by less than this many dB beyond does not count as better.
PAPERS_BLOCKS, NO_GAIN = 10, 0.1


def deep_enough(lab: Lab, recipe: str = "") -> Claim:
    """In sparse view a cascade of more than ten blocks is no better: judged within our deepest one, whatever the paper's recipe does."""
    name, words = f"sparse30-best{recipe}", "More than ten blocks do not help, sparse view"
    statement = f"mean PSNR of our best on ellipses rises by less than {NO_GAIN:g} dB after block {PAPERS_BLOCKS}"
    if (model := lab.model(name)) is None:
        return Claim(words, statement, (name,), missing=(name,))
    images, (_, _, last) = ellipse_pictures(lab.effort.claim_images, side(model)), shown_blocks(model)
    if last <= PAPERS_BLOCKS:
        return Claim(words, statement, (name,), missing=(f"{name} with more than {PAPERS_BLOCKS} blocks",))
    looks = lab.look_after(model, lab.sinograms(model, images), (PAPERS_BLOCKS, last))
    numbers = {f"block {block} dB": float(psnr(look.mean, images).mean()) for block, look in looks.items()}
    return Claim(words, statement, (name,), numbers, max(numbers.values()) - next(iter(numbers.values())) < NO_GAIN)


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
    return _about_text(lab, name, f"Text stands out, {SETTINGS[setting]}", statement, lambda n: n["text / rest"] >= MULTIPLE)


def text_is_found(lab: Lab, setting: str, recipe: str = "") -> Claim:
    """The variance map finds the pixels of the text."""
    name, statement = f"{setting}-mfvi{recipe}", f"AUROC of the variance as a detector of the text's pixels at least {FOUND:g}"
    return _about_text(lab, name, f"Text is found, {SETTINGS[setting]}", statement, lambda n: n["AUROC"] >= FOUND)


def faint_ellipse_visible(lab: Lab, recipe: str = "") -> Claim:
    """A faint large ellipse is visible in the variance: the map along its edge against the flat pixels near it."""
    name = f"limited120-mfvi{recipe}"
    statement = f"variance along its edge at least {MULTIPLE:g} times that of the flat pixels near it, AUROC at least {FOUND:g}"
    numbers = _faint(lab, name)
    if numbers is None:
        return Claim("Faint ellipse in the variance", statement, (name,), missing=(name,))
    visible = numbers["edge / flat"] >= MULTIPLE and numbers["AUROC of the edge"] >= FOUND
    return Claim("Faint ellipse in the variance", statement, (name,), numbers, visible)


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
    *(partial(beats, setting=setting, rival=rival) for setting in ("sparse30", "limited120") for rival in RIVALS),
    dropout_is_like_dgd,
    dropout_beats_dgd,
    *(partial(gains_by_more_blocks, setting=setting) for setting in ("sparse30", "limited120")),
    deep_enough,
    reconstruction_phase,
    fine_tuning_phase,
    dropout_stays_low,
    shorter_arc,
    limited_view,
    *(partial(check, setting=setting) for setting in SETTINGS for check in (text_stands_out, text_is_found)),
    faint_ellipse_visible,
    more_detail_than_dropout,
)


def check_claims(lab: Lab) -> Iterator[Claim]:
    """Every claim with our recipe, each followed by the paper's where all of its models are there."""
    for claim in CLAIMS:
        yield claim(lab, recipe="")
        known = list(lab.missing)
        theirs = claim(lab, recipe=PAPERS)
        if theirs.missing:
            lab.missing[:] = known  # nobody asked for a model of the paper's recipe, so it is not missing
        else:
            yield theirs


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
    words, statement = f"Variance: {SETTINGS[harder]} above {SETTINGS[easier]}", (
        "mean variance over the same ellipse images, and the share of pixels above the lesser mean, are larger"
    )
    looks = [_look(lab, name, text=False) for name in names]
    if missing := tuple(name for name, look in zip(names, looks, strict=True) if look is None):
        return Claim(words, statement, names, missing=missing)
    found = [look for look in looks if look is not None]
    hard, easy = (spread(look) for look in found)
    wide, narrow = (share_above(look, easy) for look in found)
    numbers = {SETTINGS[harder]: hard, SETTINGS[easier]: easy, "ratio": hard / max(easy, 1e-30)}
    more = torch.stack([look.epistemic.double().mean((1, 2, 3)) for look in found])
    numbers |= {"images with more %": 100 * float((more[0] > more[1]).double().mean())}
    numbers |= {"area %": 100 * wide, "area of the other %": 100 * narrow}
    return Claim(words, statement, names, numbers, hard > easy and wide > narrow)


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
