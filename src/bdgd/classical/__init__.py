"""Reconstruction without learning: one function per method."""

from bdgd.classical.fbp import fbp
from bdgd.classical.tv import TVResult, TVWeight, choose_tv_weight, solve_tv, tv

__all__ = ["TVResult", "TVWeight", "choose_tv_weight", "fbp", "solve_tv", "tv"]
