"""From sinograms to images with error bars: Monte-Carlo sampling and the posterior."""

from bdgd.inference.posterior import Posterior, Region
from bdgd.inference.sampling import moments, reconstruct

__all__ = ["Posterior", "Region", "moments", "reconstruct"]
