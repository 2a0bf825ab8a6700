"""bdgd: CT reconstruction from few or limited views, with error bars.

A `Geometry` says where the rays are, a `RayTransform` turns images into sinograms and back (`A(x)`, `A.T(y)`), a
`DeepGradientDescent` model turns a sinogram into a `Posterior` of images:

    A = bdgd.RayTransform(bdgd.ParallelBeam.sparse(image_size=128, views=30))
    scans = bdgd.simulate(A, bdgd.shepp_logan(128), bdgd.GaussianNoise(0.01), generator=torch.Generator().manual_seed(0))
    posterior = bdgd.reconstruct(bdgd.load("sparse30-mfvi"), scans.sinograms)
    posterior.mean, posterior.std, posterior.interval(0.95)
"""

from bdgd.checks import InputError
from bdgd.classical import choose_tv_weight, fbp, solve_tv, tv
from bdgd.data import (
    Correction,
    Ellipses,
    GaussianNoise,
    Mismatch,
    PoissonNoise,
    Scans,
    disc,
    discs_with_holes,
    ellipse_images,
    ellipse_sinogram,
    random_ellipses,
    rasterise,
    read_scans,
    shepp_logan,
    simulate,
    with_text,
    write_scans,
)
from bdgd.inference import (
    Alarm,
    Miscoverage,
    Posterior,
    alarm,
    calibrate,
    explain_rest,
    reconstruct,
    reconstruct_blocks,
    reconstruct_ensemble,
)
from bdgd.metrics import ause, coverage, nll, psnr, ssim
from bdgd.models import Calibration, DeepGradientDescent, LearnedPrimalDual, load, pretrained, save
from bdgd.operators import (
    FanBeam,
    Geometry,
    LinearOperator,
    ParallelBeam,
    RayTransform,
    adjoint_mismatch,
    geometry_from_dict,
    operator_norm,
    read_geometry,
)
from bdgd.training import History, finetune_jointly, laplace, train_directly, train_greedily, train_scale_head

__version__ = "0.1.0"

__all__ = [
    "Alarm",
    "Calibration",
    "Correction",
    "DeepGradientDescent",
    "Ellipses",
    "FanBeam",
    "GaussianNoise",
    "Geometry",
    "History",
    "InputError",
    "LearnedPrimalDual",
    "LinearOperator",
    "Miscoverage",
    "Mismatch",
    "ParallelBeam",
    "PoissonNoise",
    "Posterior",
    "RayTransform",
    "Scans",
    "adjoint_mismatch",
    "alarm",
    "ause",
    "calibrate",
    "choose_tv_weight",
    "coverage",
    "disc",
    "discs_with_holes",
    "ellipse_images",
    "ellipse_sinogram",
    "explain_rest",
    "fbp",
    "finetune_jointly",
    "geometry_from_dict",
    "laplace",
    "load",
    "nll",
    "operator_norm",
    "pretrained",
    "psnr",
    "random_ellipses",
    "rasterise",
    "read_geometry",
    "read_scans",
    "reconstruct",
    "reconstruct_blocks",
    "reconstruct_ensemble",
    "save",
    "shepp_logan",
    "simulate",
    "solve_tv",
    "ssim",
    "train_directly",
    "train_greedily",
    "train_scale_head",
    "tv",
    "with_text",
    "write_scans",
]
