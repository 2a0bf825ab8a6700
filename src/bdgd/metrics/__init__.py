"""Pure functions of tensors that say how good an image and how honest its error bars are; one value per image."""

from bdgd.metrics.detection import auroc
from bdgd.metrics.quality import psnr, ssim
from bdgd.metrics.uncertainty import ause, coverage, nll

__all__ = ["auroc", "ause", "coverage", "nll", "psnr", "ssim"]
