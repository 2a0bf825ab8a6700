"""Slices of patients as true images: DICOM and npz files, their scale, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch

from bdgd.checks import InputError
from bdgd.data.slices import WATER, read_slices


def write_slices(path: Path, hu: np.ndarray, meta: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, hu=hu.astype(np.int16), meta=json.dumps(meta))
    return path


def test_slices_are_binned_turned_and_scaled_by_the_other_patients(tmp_path: Path) -> None:
    hu = np.full((3, 32, 32), -1000)
    hu[0, :4] = 0  # water at the top, four rows of two pixels
    hu[1, :4], hu[2, :4] = 1000, 3000
    write_slices(tmp_path / "a.npz", hu, [{"src": "x/A0001/1.dcm"}, {"src": "study-12345/Lung_Dx-B0002/2.dcm"}, {"patient": "third"}])
    slices = read_slices(tmp_path, 16)
    assert slices.patients == ("A0001", "Lung_Dx-B0002", "third")
    # the others' medians: of 2 and 4 times water, of 1 and 4, of 1 and 2
    torch.testing.assert_close(slices.scale, WATER * torch.tensor([3.0, 2.5, 1.5]), rtol=1e-5, atol=0)
    torch.testing.assert_close(slices.images.amax((1, 2, 3)), torch.tensor([1 / 3, 2 / 2.5, 4 / 1.5]), rtol=1e-5, atol=0)
    image = slices.images[0, 0]
    assert (image[:, -2:] > 0).all() and (image[:, :-2] == 0).all()  # the top is the largest y


def test_noisy_air_is_air(tmp_path: Path) -> None:
    hu = np.random.default_rng(0).normal(-1000, 20, (2, 32, 32))
    hu[:, 8:24, 8:24] = -850  # lung is not
    write_slices(tmp_path / "a.npz", hu, [{"patient": 1}, {"patient": 2}])
    images = read_slices(tmp_path, 16).images
    assert int((images > 0).sum()) == 2 * 8 * 8


@pytest.mark.parametrize(
    ("hu", "meta", "says"),
    [
        (np.zeros((2, 32, 32)), [{"patient": "a"}, {"patient": "a"}], "one patient, a"),
        (np.zeros((2, 32, 32)), [{"patient": "a"}], "got 1 entries"),
        (np.zeros((2, 32, 32)), [{"src": "x/y"}, {}], 'add "patient"'),
        (np.zeros((2, 32, 30)), [{"patient": "a"}, {"patient": "b"}], "must be"),
        (np.zeros((2, 24, 24)), [{"patient": "a"}, {"patient": "b"}], "cannot be binned to 16"),
    ],
)
def test_slices_that_cannot_be_used_are_refused(tmp_path: Path, hu: np.ndarray, meta: Any, says: str) -> None:
    write_slices(tmp_path / "a.npz", hu, meta)
    with pytest.raises(InputError, match=says):
        read_slices(tmp_path, 16)


def test_a_folder_without_slices_and_a_file_without_patients_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .* with DICOM files \(\.dcm\) or npz files"):
        read_slices(tmp_path, 16)
    np.savez(tmp_path / "a.npz", hu=np.zeros((1, 32, 32)))
    with pytest.raises(InputError, match=r"a\.npz: there is no meta"):
        read_slices(tmp_path, 16)
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a readable npz"):
        read_slices(tmp_path, 16)


def write_dicom(path: Path, stored: np.ndarray, **attributes: Any) -> Path:
    """A CT slice of uint16 whose Hounsfield units are 2 * stored - 1000, as a scanner would write it; `attributes` replace or add."""
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    made.SOPClassUID, made.SOPInstanceUID = pydicom.uid.CTImageStorage, "1.2.3"
    made.Modality, made.PatientID, made.RescaleSlope, made.RescaleIntercept = "CT", "somebody", 2, -1000
    made.Rows, made.Columns = stored.shape
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PixelRepresentation = 1, "MONOCHROME2", 0
    made.BitsAllocated = made.BitsStored = 16
    made.HighBit, made.PixelData = 15, stored.astype("<u2").tobytes()
    for name, value in attributes.items():
        setattr(made, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def test_dicom_slices_are_those_of_an_npz_file_with_the_same_values(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 1500, (2, 32, 32))
    write_slices(tmp_path / "npz" / "a.npz", 2 * stored - 1000, [{"patient": "one"}, {"patient": "two"}])
    for patient, name, values in zip(("one", "two"), ("0001.dcm", "0001.DCM"), stored, strict=True):
        write_dicom(tmp_path / "dicom" / patient / name, values, PatientID=patient)
    expected, found = read_slices(tmp_path / "npz", 16), read_slices(tmp_path / "dicom", 16)
    assert found.patients == expected.patients == ("one", "two")
    torch.testing.assert_close(found.images, expected.images)


@pytest.mark.parametrize("attributes", [{"Modality": "MR"}, {"PatientID": ""}, {"RescaleSlope": None}])
def test_dicom_files_without_hounsfield_units_or_patient_are_refused(tmp_path: Path, attributes: dict[str, Any]) -> None:
    write_dicom(tmp_path / "a.dcm", np.zeros((32, 32)), **attributes)
    with pytest.raises(InputError, match=r"a\.dcm: this is no CT slice"):
        read_slices(tmp_path, 16)


def test_damaged_dicom_files_and_a_missing_library_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dicom(tmp_path / "a.dcm", np.zeros((32, 32)), PixelData=b"cut")
    with pytest.raises(InputError, match=r"a\.dcm is not a readable DICOM file"):
        read_slices(tmp_path, 16)
    (tmp_path / "a.dcm").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"a\.dcm is not a readable DICOM file"):
        read_slices(tmp_path, 16)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(InputError, match=r'pip install "bdgd\[dicom\]"'):
        read_slices(tmp_path, 16)


def test_the_shared_slices_are_twelve_patients_in_about_0_to_1(shared_data: Path) -> None:
    slices = read_slices(shared_data / "slices", 128)
    assert slices.images.shape == (46, 1, 128, 128) and len(set(slices.patients)) == 12
    assert float(slices.images.min()) == 0 and 0.9 < float(slices.images.flatten(1).quantile(0.999, dim=1).median()) < 1.1
