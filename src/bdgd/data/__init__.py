"""Images and measurements to work with: phantoms, noise, simulated scans, disjoint sets, and scan files."""

from bdgd.data.files import read_scans, write_scans
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
from bdgd.data.text import with_text

__all__ = [
    "Ellipses",
    "GaussianNoise",
    "Noise",
    "PoissonNoise",
    "Scans",
    "disc",
    "draw_ellipses",
    "ellipse_images",
    "ellipse_parameters",
    "ellipse_sinogram",
    "head_images",
    "named_generator",
    "noise_from_dict",
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
