"""`bdgd simulate`: scans of phantoms, as a file to try everything else on."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from bdgd.apps.console import Output
from bdgd.apps.options import Device, Seed, choose_device, require_writable
from bdgd.apps.provenance import provenance
from bdgd.checks import InputError, require_count
from bdgd.data import (
    Correction,
    GaussianNoise,
    Mismatch,
    PoissonNoise,
    Scans,
    estimate_noise,
    named_generator,
    phantom_images,
    random_ellipses,
    rasterise,
    shepp_logan_ellipses,
    with_text,
    write_scans,
)
from bdgd.data import simulate as simulate_scans
from bdgd.data.estimates import three_digits
from bdgd.data.formats import require_hdf5_name
from bdgd.data.kinds import within_field
from bdgd.data.scanner import Scanner, read_scanner
from bdgd.models.scales import value_scale
from bdgd.operators import Geometry, ParallelBeam, RayTransform


class Phantom(StrEnum):
    ellipses = "ellipses"
    discs_with_holes = "discs-with-holes"
    shepp_logan = "shepp-logan"
    text = "text"


Destination = Annotated[Path, typer.Option("--output", "-o", help="The HDF5 file to write.")]
PhantomName = Annotated[Phantom, typer.Option("--phantom", help="Random ellipses, discs with holes, Shepp-Logan, or that with a text.")]
Text = Annotated[str | None, typer.Option("--text", help="The text of --phantom text; ICPR 2020 unless given.")]
Count = Annotated[int, typer.Option("--count", help="How many scans.")]
Size = Annotated[int | None, typer.Option("--size", help="Pixels along a side of the image; 128 unless given.")]
Views = Annotated[int | None, typer.Option("--views", help="Parallel beam, so many views over the half circle; 30 unless given.")]
Degrees = Annotated[int | None, typer.Option("--degrees", help="Parallel beam, one view per degree over an arc of so many degrees.")]
GeometryFile = Annotated[
    Path | None,
    typer.Option("--geometry", help="Any scanner: a scan file, whose values and noise are used too, or a geometry as TOML or JSON."),
]
Noise = Annotated[float | None, typer.Option("--noise", help="Normal noise, relative to the sinogram's mean; 0: none; 0.01 unless given.")]
Photons = Annotated[float | None, typer.Option("--photons", help="Photon-counting noise, so many photons in a ray that meets nothing.")]
Attenuation = Annotated[
    float | None, typer.Option("--attenuation", help="With --photons: of value 1 per length; 2.5 / side of the image unless given.")
]
Hardening = Annotated[
    float | None, typer.Option("--hardening", metavar="B", help="The beam hardens: p is measured with p + B p^2 the line integral.")
]


def simulate(
    out: Output,
    output: Destination,
    phantom: PhantomName = Phantom.ellipses,
    text: Text = None,
    count: Count = 1,
    size: Size = None,
    views: Views = None,
    degrees: Degrees = None,
    geometry: GeometryFile = None,
    noise: Noise = None,
    photons: Photons = None,
    attenuation: Attenuation = None,
    hardening: Hardening = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Simulate scans of phantoms and write them to an HDF5 file.

    Example: bdgd simulate -o scan.h5 --phantom shepp-logan --views 30
    """
    where = choose_device(device)
    if text is not None and phantom != Phantom.text:
        raise InputError("--text belongs to --phantom text; add that, or leave --text out")
    scanner = _scanner(size, views, degrees, geometry)
    for note in scanner.notes:
        out.note(f"{scanner.name}: {note}")
    disturbance = _noise(noise, photons, attenuation, scanner)
    require_count(count, "--count")
    beam = None if hardening is None else Correction(hardening=hardening)
    require_hdf5_name(output)
    require_writable(output)
    A = RayTransform(scanner.geometry, where)
    images = _phantoms(phantom, "ICPR 2020" if text is None else text, count, scanner.geometry, seed)
    if scanner.scan is not None:
        images = images * three_digits(value_scale(scanner.scan.corrected(beam), phantom == Phantom.discs_with_holes))
    mismatch = None if beam is None else Mismatch(beam=(beam.hardening, beam.hardening))
    scans = simulate_scans(A, images, disturbance, generator=named_generator("simulate noise", seed), mismatch=mismatch)
    scans = replace(scans, unit=scanner.unit)
    write_scans(output, scans, provenance=provenance(seed, where))
    _summary(out, output, scans, A)


def _scanner(size: int | None, views: int | None, degrees: int | None, file: Path | None) -> Scanner:
    _at_most_one("--views", views, "--degrees", degrees, "--geometry", file)
    if file is not None:
        if size is not None:
            raise InputError("--size and --geometry exclude each other: the file says how large the image is")
        return read_scanner(file)
    pixels = 128 if size is None else require_count(size, "--size")
    if degrees is not None:
        return Scanner("", ParallelBeam.limited(image_size=pixels, degrees=require_count(degrees, "--degrees")))
    return Scanner("", ParallelBeam.sparse(image_size=pixels, views=30 if views is None else require_count(views, "--views")))


def _noise(
    relative: float | None, photons: float | None, attenuation: float | None, scanner: Scanner
) -> GaussianNoise | PoissonNoise | None:
    _at_most_one("--noise", relative, "--photons", photons)
    if photons is not None:
        if attenuation is None:  # line integrals of a scan are what they are; a side of value 1 lets one photon in twelve through
            geometry = scanner.geometry
            attenuation = 1.0 if scanner.scan is not None else 2.5 / (max(geometry.image_size) * geometry.pixel_size)
        return PoissonNoise(photons, attenuation)
    if attenuation is not None:
        raise InputError("--attenuation belongs to --photons; add the number of photons, or leave it out")
    if relative is None and scanner.scan is not None:
        return estimate_noise(scanner.scan.sinograms)
    return None if relative == 0 else GaussianNoise(0.01 if relative is None else relative)


def _at_most_one(*pairs: object) -> None:
    """Raise if more than one option of (name, value, name, value, ...) was given."""
    given = [name for name, value in zip(pairs[::2], pairs[1::2], strict=True) if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(map(str, given))} exclude each other; give one of them")


def _phantoms(phantom: Phantom, text: str, count: int, geometry: Geometry, seed: int) -> Tensor:
    """(count, 1, H, W); ellipses from a stream of their own, so that no image of the named sets is among them; discs of the set "test".

    Random phantoms lie where every view sees them, as in training.
    """
    size = geometry.image_size
    if phantom == Phantom.discs_with_holes:
        return phantom_images(phantom.value, "test", count, geometry, seed)
    if phantom == Phantom.ellipses:
        return within_field(random_ellipses(count, size, generator=named_generator("simulate ellipses", seed)), geometry)
    image = rasterise(shepp_logan_ellipses(), size)
    return (with_text(image, text) if phantom == Phantom.text else image).repeat(count, 1, 1, 1)


def _summary(out: Output, path: Path, scans: Scans, A: RayTransform) -> None:
    y, noise = scans.sinograms, scans.noise
    beam = type(A.geometry).__name__
    rows = [
        ("scans", str(len(scans))),
        ("image", f"{A.domain_shape[1]} x {A.domain_shape[2]} pixels of size {A.geometry.pixel_size:g}"),
        ("geometry", f"{beam}, {A.geometry.views} views x {A.geometry.detectors} detectors of {A.geometry.detector_spacing:.5g}"),
        ("noise", "none" if noise is None else ", ".join(f"{key} {value}" for key, value in noise.to_dict().items() if key != "kind")),
        ("sinogram", f"from {float(y.min()):.4g} to {float(y.max()):.4g}, mean {float(y.mean()):.4g}"),
    ]
    out.table(("", ""), rows)
    out.say(f"wrote {path} ({path.stat().st_size / 1e6:.2g} MB)")
