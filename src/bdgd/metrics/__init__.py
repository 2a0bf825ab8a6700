"""How good an image and how honest its error bars are: pure functions of tensors with one value per image, and streams over a whole set."""

from bdgd.metrics.calibration_error import CalibrationError, Reliability
from bdgd.metrics.crps import draws_crps, gaussian_crps, student_t_crps
from bdgd.metrics.detection import auroc
from bdgd.metrics.intervals import ErrorQuantiles, Intervals, IntervalScores
from bdgd.metrics.likelihood import PatchCovariance, PatchLikelihood, gaussian_nll, student_t_nll
from bdgd.metrics.pooled_detection import Detection, ErrorDetection
from bdgd.metrics.quality import OBJECT, mean_psnr, psnr, ssim
from bdgd.metrics.sparsification import Sparsification, SparsificationCurve
from bdgd.metrics.streaming import Average, LogBins, PixelMean, PixelScore, squared_z
from bdgd.metrics.uncertainty import ause, coverage, nll

__all__ = [
    "OBJECT",
    "Average",
    "CalibrationError",
    "Detection",
    "ErrorDetection",
    "ErrorQuantiles",
    "IntervalScores",
    "Intervals",
    "LogBins",
    "PatchCovariance",
    "PatchLikelihood",
    "PixelMean",
    "PixelScore",
    "Reliability",
    "Sparsification",
    "SparsificationCurve",
    "auroc",
    "ause",
    "coverage",
    "draws_crps",
    "gaussian_crps",
    "gaussian_nll",
    "mean_psnr",
    "nll",
    "psnr",
    "squared_z",
    "ssim",
    "student_t_crps",
    "student_t_nll",
]
