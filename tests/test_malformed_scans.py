"""Scan files that are broken or hostile, in every format: one sentence and exit code 2, no room made for what they claim, nothing run."""

from __future__ import annotations

import io
import json
import os
import resource
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import scipy.io
import tifffile
from typer.testing import CliRunner

from bdgd.apps import cli
from bdgd.checks import InputError
from bdgd.data import open_stack, read_scans
from bdgd.operators import FanBeam, ParallelBeam

GEOMETRY = ParallelBeam(image_size=6, angles=[0.1, 0.7, 2.0], detectors=11)
Y = np.random.default_rng(0).random((2, 3, 11), dtype=np.float32)
TEN_GIGABYTES = (10**9, 3, 1)  # float32: 12 GB
MOST_MEMORY = 24e6  # bytes that an answer may cost: the largest file here unpacks to a hundred times that, or more


class Case(NamedTuple):
    file: str
    write: Callable[[Path], Any]
    message: str


# --- hdf5 ----------------------------------------------------------------------------------------------------------------


def hdf5(change: Callable[[h5py.File], Any], **values: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.attrs.update(GEOMETRY.to_dict() | values)
            file["sinogram"] = Y
            change(file)

    return write


def without(name: str, then: Callable[[h5py.File], Any]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        then(file)

    return change


def packed_zeros(file: h5py.File) -> None:
    """A chunk of ten million zeros in ten kilobytes, written once and claimed by every slice."""
    dataset = file.create_dataset("sinogram", (1, 3, 10**7), "f4", chunks=(1, 3, 10**7), compression="gzip")
    dataset.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(10**6), 9))


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((2, 3, 11), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "sinogram", (2, 3, 11))
    file.create_virtual_dataset("sinogram", layout)


def external(file: h5py.File) -> None:
    file.create_dataset("sinogram", (2, 3, 11), "f4", external=[("/etc/hostname", 0, 264)])


HDF5 = [
    Case("none.h5", lambda path: None, "there is no file"),
    Case("folder.h5", Path.mkdir, "is a folder"),
    Case("empty.h5", Path.touch, "not a readable HDF5"),
    Case("magic.h5", lambda path: path.write_bytes(b"GIF89a" * 50), "not a readable HDF5"),
    Case("suffix.xyz", lambda path: path.write_bytes(b"x" * 100), "known are .h5, .hdf5"),
    Case("pipe.h5", os.mkfifo, "no regular file"),
    Case("both.h5", hdf5(lambda f: f.create_dataset("counts", data=Y)), "both sinogram and counts"),
    Case("flatless.h5", hdf5(lambda f: f.move("sinogram", "counts")), "counts need 'flat'"),
    Case("claims.h5", hdf5(without("sinogram", lambda f: f.create_dataset("sinogram", (10**9, 3, 11), "f4"))), "does not hold all"),
    Case("packed.h5", hdf5(without("sinogram", packed_zeros), detectors=10**7), "more than the 250-fold"),
    Case("link.h5", hdf5(without("sinogram", lambda f: f.__setitem__("sinogram", h5py.ExternalLink("/etc/hostname", "/x")))), "is a link"),
    Case("soft.h5", hdf5(without("sinogram", lambda f: f.__setitem__("sinogram", h5py.SoftLink("/x")))), "is a link"),
    Case("virtual.h5", hdf5(without("sinogram", virtual)), "in another file"),
    Case("external.h5", hdf5(without("sinogram", external)), "in another file"),
    Case("angles.h5", hdf5(lambda f: f.attrs.__setitem__("angles", [0.1, np.nan, 2.0])), "1 of the 3 are NaN"),
    Case("pixels.h5", hdf5(lambda f: f.attrs.__setitem__("image_size", 10**9)), "pixels; check that it is given in pixels"),
    Case("unit.h5", hdf5(lambda f: f.attrs.__setitem__("unit", "furlong")), "unit must be one of"),
    Case("spacing.h5", hdf5(lambda f: f.attrs.__setitem__("slice_spacing", -1.0)), "slice_spacing must be above 0"),
    Case("twice.h5", hdf5(lambda f: f.attrs.__setitem__("angles_degrees", [1.0, 2.0, 3.0])), "exclude each other"),
]

# --- npz -----------------------------------------------------------------------------------------------------------------


class Runs:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["BDGD_TEST_MARK"],)


def npz(**changes: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        values = {"sinogram": Y, **GEOMETRY.to_dict(), **changes}
        np.savez(path, allow_pickle=True, **{name: value for name, value in values.items() if value is not None})

    return write


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npz_with(
    name: str, content: Callable[[], bytes], change: Callable[[zipfile.ZipInfo], Any] = lambda info: None
) -> Callable[[Path], None]:
    """An npz whose entry `name` is written by hand."""

    def write(path: Path) -> None:
        npz(**{name: None})(path)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name + ".npy", content())
            change(archive.infolist()[-1])

    return write


def truncated(write: Callable[[Path], Any], keep: float) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        write(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(keep * len(whole))])

    return cut


def flipped_byte(path: Path) -> None:
    np.savez(path, sinogram=Y, **GEOMETRY.to_dict())
    whole = path.read_bytes()
    path.write_bytes(whole.replace(Y.tobytes(), Y.tobytes()[:-4] + b"\1\2\3\4"))


NPZ = [
    Case("empty.npz", Path.touch, "not a readable npz"),
    Case("magic.npz", lambda path: path.write_bytes(b"not a zip" * 30), "not a readable npz"),
    Case("cut.npz", truncated(npz(), 0.6), "not a readable npz"),
    Case("damaged.npz", flipped_byte, "CRC"),
    Case("key.npz", npz(sinogram=None, sinogramm=Y), "unknown key 'sinogramm'"),
    Case("keyless.npz", npz(sinogram=None), "needs the key 'sinogram'"),
    Case("beamless.npz", npz(beam=None), "beam = 'parallel' or 'fan'"),
    Case("text.npz", npz(sinogram=np.full((2, 3, 11), "high")), "must hold real numbers"),
    Case("word.npz", npz(pixel_size="wide"), "pixel_size must be a number"),
    Case("nan.npz", npz(sinogram=np.full((2, 3, 11), np.nan)), "must be finite"),
    Case("transposed.npz", npz(sinogram=Y[0].T), r"got \(1, 11, 3\); put its axes into this order"),
    Case("views_first.npz", npz(sinogram=Y.transpose(1, 0, 2)), r"got \(3, 2, 11\); put its axes into this order"),
    Case("channel.npz", npz(sinogram=Y[:, None]), r"got \(2, 1, 3, 11\); leave out the axis of length 1"),
    Case("short.npz", npz(sinogram=Y[..., :10]), r"got \(2, 3, 10\); correct one of them"),
    Case("array.npy", lambda path: np.save(path, Y), r"a suffix that no scan file has; .* np.savez\('scan.npz', sinogram=array"),
    Case("zero.npz", npz(sinogram=np.zeros((0, 3, 11))), "holds no slice"),
    Case("complex.npz", npz(sinogram=Y.astype(complex)), "must hold real numbers, got complex128"),
    Case("objects.npz", npz(sinogram=np.array([[[Runs()]]], dtype=object)), r"got \(1, 1, 1\)|holds Python objects"),
    Case("pickle.npz", npz(sinogram=np.full((2, 3, 11), Runs(), dtype=object)), "holds Python objects"),
    Case("pickled.npz", npz(angles=np.array([Runs()], dtype=object)), "numbers or text, got object"),
    Case("structured.npz", npz(sinogram=np.zeros((2, 3, 11), dtype=[("a", "f4")])), "must hold real numbers"),
    Case("claims.npz", npz_with("sinogram", lambda: header((10**9, 3, 11)) + bytes(100)), "does not hold all"),
    Case("bomb.npz", npz_with("sinogram", lambda: header((10**6, 3, 11)) + bytes(132 * 10**6)), "more than the 250-fold"),
    Case("attribute.npz", npz_with("angles", lambda: header((10**8,), "<f8") + bytes(10)), "an attribute has at most 8 MB"),
    Case("header.npz", npz_with("sinogram", lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 10**7), "not a readable npz"),
    Case("negative.npz", npz_with("sinogram", lambda: header((-2, 3, 11))), "declares the shape|not a readable"),
    Case("code.npz", npz_with("sinogram", lambda: b"\x93NUMPY\x01\x00\x20\x00__import__('os').mkdir('mark')  \n"), "not a readable npz"),
    Case("member.npz", lambda path: zipfile.ZipFile(path, "w").writestr("../../evil.sh", "rm"), "is no array"),
    Case("json.npz", npz(**dict.fromkeys(GEOMETRY.to_dict()), geometry="{'beam'"), "must be a JSON object"),
    Case("deep.npz", npz(**dict.fromkeys(GEOMETRY.to_dict()), geometry="[" * 10**5), "JSON|recursion"),
    Case("given_twice.npz", npz(geometry=GEOMETRY.to_json()), "given twice"),
    Case("geo.npz", npz(geo=json.dumps({"type": "fan-flat"})), "geo needs 'angles_deg'"),
]

# --- mat -----------------------------------------------------------------------------------------------------------------

PARAMETERS = {
    **{"distanceSourceOrigin": 410.66, "distanceSourceDetector": 553.74, "distanceUnit": "mm"},
    **{"pixelSizePost": 0.2, "numDetectorsPost": np.uint16(11), "angles": np.array([0.0, 0.5, 1.0])},
}


def mat(compress: bool = True, parameters: Any = None, **changes: Any) -> Callable[[Path], None]:
    data = {"type": "2d", "sinogram": Y[0].astype(float), "parameters": PARAMETERS | (parameters or {})} | changes
    return lambda path: scipy.io.savemat(path, {"CtDataFull": data}, do_compression=compress)


def mat_bomb(path: Path) -> None:
    """A packed variable of 200 MB in 200 kB."""
    mat()(path)
    packed = zlib.compress(struct.pack("<II", 14, 2 * 10**8) + bytes(2 * 10**8), 9)
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 15, len(packed)) + packed)


def mat_hdf5(path: Path) -> None:
    """As MATLAB's -v7.3 writes it: HDF5 behind 512 bytes with its own header, and an object behind a reference."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["#refs#/a"] = 1.0
        file.create_dataset("CtDataFull", (1,), h5py.ref_dtype)[0] = file["#refs#/a"].ref
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + struct.pack("<HH", 0x0200, 0x4D49))


def mat_claims(old: bytes, new: bytes) -> Callable[[Path], None]:
    """An unpacked file in which one field declares other sides than it holds."""

    def write(path: Path) -> None:
        mat(compress=False)(path)
        data = path.read_bytes()
        assert data.count(old) >= 1
        path.write_bytes(data.replace(old, new))

    return write


def mat_class(number: int) -> Callable[[Path], None]:
    """The struct's `type` field relabelled as another class: 16 is a function handle, 3 and 17 are objects."""
    flags = struct.pack("<IIII", 6, 8, 4, 0)
    return mat_claims(flags, struct.pack("<IIII", 6, 8, number, 0))


SIDES = struct.pack("<IIii", 5, 8, 3, 11)
MAT = [
    Case("empty.mat", Path.touch, "no .mat file of version 5"),
    Case("magic.mat", lambda path: path.write_bytes(b"no matlab" * 50), "no .mat file of version 5"),
    Case("new.mat", lambda path: path.write_bytes(b"MATLAB 7.3 MAT-file" + b" " * 200), "save it in MATLAB with the option '-v7'"),
    Case("cut.mat", truncated(mat(), 0.7), "not a readable MATLAB"),
    Case("cut_unpacked.mat", truncated(mat(compress=False), 0.7), "not a readable MATLAB"),
    Case("other.mat", lambda path: scipy.io.savemat(path, {"reconFullFbpSeg": np.eye(4)}), "holds reconFullFbpSeg"),
    Case("numbers.mat", lambda path: scipy.io.savemat(path, {"CtDataFull": np.eye(4)}), "a struct with sinogram"),
    Case("hdf5.mat", mat_hdf5, "a version 7.3 file; save it in MATLAB with the option '-v7'"),
    Case("nested.mat", mat(sinogram={"a": {"b": np.eye(3)}}), "CtDataFull must be a struct with sinogram"),
    Case("nested_angles.mat", mat(parameters={"angles": {"deep": {"deeper": 1.0}}}), "angles"),
    Case(
        "cells.mat", lambda path: scipy.io.savemat(path, {"CtDataFull": np.array([[np.eye(2), {"q": 1.0}]], dtype=object)}), "a cell array"
    ),
    Case("cell.mat", mat(parameters={"angles": np.array([1, "a", "b"], dtype=object)}), "a cell array"),
    Case("structs.mat", mat(parameters=None, type=np.zeros((2, 2), dtype=[("a", "O")])), "a struct array"),
    Case("deep.mat", mat(type={"a": {"b": {"c": {"d": {"e": 1.0}}}}}), "nested too deep"),
    Case("function.mat", mat_class(16), "a function handle"),
    Case("object.mat", mat_class(3), "an object"),
    Case("opaque.mat", mat_class(17), "an object"),
    Case("complex.mat", mat(sinogram=Y[0].astype(complex) * 1j), "complex numbers"),
    Case("claims.mat", mat_claims(SIDES, struct.pack("<IIii", 5, 8, 10**9, 3)), "declares 3000000000 values"),
    Case("bomb.mat", mat_bomb, "a variable unpacks to more than"),
    Case("text.mat", mat(sinogram="high"), "a struct with sinogram"),
    Case("words.mat", mat(parameters={"pixelSizePost": "wide"}), "pixelSizePost must be a number"),
    Case("views.mat", mat(parameters={"angles": np.arange(4.0)}), "4 angles for a sinogram of 3 views"),
    Case("nan.mat", mat(parameters={"angles": np.array([0.0, np.nan, 1.0])}), "angles must be finite"),
    Case("detectors.mat", mat(parameters={"numDetectorsPost": np.uint16(12)}), r"got \(1, 3, 11\)"),
]

# --- tiff ----------------------------------------------------------------------------------------------------------------


def tiff(values: Any = Y, toml: str | None = "", **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tifffile.imwrite(path, values, **{"photometric": "minisblack", **options})
        if toml is not None:
            path.with_suffix(".toml").write_text(toml or GEOMETRY.to_toml())

    return write


def tiff_pages(path: Path) -> None:
    """Packed pages, each with its own header before the next: cut anywhere, what is left looks like a shorter stack."""
    path.with_suffix(".toml").write_text(GEOMETRY.to_toml())
    with tifffile.TiffWriter(path) as writer:
        for _ in range(20):
            writer.write(Y[0], photometric="minisblack", compression="zlib", contiguous=False)


def tiff_claims(tag: int, value: int, **options: Any) -> Callable[[Path], None]:
    """A TIFF in which one tag of the first page says something else."""

    def write(path: Path) -> None:
        tiff(**options)(path)
        with tifffile.TiffFile(path, mode="r+") as file:
            file.pages[0].tags[tag].overwrite(value)

    return write


def tiff_circle(path: Path) -> None:
    """A page whose next page is itself."""
    tiff(Y[:1])(path)
    data = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", data, 4)[0]
    count = struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<I", data, first + 2 + 12 * count, first)
    path.write_bytes(bytes(data))


WIDTH, LENGTH = 256, 257
TOML = GEOMETRY.to_toml()
TIFF = [
    Case("empty.tif", lambda path: (tiff()(path), path.write_bytes(b"")), "not a readable TIFF"),
    Case("magic.tif", lambda path: (tiff()(path), path.write_bytes(b"no tiff" * 50)), "not a readable TIFF"),
    Case("cut.tif", truncated(tiff(), 0.5), "ends after 1 whole pages"),
    Case("alone.tif", tiff(toml=None), "needs its geometry in alone.toml"),
    Case("key.tif", tiff(toml=TOML.replace("angles", "angels")), "unknown key 'angels'"),
    Case("less.tif", tiff(toml="".join(line + "\n" for line in TOML.splitlines() if "image_size" not in line)), "needs 'image_size'"),
    Case("broken.tif", tiff(toml="beam = \n"), "not valid TOML"),
    Case("deep.tif", tiff(toml="a = " + "[" * 10**5), "not valid TOML"),
    Case("pages.tif", tiff(toml=TOML + 'pages = "columns"\n'), "pages must be one of 'slices', 'views'"),
    Case("elsewhere.tif", tiff(toml=TOML + 'flat = "../flat.tif"\n'), "in the scan's folder"),
    Case("flatless.tif", tiff(toml=TOML + 'flat = "flat.tif"\n'), "there is no file flat.tif"),
    Case(
        "count.tif",
        tiff(toml=TOML.replace("angles =", "x =").split("x =")[0] + "angles_degrees = { first = 0, step = 1, count = 1e99 }\n"),
        "count",
    ),
    Case("colour.tif", tiff(np.zeros((2, 3, 11, 3), np.uint8), photometric="rgb"), "grey picture"),
    Case("complex.tif", tiff(Y.astype(np.complex64)), "must hold real numbers"),
    Case("claims.tif", tiff_claims(LENGTH, 2**31, toml=TOML), "all pages must have one size"),
    Case(
        "wide.tif", tiff_claims(WIDTH, 10**6, values=Y[:1], toml=TOML.replace("detectors = 11", "detectors = 1000000")), "does not hold all"
    ),
    Case("packed.tif", tiff(np.zeros((1, 3, 10**7), np.uint8), TOML.replace("= 11", "= 10000000"), compression="zlib"), "250-fold|chunk"),
    Case("circle.tif", tiff_circle, "ends after 1 whole pages"),
    Case("cut_packed.tif", truncated(tiff_pages, 0.5), "ends after 10 whole pages"),
    Case("nan.tif", tiff(np.full_like(Y, np.nan)), "must be finite"),
]

CASES = HDF5 + NPZ + MAT + TIFF


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_malformed_scan_is_one_sentence(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BDGD_TEST_MARK", str(tmp_path / "mark"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / case.file
    case.write(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=case.message) as caught:
            read_scans(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert case.file.split(".")[0] in text and "\n" not in text and len(text) < 700
    assert peak < MOST_MEMORY, f"{peak / 1e6:.0f} MB"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 4 * MOST_MEMORY
    assert not (tmp_path / "mark").exists()  # nothing was run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_the_command_line_answers_with_exit_code_2(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BDGD_TEST_MARK", str(tmp_path / "mark"))
    path = tmp_path / case.file
    case.write(path)
    result = CliRunner().invoke(cli.app, ["reconstruct", str(path), "-o", str(tmp_path / "out")], prog_name="bdgd")
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("bdgd: ")
    assert "Traceback" not in result.output and not (tmp_path / "out").exists()


def test_the_helpers_make_files_that_are_right_but_for_the_fault(tmp_path: Path) -> None:
    """Unbroken, each of the files above is read: what is refused is the fault and nothing else."""
    hdf5(lambda file: None)(tmp_path / "a.h5")
    npz()(tmp_path / "a.npz")
    npz_with("sinogram", lambda: header(Y.shape) + Y.tobytes())(tmp_path / "b.npz")
    tiff()(tmp_path / "a.tif")
    for name in ("a.h5", "a.npz", "b.npz", "a.tif"):
        scans = read_scans(tmp_path / name)
        assert scans.geometry == GEOMETRY and np.array_equal(scans.sinograms[:, 0].numpy(), Y), name
    for compress in (True, False):
        mat(compress)(tmp_path / "a.mat")
        scans = read_scans(tmp_path / "a.mat")
        assert isinstance(scans.geometry, FanBeam) and np.array_equal(scans.sinograms[0, 0].numpy(), Y[0])


def test_a_fault_in_the_loop_over_a_stack_is_the_callers_own(tmp_path: Path) -> None:
    npz()(tmp_path / "a.npz")
    with pytest.raises(ZeroDivisionError), open_stack(tmp_path / "a.npz"):
        raise ZeroDivisionError


def test_random_damage_is_named_or_harmless(tmp_path: Path) -> None:
    """A few bytes changed, or the end cut off: never another error, and a process that lives on."""
    rng = np.random.default_rng(0)
    writers = {
        "a.h5": hdf5(lambda file: None),
        "a.npz": npz(),
        "a.mat": mat(),
        "b.mat": mat(compress=False),
        "a.tif": tiff(compression="zlib"),
    }
    for name, write in writers.items():
        path = tmp_path / name
        write(path)
        whole, refused = path.read_bytes(), 0
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(3):
                at = int(rng.integers(rng.choice([200, len(data)])))
                data[at : at + 4] = bytes(rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\0", rng.bytes(4)]))
            path.write_bytes(bytes(data) if rng.random() < 0.8 else whole[: int(rng.integers(len(whole)))])
            try:
                read_scans(path)
            except InputError as error:
                assert "\n" not in str(error)
                refused += 1
        assert refused > 20, name
