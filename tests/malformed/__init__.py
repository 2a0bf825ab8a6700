"""Scan files that are broken or hostile, format by format; a new one entered in a list is tested that minute."""

from malformed.cases import Case
from malformed.hdf5 import HDF5
from malformed.mat import MAT
from malformed.npz import NPZ
from malformed.tiff import TIFF

CASES: list[Case] = HDF5 + NPZ + MAT + TIFF

__all__ = ["CASES", "Case"]
