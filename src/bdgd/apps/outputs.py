"""What a reconstruction is written as, slice by slice: HDF5 with everything, TIFF and NIfTI with mean and standard deviation.

posterior.h5   mean, std, lower, upper, epistemic and aleatoric, each (slices, H, W) with the first image index x; provenance
mean.tif       one page per slice as it is seen on a screen: columns are x to the right, rows y downward from its largest value
mean.nii       first index x, second y, third the slice
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdgd.apps.nifti import nifti_stack
from bdgd.data import Scans
from bdgd.inference import Posterior
from bdgd.storage import PatientFile

#: every name that a result may have in its folder
NAMES = ("posterior.h5", "mean.tif", "std.tif", "mean.nii", "std.nii", "posterior.png", "report.html")

_VERSION = 1
_CLASSIC_TIFF = 2**32 - 2**20  # bytes; a longer file needs BigTIFF, which older programs do not read
_AXES = "slice, x, y; pixel [i, j] has its centre at x = (i - (H-1)/2) * pixel_size, y = (j - (W-1)/2) * pixel_size"


@dataclass(frozen=True)
class Grid:
    """Where the values are: slices of H x W pixels, and the unit of their size; values are per that unit."""

    slices: int
    image_size: tuple[int, int]
    pixel_size: float = 1.0
    slice_spacing: float | None = None
    unit: str | None = None

    @classmethod
    def of(cls, scans: Scans, slices: int) -> Grid:
        """The stack behind a file of that many slices, of which `scans` are some."""
        assert scans.geometry is not None
        unit = " ".join(scans.unit.split()) if scans.unit else None
        return cls(slices, scans.geometry.image_size, scans.geometry.pixel_size, scans.slice_spacing, unit)

    @property
    def value_unit(self) -> str:
        """The unit of an image value: 1/mm, or nothing where the unit of length is not known."""
        return f"1/{self.unit}" if self.unit else ""

    def with_unit(self, number: str) -> str:
        """An image value with its unit behind it."""
        return f"{number} {self.value_unit}".strip()

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance of neighbours along x, y and from slice to slice, where an unknown one is written as the pixel size."""
        return self.pixel_size, self.pixel_size, self.slice_spacing or self.pixel_size


@contextmanager
def posterior_files(
    folder: Path, grid: Grid, level: float, origin: dict[str, Any], *, nifti: bool = False
) -> Iterator[Callable[[Posterior], None]]:
    """The files of one scan in `folder`; call what is yielded with the posterior of every slice in turn."""
    with ExitStack() as files:
        keep = files.enter_context(hdf5_stack(folder / "posterior.h5", grid, level, origin))
        means = [files.enter_context(tiff_stack(folder / "mean.tif", grid))]
        stds = [files.enter_context(tiff_stack(folder / "std.tif", grid))]
        if nifti:
            shape, unit = (*grid.image_size, grid.slices), grid.unit
            for name, writers in (("mean", means), ("std", stds)):
                writers.append(files.enter_context(nifti_stack(folder / f"{name}.nii", shape, grid.spacing, unit, f"bdgd {name}")))

        def add(posterior: Posterior) -> None:
            keep(posterior)
            for images, writers in ((posterior.mean, means), (posterior.std, stds)):
                for write in writers:
                    write(images[0, 0])

        yield add


@contextmanager
def hdf5_stack(path: Path, grid: Grid, level: float, origin: dict[str, Any]) -> Iterator[Callable[[Posterior], None]]:
    """posterior.h5, one chunk with a checksum per slice and dataset."""
    import h5py

    shape, unit = (grid.slices, *grid.image_size), grid.value_unit
    units = {name: unit for name in ("mean", "std", "lower", "upper")} | {
        name: f"({unit})^2" if unit else "" for name in ("epistemic", "aleatoric")
    }
    with PatientFile(path, "x+") as raw:
        # Format 1.8, which every HDF5 since 2008 reads and whose attributes may be long.
        with h5py.File(raw, "w", libver=("v108", "v108")) as file:
            file.attrs.update(_attributes(grid, level, origin))
            stored = {name: file.create_dataset(name, shape, "f4", chunks=(1, *grid.image_size), fletcher32=True) for name in units}
            for name, dataset in stored.items():
                dataset.attrs.update({"unit": units[name], "axes": _AXES} | ({"level": level} if name in ("lower", "upper") else {}))
            slices = iter(range(grid.slices))

            def add(posterior: Posterior) -> None:
                index = next(slices)
                lower, upper = posterior.interval(level)
                variances = {"epistemic": posterior.epistemic, "aleatoric": posterior.aleatoric}
                for name, image in {"mean": posterior.mean, "std": posterior.std, "lower": lower, "upper": upper, **variances}.items():
                    stored[name][index] = image[0, 0].detach().to("cpu", torch.float32).numpy()
                raw.check()

            yield add
        raw.check()


def _attributes(grid: Grid, level: float, origin: dict[str, Any]) -> dict[str, Any]:
    """What HDF5 keeps at its root: plain values by name, and all of them once more as one JSON text."""
    plain = {key: value if isinstance(value, int | float) else _text(value) for key, value in origin.items() if value is not None}
    places = {"pixel_size": grid.pixel_size, "unit": grid.unit or "", "value_unit": grid.value_unit, "axes": _AXES}
    if grid.slice_spacing:
        places["slice_spacing"] = grid.slice_spacing
    return {"format_version": _VERSION, **plain, **places, "level": level, "provenance": json.dumps(origin)}


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)  # str: torch's version is of a kind that HDF5 does not know


@contextmanager
def tiff_stack(path: Path, grid: Grid) -> Iterator[Callable[[Tensor], None]]:
    """A float32 TIFF with the pixel size as its resolution and in ImageJ's words; pages follow each other without gaps, as ImageJ needs."""
    import tifffile

    wide, high = grid.image_size
    words = {"ImageJ": "1.54", "images": grid.slices, "slices": grid.slices, "spacing": grid.spacing[2], "unit": grid.unit}
    told = "".join(f"{key}={value}\n" for key, value in words.items() if value is not None)
    tags: dict[str, Any] = {
        "resolution": (1 / grid.pixel_size, 1 / grid.pixel_size),  # pixels per unit; which unit, the description says
        "resolutionunit": "NONE",
        "description": told.encode("ascii", "backslashreplace").decode(),
        "metadata": None,
        "photometric": "minisblack",
        "software": "bdgd",
    }
    with tifffile.TiffWriter(path, bigtiff=grid.slices * wide * high * 4 > _CLASSIC_TIFF) as file:

        def add(image: Tensor) -> None:
            page = image.detach().to("cpu", torch.float32).T.flip(0)  # (W, H): rows from the largest y downward
            try:
                file.write(page.contiguous().numpy(), contiguous=True, **tags)
            except OSError as error:
                if error.errno is None:  # NumPy, which wrote part of it, does not say why it stopped
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
                raise

        yield add
