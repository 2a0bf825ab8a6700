"""The learned models: the cascade with its exchangeable Bayesian last layers, learned primal-dual, and their files."""

from bdgd.models.calibration import Calibration, calibration_from_dict
from bdgd.models.cascade import DeepGradientDescent, GradientBlock, State
from bdgd.models.checkpoint import geometry_of, load, pretrained, provenance_of, read_tensors, save, write_tensors
from bdgd.models.last_layers import LAST_LAYERS
from bdgd.models.misfit import GaussianMisfit, PoissonMisfit
from bdgd.models.primal_dual import LearnedPrimalDual
from bdgd.models.reconstructor import Reconstructor, ray_transform
from bdgd.models.scale_head import ScaleHead
from bdgd.models.scale_mixture import ScaleMixture

__all__ = [
    "LAST_LAYERS",
    "Calibration",
    "DeepGradientDescent",
    "GaussianMisfit",
    "GradientBlock",
    "LearnedPrimalDual",
    "PoissonMisfit",
    "Reconstructor",
    "ScaleHead",
    "ScaleMixture",
    "State",
    "calibration_from_dict",
    "geometry_of",
    "load",
    "pretrained",
    "provenance_of",
    "ray_transform",
    "read_tensors",
    "save",
    "write_tensors",
]
