"""The measured scans of the Helsinki Tomography Challenge 2022, in a folder as it was downloaded, and what is asked of them.

19 discs of acrylic with holes cut into them, each scanned all around in fan beam (Meaney, Silva de Moura, Siltanen, doi
10.5281/zenodo.8041800, CC BY 4.0): `solid_disc` and ta to td for training, 01a to 07b for seven levels of difficulty. A scan is read
from the organisers' `htc2022_NAME_full.mat`, with their segmentation in `htc2022_NAME_full_recon_fbp_seg.mat` beside it, or from
a compact `NAME.npz` (`sino`, `geo`, `seg512`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError
from bdgd.data import Scans, match, read_scans
from bdgd.data.formats.contents import named_errors
from bdgd.data.formats.matlab import read_matrix
from bdgd.evaluation.segmentation import filled_disc, inside_of
from bdgd.operators import FanBeam

TRAINING = ("solid_disc", "ta", "tb", "tc", "td")
#: Where the challenge's arc of a scan starts and how long it is, in degrees; the training scans have none and start at 0.
ARCS: dict[str, tuple[int, int]] = {
    **{"01a": (0, 90), "01b": (0, 90), "02a": (90, 80), "02b": (90, 80), "03a": (50, 70), "03b": (40, 70), "04a": (50, 60)},
    **{"04b": (10, 60), "05a": (50, 50), "05b": (35, 50), "06a": (0, 40), "06b": (90, 40), "07a": (75, 30), "07b": (0, 30)},
}
NAMES = (*TRAINING, *ARCS)
_VIEWS = 360
_SIDE = 512  # pixels of a segmentation


def group_of(scan: str) -> str:
    """What was made alike: the training scans, or the two discs of a level. Nothing is chosen for a scan on scans of its own group."""
    return scan[:2] if scan in ARCS else "training"


def scanner() -> FanBeam:
    """The challenge's scanner as it is used here, in millimetres: a view per degree, pairs of detectors, 256 x 256 pixels."""
    source_to_axis, source_to_detector, spacing = 410.66, 553.74, 0.4
    return FanBeam(
        image_size=(256, 256),
        angles=tuple(np.deg2rad(np.arange(_VIEWS)).tolist()),
        detectors=280,
        detector_spacing=spacing,
        pixel_size=spacing * source_to_axis / source_to_detector,
        source_to_axis=source_to_axis,
        source_to_detector=source_to_detector,
    )


@dataclass(frozen=True, eq=False)
class MeasuredScan:
    """One disc, measured all around: sinogram (1, 1, 360, 280), and the organisers' segmentation (512, 512), true for acrylic."""

    name: str
    scans: Scans
    segmentation: Tensor

    @cached_property
    def inside(self) -> Tensor:
        """(512, 512) true inside the disc, where only holes tell one image from another."""
        return inside_of(filled_disc(self.segmentation))

    def seen(self, views: Sequence[int]) -> Scans:
        """Only those views of the scan."""
        geometry = self.scans.geometry
        assert geometry is not None
        return replace(self.scans, sinograms=self.scans.sinograms[:, :, list(views)].contiguous(), geometry=geometry[list(views)])


@dataclass(frozen=True)
class ViewCondition:
    """How much of a scan is used: some views all around, or an arc with a view per degree. `model` begins the name of its models."""

    name: str
    title: str
    model: str
    views: int | None = None
    degrees: int | None = None
    own: tuple[str, ...] = ()  # the scans for which the challenge asks just this

    def start(self, scan: str) -> int:
        """The number of the view where the scan's arc starts; 0 where views are taken all around."""
        return 0 if self.degrees is None else ARCS.get(scan, (0, 0))[0]

    def rotation(self, scan: str) -> float:
        """By how many radians, counter-clockwise with y upward, an image of views `counted_from_start` must be turned to lie as it did."""
        return math.radians(self.start(scan))

    @property
    def upright(self) -> float:
        """The start in radians of an arc whose middle is at 90 degrees; 0 where views are taken all around.

        TV depends on how the arc lies: over 60 degrees, on 128 x 128 pixels, with two weights, the mean MCC inside of nine discs is 0.74
        and 0.75 there, 0.68 and 0.72 where each arc was measured, 0.65 and 0.71 where it starts at 0, 0.58 and 0.70 where at 15 degrees.
        """
        return 0.0 if self.degrees is None else math.radians(90 - self.degrees / 2)

    def used(self, scan: str) -> list[int]:
        """The numbers of the views: every n-th from 0, or from the start of the scan's arc to its end, both included."""
        return [(self.start(scan) + k) % _VIEWS for k in self._from_start()]

    def left_out(self, scan: str) -> list[int]:
        """The views from which the reference is made and which are to be predicted: the 1st, 3rd, ... after the start that are not used."""
        return [(self.start(scan) + k) % _VIEWS for k in sorted(set(range(1, _VIEWS, 2)) - set(self._from_start()))]

    def _from_start(self) -> range:
        if self.views is not None:
            return range(0, _VIEWS, _VIEWS // self.views)
        assert self.degrees is not None
        return range(self.degrees + 1)

    def counted_from_start(self, scans: Sequence[MeasuredScan], views: Callable[[str], Sequence[int]], at: float = 0.0) -> Scans:
        """Those views of all scans as one batch, in the geometry that they have when each arc starts `at` that many radians.

        A scan whose arc starts elsewhere is the same scanner with the object turned: its image must be turned by `rotation` minus `at`.
        """
        geometry, correction, name = scans[0].scans.geometry, scans[0].scans.correction, scans[0].name
        assert geometry is not None
        if any(scan.scans.geometry != geometry or scan.scans.correction != correction for scan in scans):
            raise InputError("scans can be taken together only from one scanner and with one correction; take them one by one")
        first = geometry[[(view - self.start(name)) % _VIEWS for view in views(name)]]
        parts = [scan.seen(views(scan.name)) for scan in scans]
        return replace(
            parts[0],
            sinograms=torch.cat([part.sinograms for part in parts]),
            geometry=replace(first, angles=tuple(angle + at for angle in first.angles)),
        )


CONDITIONS = {
    condition.name: condition
    for condition in (
        ViewCondition("views60", "60 of 360 views", "htc60views", views=60),
        ViewCondition("views30", "30 of 360 views", "htc30views", views=30),
        ViewCondition("arc90", "an arc of 90 degrees", "htc-arc90", degrees=90, own=("01a", "01b")),
        ViewCondition("arc60", "an arc of 60 degrees", "htc-arc60", degrees=60, own=("04a", "04b")),
        ViewCondition("arc30", "an arc of 30 degrees", "htc-arc30", degrees=30, own=("07a", "07b")),
    )
}


def find_scans(folder: Path) -> dict[str, Path]:
    """The challenge's scans in a folder and the folders inside it, by name, in the order of `NAMES`; a `.mat` goes before an `.npz`."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give the folder of the challenge's scans (doi 10.5281/zenodo.8041800)")
    found = {path.stem: path for path in sorted(folder.rglob("*.npz"))}
    found |= {path.name.removeprefix("htc2022_").removesuffix("_full.mat"): path for path in sorted(folder.rglob("htc2022_*_full.mat"))}
    if not (scans := {name: found[name] for name in NAMES if name in found}):
        raise InputError(
            f"{folder} holds no scan of the Helsinki Tomography Challenge 2022 (htc2022_ta_full.mat, ..., or ta.npz, ...);"
            " download them from doi 10.5281/zenodo.8041800"
        )
    return scans


def read_measured(name: str, path: Path) -> MeasuredScan:
    """A scan on the `scanner`'s views and detectors, with its segmentation."""
    scans, _ = match(read_scans(path), scanner())
    matlab = path.suffix == ".mat"
    segmentation = read_matrix(_segmentation_file(path), "reconFullFbpSeg") if matlab else _packed_segmentation(path)
    if segmentation.shape != (_SIDE, _SIDE):
        raise InputError(f"{path}: the segmentation must have {_SIDE} x {_SIDE} pixels, got {segmentation.shape}")
    # The organisers' rows go down and their columns to the right; here the first index goes to the right and the second up.
    upright = np.rot90(segmentation != 0, -1).copy()
    return MeasuredScan(name, scans, torch.from_numpy(upright))


def _segmentation_file(path: Path) -> Path:
    stem = path.name.removesuffix(".mat")
    for name in (f"{stem}_recon_fbp_seg.mat", f"{stem.removesuffix('_full')}_recon_fbp_seg.mat"):
        if path.with_name(name).is_file():
            return path.with_name(name)
    raise InputError(f"{path} needs the organisers' segmentation {stem}_recon_fbp_seg.mat beside it; download it too")


def _packed_segmentation(path: Path) -> np.ndarray:
    with named_errors(path, "npz"), np.load(path, allow_pickle=False) as file:
        if "seg512" not in file.files:
            raise InputError("it has no segmentation (the key seg512); take the organisers' .mat files instead")
        packed = file["seg512"]
        if packed.dtype != np.uint8 or packed.size != _SIDE * _SIDE // 8:
            raise InputError(f"seg512 must be {_SIDE * _SIDE // 8} bytes of packed bits, got {packed.size} of {packed.dtype}")
        bits: np.ndarray = np.unpackbits(packed).reshape(_SIDE, _SIDE)
    return bits
