"""Training: the objective in one formula, one loop, and the three ways to use it (greedy, joint, direct)."""

from bdgd.training.greedy import train_greedily
from bdgd.training.laplace import laplace
from bdgd.training.loop import Schedule
from bdgd.training.run import History
from bdgd.training.scale import train_scale_head
from bdgd.training.whole import finetune_jointly, train_directly

__all__ = ["History", "Schedule", "finetune_jointly", "laplace", "train_directly", "train_greedily", "train_scale_head"]
