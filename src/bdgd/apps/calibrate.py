"""`bdgd calibrate`: make a model's error bars hold, on images of their own, and say what that guarantees."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bdgd.apps.console import Output, Step
from bdgd.apps.options import Device, Seed, choose_device, require_writable
from bdgd.apps.presets import trained_by
from bdgd.apps.provenance import provenance
from bdgd.apps.training import make_scans
from bdgd.checks import InputError
from bdgd.data import KINDS, GaussianNoise, Noise, Scans, ellipse_images, named_generator, read_scans, simulate
from bdgd.data.folder import distinct_pictures
from bdgd.inference import calibrate as calibrated
from bdgd.inference.alarm import require_false_alarms
from bdgd.inference.calibrating import LEAST_IMAGES
from bdgd.models import Calibration, DeepGradientDescent, Reconstructor, load, save
from bdgd.operators import RayTransform
from bdgd.training import train_scale_head

#: Added to the seed for the scale head: another seed is another stream of random images, none of which trained the cascade.
OTHER_STREAM = 100_000
IMAGES, EPOCHS = 1000, 20
ANY = "the same kind of object"
SHOWN = (0.5, 0.68, 0.9, 0.95, 0.99)


def calibrate(
    out: Output,
    model: Annotated[str, typer.Argument(help="A shipped model by name, or a .safetensors file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The calibrated model's file.")] = Path("calibrated.safetensors"),
    images: Annotated[
        int | None, typer.Option("--images", min=20, help="Calibration images, 1000 unless given, which hold every level up to 99.5 %.")
    ] = None,
    scans: Annotated[
        Path | None, typer.Option("--scans", help="Calibrate on these scans with known images, not on simulated ones.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", help="Of the simulated scans, relative to their mean; that of the training unless given.")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Monte-Carlo draws; the calibration holds for this number.")] = 100,
    head: Annotated[int, typer.Option("--head", min=0, help="Fresh images to train a new scale head on first; 0 keeps what is there.")] = 0,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="With --head: its epochs, 20 unless given.")] = None,
    false_alarms: Annotated[float, typer.Option("--false-alarms", help="Share of ordinary scans on which the light may turn red.")] = 0.05,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Calibrate a model, so that a 90 % interval covers 90 %, and write it with its calibration.

    The scans are made as those that the model was trained on, from a stream of their own, which training, validation and test never see.
    """
    _require_used(images, noise, scans, head, epochs)
    require_false_alarms(false_alarms)
    where = choose_device(device)
    require_writable(output)
    network = load(model, device=where)
    law = None if noise is None else GaussianNoise(noise)
    if scans is not None:
        ours = read_scans(scans).corrected(network.correction)
        of = _objects(ours, scans)
    else:
        pictures = _pictures(network)
        of = ANY if pictures is None else f"these {pictures} pictures of the folder, turned and moved"
        ours = scans_like_training(network, "calibration", images or IMAGES, law, seed)
    if head:
        _train_head(out, network, law, head, epochs or EPOCHS, draws, seed)
    with out.progress("calibrating", len(ours)) as step:
        generator = named_generator("calibrating", seed)
        calibration = calibrated(network, ours, draws=draws, false_alarms=false_alarms, generator=generator, report=step)
    network = network.with_calibration(calibration)
    network.provenance = network.provenance | {"calibration": provenance(seed, where) | {"images": len(ours), "draws": draws}}
    save(network, output)
    _tell(out, calibration, ours, of, false_alarms, output)


def _require_used(images: int | None, noise: float | None, scans: Path | None, head: int, epochs: int | None) -> None:
    """Raise where an option would have no effect."""
    if epochs is not None and not head:
        raise InputError("--epochs are those of a new scale head; add --head, or leave --epochs out")
    for name, given in (("--images", images), ("--noise", noise)):
        if scans is not None and given is not None and not (head and name == "--noise"):
            raise InputError(f"{name} belongs to simulated scans, and --scans takes their place; leave one of them out")


def scans_like_training(model: Reconstructor, which: str, count: int, noise: Noise | None, seed: int, offset: int = 0) -> Scans:
    """Scans like those that the model was trained on, from the named stream with the seed `seed` + `offset`.

    A model that does not tell its preset gets ellipses; noise: instead of the preset's, or of 1 %.
    """
    A, seed = model.A, seed + offset
    preset = trained_by(model)
    if preset is not None and isinstance(A, RayTransform):
        changed: dict[str, Any] = {"seed": seed, "train": count, "validation": count} | ({} if noise is None else {"noise": noise})
        return make_scans(replace(preset, **changed), A, which)
    if not isinstance(A, RayTransform) or A.geometry.image_size[0] != A.geometry.image_size[1]:
        raise InputError("ellipses are drawn for square images of a ray transform; calibrate this model on scans of yours with --scans")
    images = ellipse_images(which, count, A.geometry.image_size[0], seed, device=A.device)
    return simulate(A, images, noise or GaussianNoise(0.01), generator=named_generator(f"{which} noise", seed))


def _pictures(model: Reconstructor) -> int | None:
    """How many pictures of a folder the calibration images are made of, once they are enough; None where each is a new phantom."""
    preset = trained_by(model)
    if preset is None or preset.phantoms in KINDS:
        return None
    count = distinct_pictures(preset.phantoms, "calibration", min(preset.geometry.image_size))
    if count < LEAST_IMAGES:
        raise InputError(
            f"the folder {preset.phantoms} has {count} different pictures for calibration, about one of ten, and {LEAST_IMAGES} are needed"
            " for a promise about such pictures; put more into it, or bring scans with known images by --scans"
        )
    return count


def _objects(scans: Scans, file: Path) -> str:
    """What scans of a file are of, in words, once they have enough known images."""
    if scans.images is None or len(scans) < LEAST_IMAGES:
        known = "without" if scans.images is None else "with"
        raise InputError(f"calibrating needs at least {LEAST_IMAGES} scans with known images; {file} has {len(scans)} {known} them")
    different = len({image.cpu().numpy().tobytes() for image in scans.images})
    return ANY if different == len(scans) else f"the same objects (different images: {different})"


def _set_of_head(model: Reconstructor) -> str:
    """Random phantoms are new with every seed; a folder has no other pictures than its own, and keeps some for the scale head."""
    preset = trained_by(model)
    return "train" if preset is None or preset.phantoms in KINDS else "head"


def _train_head(out: Output, network: Reconstructor, noise: Noise | None, count: int, epochs: int, draws: int, seed: int) -> None:
    """Train a scale head on fresh images, and say what it gains on others."""
    if not isinstance(network, DeepGradientDescent):
        raise InputError("--head needs a cascade; this model has no blocks, leave --head out")
    fresh = scans_like_training(network, _set_of_head(network), count, noise, seed, offset=OTHER_STREAM)
    held_out = scans_like_training(network, "validation", max(20, count // 10), noise, seed, offset=OTHER_STREAM)
    made = draws if network.random else 1
    with ExitStack() as bars:  # first the draws of its images, then its epochs
        drawing = bars.enter_context(out.progress("draws for the scale head", made * (len(fresh) + len(held_out))))
        training: Step | None = None

        def report(record: dict[str, Any]) -> None:
            nonlocal training
            if "drawn" in record:
                drawing(record["drawn"])
            elif "epoch" in record:
                if training is None:
                    bars.close()
                    training = bars.enter_context(out.progress("scale head", epochs))
                training(1, f"loss {record['loss']:.3f}")

        generator = named_generator("scale head", seed)
        history = train_scale_head(network, fresh, validation=held_out, draws=draws, epochs=epochs, generator=generator, report=report)
    record = history.stages[0]
    for name in ("object", "all"):
        nll, constant = record[f"validation_nll_{name}"], record[f"constant_nll_{name}"]
        pixels = "the object's pixels" if name == "object" else "all pixels"
        out.say(f"scale head, {pixels}: NLL {nll:.3f} against {constant:.3f} of the best constant sigma, {constant - nll:.3f} nats better")
    network.provenance = network.provenance | {"scale_head": {"images": count, "seed": seed, **record}}


def _tell(out: Output, calibration: Calibration, scans: Scans, of: str, false_alarms: float, output: Path) -> None:
    """What was found and what it is worth, in plain words; of: the objects that it holds for."""
    strata = len(calibration.std_edges) + 1
    shown = [level for level in SHOWN if calibration.levels and level <= calibration.levels[-1]]
    rows = []
    for level in shown:
        row = calibration.z[min(range(len(calibration.levels)), key=lambda i: abs(calibration.levels[i] - level))]
        rows.append([f"{level:.0%}", f"{min(row):.2f}", f"{max(row):.2f}"])
    columns = ("level", "least z", "largest z")
    out.table(columns, rows, f"z to which intervals reach, over {strata} strata of predicted standard deviation", right=columns)
    noise = ", ".join(f"{name} {value}" for name, value in calibration.noise.items()) if calibration.noise else "not stated"
    out.say(
        f"guaranteed: for a new scan of this kind (exchangeable with the {len(scans)} calibration scans: {of}, this"
        f" geometry, noise ({noise}), {calibration.draws} draws), on average over scans at most 10 % of the object's pixels lie"
        f" outside the 90 % interval, and so for every level up to {calibration.levels[-1]:.1%}"
        + (f"; at most {calibration.alarm.false_alarms:.0%} of such scans turn the light red" if calibration.alarm else "")
    )
    out.say(
        "not guaranteed: each single image, each kind of pixel (edges are checked, not promised),"
        f" {'objects of another kind' if of == ANY else 'any other object'}, another noise or geometry; the alarm is there for these"
    )
    if calibration.alarm is None:
        enough = 2 * math.ceil(1 / false_alarms - 1)
        out.note(f"there is no alarm: {len(scans)} scans are too few for a light that is red on {false_alarms:.0%}; {enough} are enough")
    out.say(f"wrote {output}")
