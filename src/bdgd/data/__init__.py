"""Images and measurements to work with: phantoms, noise, simulated scans, disjoint sets, and scan files."""

from bdgd.data.axis import estimate_axis
from bdgd.data.correction import Correction, correction_from_dict
from bdgd.data.counts import line_integrals
from bdgd.data.estimates import estimate_noise
from bdgd.data.files import open_stack, read_scans, write_scans
from bdgd.data.folder import folder_images
from bdgd.data.holes import discs_with_holes
from bdgd.data.kinds import KINDS, phantom_images
from bdgd.data.matching import match
from bdgd.data.mismatch import Mismatch, mismatch_from_dict
from bdgd.data.noise import GaussianNoise, Noise, PoissonNoise, noise_from_dict
from bdgd.data.phantoms import (
    Ellipses,
    disc,
    draw_ellipses,
    ellipse_sinogram,
    random_ellipses,
    rasterise,
    shepp_logan,
    shepp_logan_ellipses,
)
from bdgd.data.scans import Scans, simulate
from bdgd.data.sets import ellipse_images, ellipse_parameters, head_images, named_generator, table_images
from bdgd.data.stack import Stack
from bdgd.data.text import with_text

__all__ = [
    "KINDS",
    "Correction",
    "Ellipses",
    "GaussianNoise",
    "Mismatch",
    "Noise",
    "PoissonNoise",
    "Scans",
    "Stack",
    "correction_from_dict",
    "disc",
    "discs_with_holes",
    "draw_ellipses",
    "ellipse_images",
    "ellipse_parameters",
    "ellipse_sinogram",
    "estimate_axis",
    "estimate_noise",
    "folder_images",
    "head_images",
    "line_integrals",
    "match",
    "mismatch_from_dict",
    "named_generator",
    "noise_from_dict",
    "open_stack",
    "phantom_images",
    "random_ellipses",
    "rasterise",
    "read_scans",
    "shepp_logan",
    "shepp_logan_ellipses",
    "simulate",
    "table_images",
    "with_text",
    "write_scans",
]
