"""Slices of patients as true images: a folder with Hounsfield units, brought to about [0, 1] without looking at the patient.

DICOM files (.dcm, also in folders below), each a slice of S x S pixels with its rescale slope, intercept and PatientID; or npz files:

hu     (n, S, S) or (S, S), in Hounsfield units, rows from top to bottom
meta   JSON: for each slice an object with "patient", or with "src", a path in which the patient is a folder such as A0001
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_count
from bdgd.data.formats.contents import named_errors

#: Attenuation of water in 1/mm, at the energies of a medical scanner.
WATER = 0.0192
#: Part of water's attenuation below which a pixel is air (-950 HU): around the patient there is scanner noise, and no object.
AIR = 0.05
_BRIGHT = 0.999  # of a slice's pixels are below what shall be about 1: all but metal and the densest bone
_PATIENT = re.compile(r"(?:\w+-)?[A-Z]+\d{3,}")


@dataclass(frozen=True, eq=False)
class Slices:
    """images (B, 1, size, size) in about [0, 1] and, for each, its patient and the attenuation in 1/mm that became 1 (B,)."""

    images: Tensor
    patients: tuple[str, ...]
    scale: Tensor


def read_slices(folder: str | Path, size: int = 128) -> Slices:
    """All slices of the folder: WATER * (1 + HU / 1000), binned to size x size pixels, cut off at 0, air set to 0, scaled.

    The attenuation that becomes 1 is a bright one, the median over the slices of all OTHER patients of their 99.9 % quantile: nothing
    about a patient is chosen on that patient.
    """
    size = require_count(size, "size")
    found = [pair for path in _files(folder) for pair in _slices_of(path, size)]
    patients = tuple(patient for patient, _ in found)
    if len(set(patients)) < 2:
        raise InputError(f"{folder} holds slices of one patient, {patients[0]}; at least two are needed, one is scaled by the others")
    attenuation = torch.stack([image for _, image in found])
    scale = torch.tensor(_scales(patients, [float(image.flatten().quantile(_BRIGHT)) for image in attenuation]))
    return Slices((attenuation / scale[:, None, None])[:, None], patients, scale)


def _scales(patients: Sequence[str], bright: Sequence[float]) -> list[float]:
    """For each slice the median brightness of the other patients' slices."""
    return [median(value for other, value in zip(patients, bright, strict=True) if other != patient) for patient in patients]


def _files(folder: str | Path) -> list[Path]:
    folder = Path(folder)
    files = [*sorted(folder.glob("*.npz")), *sorted(path for path in folder.rglob("*") if _is_dicom(path))] if folder.is_dir() else []
    if not files:
        raise InputError(
            f"there is no folder {folder} with DICOM files (.dcm) or npz files; each npz file must hold hu (n, S, S) in Hounsfield units"
            " and meta as JSON"
        )
    return files


def _is_dicom(path: Path) -> bool:
    return path.suffix.lower() == ".dcm"


def _slices_of(path: Path, size: int) -> list[tuple[str, Tensor]]:
    """The patient and the attenuation (size, size) in 1/mm of each slice in a file."""
    patients, pages = _read_dicom(path) if _is_dicom(path) else _read_npz(path)
    if pages.ndim != 3 or pages.dtype.kind not in "fiu" or pages.shape[1] != pages.shape[2] or not np.isfinite(pages).all():
        raise InputError(f"{path}: hu must be (n, S, S) of finite numbers, got {pages.dtype} {pages.shape}")
    if len(patients) != len(pages):
        raise InputError(f"{path}: meta must say for each of the {len(pages)} slices whose it is, got {len(patients)} entries")
    if pages.shape[1] % size:
        raise InputError(f"{path}: slices of {pages.shape[1]} pixels cannot be binned to {size}; choose a model whose size divides it")
    return [(patient, _attenuation(page, size)) for patient, page in zip(patients, pages, strict=True)]


def _read_dicom(path: Path) -> tuple[list[str], np.ndarray]:
    """The patient and the values (1, S, S) in Hounsfield units of a CT slice: stored value * slope + intercept."""
    try:
        import pydicom
    except ImportError:
        raise InputError(f'{path} is a DICOM file, which needs pydicom; install it with pip install "bdgd[dicom]"') from None
    with named_errors(path, "DICOM"):
        try:
            slice_ = pydicom.dcmread(path)
        except pydicom.errors.InvalidDicomError as error:
            raise ValueError(error) from None
        if slice_.get("Modality") != "CT" or slice_.get("RescaleSlope") is None or not slice_.get("PatientID"):
            raise InputError("this is no CT slice with a rescale slope and a patient; take CT images in Hounsfield units")
        values = slice_.pixel_array.astype(np.float32) * float(slice_.RescaleSlope) + float(slice_.get("RescaleIntercept", 0))
        return [str(slice_.PatientID)], values[None]


def _read_npz(path: Path) -> tuple[list[str], np.ndarray]:
    """The patients and the values (n, S, S) in Hounsfield units of an npz file."""
    with named_errors(path, "npz"), np.load(path, allow_pickle=False) as file:
        if missing := [name for name in ("hu", "meta") if name not in file]:
            raise InputError(f"there is no {missing[0]}; slices need hu (n, S, S) and meta, a JSON list with the patient of each")
        hu, meta = np.asarray(file["hu"]), json.loads(str(file["meta"]))
    about = meta if isinstance(meta, list) else [meta]
    return [_patient(entry, path) for entry in about], hu[None] if hu.ndim == 2 else hu


def _patient(entry: Any, path: Path) -> str:
    if isinstance(entry, dict):
        if entry.get("patient") is not None:
            return str(entry["patient"])
        for part in str(entry.get("src", "")).split("/"):
            if _PATIENT.fullmatch(part):
                return part
    raise InputError(f'{path}: meta does not say whose a slice is; add "patient" to each of its entries')


def _attenuation(page: np.ndarray, size: int) -> Tensor:
    """(size, size) in 1/mm, x to the right and y upward. Binned before it is cut off: the noise of air averages out first."""
    picture = torch.from_numpy(np.flip(page.astype(np.float32), 0).T.copy())
    relative = F.avg_pool2d(1 + picture[None, None] / 1000, picture.shape[0] // size)[0, 0]
    return WATER * torch.where(relative < AIR, 0.0, relative)
