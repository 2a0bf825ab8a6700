"""How fast the inner loops are, each beside what others offer, measured in one run; how they grow; and what is asked of them."""

from bdgd.evaluation.speed.bars import Parts, bars
from bdgd.evaluation.speed.growth import CPU, GPU, Sizes, growth_rows
from bdgd.evaluation.speed.measuring import slope
from bdgd.evaluation.speed.page import Table, markdown, tables
from bdgd.evaluation.speed.picture import speed_figure
from bdgd.evaluation.speed.projecting import BATCHES, CASES, projector_rows
from bdgd.evaluation.speed.sampling import sampling_row
from bdgd.evaluation.speed.stepping import loss_curves, training_data, training_rows

__all__ = [
    "BATCHES",
    "CASES",
    "CPU",
    "GPU",
    "Parts",
    "Sizes",
    "Table",
    "bars",
    "growth_rows",
    "loss_curves",
    "markdown",
    "projector_rows",
    "sampling_row",
    "slope",
    "speed_figure",
    "tables",
    "training_data",
    "training_rows",
]
