"""From sinograms to images with error bars: Monte-Carlo sampling and the posterior."""

from bdgd.inference.posterior import Posterior, Region
from bdgd.inference.sampling import Moments, reconstruct, reconstruct_blocks

__all__ = ["Moments", "Posterior", "Region", "reconstruct", "reconstruct_blocks"]
