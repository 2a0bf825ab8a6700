"""Methods scored on the paper's test set, and figures."""

from bdgd.evaluation.benchmark import FULL, QUICK, SETTINGS, Effort, Method, Scores, score, table_scans, validation_scans
from bdgd.evaluation.figures import Panel, Scale, panels, save_figure
from bdgd.evaluation.methods import METHODS, find_method

__all__ = [
    "FULL",
    "METHODS",
    "QUICK",
    "SETTINGS",
    "Effort",
    "Method",
    "Panel",
    "Scale",
    "Scores",
    "find_method",
    "panels",
    "save_figure",
    "score",
    "table_scans",
    "validation_scans",
]
