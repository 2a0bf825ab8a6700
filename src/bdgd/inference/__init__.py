"""From sinograms to images with error bars: Monte-Carlo sampling, the posterior, its calibration, regions, the alarm and the rest."""

from bdgd.inference.alarm import Alarm, alarm
from bdgd.inference.calibrating import calibrate
from bdgd.inference.ensemble import reconstruct_ensemble
from bdgd.inference.miscoverage import Miscoverage, edge_mask
from bdgd.inference.moments import Moments
from bdgd.inference.posterior import Area, Posterior, Region
from bdgd.inference.rest import explain_rest
from bdgd.inference.sampling import reconstruct, reconstruct_and_keep, reconstruct_blocks

__all__ = [
    "Alarm",
    "Area",
    "Miscoverage",
    "Moments",
    "Posterior",
    "Region",
    "alarm",
    "calibrate",
    "edge_mask",
    "explain_rest",
    "reconstruct",
    "reconstruct_and_keep",
    "reconstruct_blocks",
    "reconstruct_ensemble",
]
