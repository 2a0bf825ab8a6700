"""Methods scored on the paper's test set, and figures."""

from bdgd.evaluation.benchmark import SETTINGS, Method, Scores, score, test_scans, validation_scans
from bdgd.evaluation.figures import Panel, Scale, panels, save_figure
from bdgd.evaluation.methods import METHODS, find_method

__all__ = [
    "METHODS",
    "SETTINGS",
    "Method",
    "Panel",
    "Scale",
    "Scores",
    "find_method",
    "panels",
    "save_figure",
    "score",
    "test_scans",
    "validation_scans",
]
