"""The learned models: the cascade with its exchangeable Bayesian last layers, learned primal-dual, and their files."""

from bdgd.models.cascade import DeepGradientDescent, GradientBlock, State
from bdgd.models.checkpoint import load, pretrained, read_tensors, save, write_tensors
from bdgd.models.last_layers import LAST_LAYERS
from bdgd.models.misfit import GaussianMisfit, PoissonMisfit
from bdgd.models.primal_dual import LearnedPrimalDual
from bdgd.models.reconstructor import Reconstructor

__all__ = [
    "LAST_LAYERS",
    "DeepGradientDescent",
    "GaussianMisfit",
    "GradientBlock",
    "LearnedPrimalDual",
    "PoissonMisfit",
    "Reconstructor",
    "State",
    "load",
    "pretrained",
    "read_tensors",
    "save",
    "write_tensors",
]
