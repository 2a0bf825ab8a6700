"""Images and measurements to work with: phantoms, noise, simulated scans, disjoint sets, and scan files."""

from bdgd.data.axis import estimate_axis
from bdgd.data.counts import line_integrals
from bdgd.data.files import open_stack, read_scans, write_scans
from bdgd.data.matching import match
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
    "Ellipses",
    "GaussianNoise",
    "Noise",
    "PoissonNoise",
    "Scans",
    "Stack",
    "disc",
    "draw_ellipses",
    "ellipse_images",
    "ellipse_parameters",
    "ellipse_sinogram",
    "estimate_axis",
    "head_images",
    "line_integrals",
    "match",
    "named_generator",
    "noise_from_dict",
    "open_stack",
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
