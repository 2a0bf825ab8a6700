"""TIFF stacks that are broken or hostile: without their geometry, cut off, going in circles, packed zeros."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from malformed.cases import GEOMETRY, Case, Y, truncated


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
    Case("packed.tif", tiff(np.zeros((1, 3, 10**6), np.uint8), TOML.replace("= 11", "= 1000000"), compression="zlib"), "250-fold|chunk"),
    Case("circle.tif", tiff_circle, "ends after 1 whole pages"),
    Case("cut_packed.tif", truncated(tiff_pages, 0.5), "ends after 10 whole pages"),
    Case("nan.tif", tiff(np.full_like(Y, np.nan)), "must be finite"),
]
