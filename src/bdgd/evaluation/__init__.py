"""Methods and their error bars scored on the paper's test set, and figures."""

from bdgd.evaluation.benchmark import FULL, QUICK, SETTINGS, Effort, Method, Scores, score, table_scans, validation_scans
from bdgd.evaluation.figures import Panel, Scale, panels, save_figure
from bdgd.evaluation.methods import METHODS, find_method, remembering, require_setting, setting_of
from bdgd.evaluation.reliability import uncertainty_figure
from bdgd.evaluation.strata import StratumScores
from bdgd.evaluation.uncertainty import UncertaintyScores, score_uncertainty

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
    "StratumScores",
    "UncertaintyScores",
    "find_method",
    "panels",
    "remembering",
    "require_setting",
    "save_figure",
    "score",
    "score_uncertainty",
    "setting_of",
    "table_scans",
    "uncertainty_figure",
    "validation_scans",
]
