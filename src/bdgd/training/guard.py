"""A guard against a loss that explodes: the epoch is undone and repeated at half the learning rate.

Now and then a training through many operators meets a step that throws it far off, epochs after all went well. Everything learned
up to the epoch's start is still there, so the guard goes back to it, parameters and optimiser state, and on more carefully.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdgd.checks import Diverged
from bdgd.training.steps import training_tensors, way_back

#: So many epochs of a stage are undone at most, which is 1/64 of its learning rate; a loss that still explodes has other reasons.
MOST_UNDONE = 6


class Guard:
    """Judges the epochs of one stage by their mean loss, which must be positive if `undo` is given.

    undo: an epoch is undone where its mean loss is more than `undo` times the smallest of the stage so far, or anything is not
    finite; None undoes nothing, and what is not finite is the end. slower: the part of the learning rate that the stage begins with.
    Every process judges by the same loss and the same weights, so all of them decide alike.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, undo: float | None, slower: float = 1.0):
        self._optimiser, self._undo, self._slower = optimiser, undo, slower
        self._undone = torch.zeros((), dtype=torch.int64)
        self._smallest = torch.full((), math.inf, dtype=torch.float64)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What the guard knows, by name, to be kept with the progress of the stage; nothing where it undoes nothing."""
        return {} if self._undo is None else {"undone": self._undone, "smallest_loss": self._smallest}

    @property
    def slower(self) -> float:
        """The part of the schedule's learning rate to train with: halved for every epoch that was undone."""
        return self._slower * 0.5 ** int(self._undone)

    def begin_epoch(self) -> None:
        """Remember where the epoch starts."""
        if self._undo is not None:
            self._go_back = way_back(self._optimiser)

    def accepts(self, loss: float, epoch: str) -> bool:
        """Whether the epoch with this mean loss stands; else it is undone now. Diverged once nothing more may be undone."""
        wrong = self._what_is_wrong(loss)
        if not wrong:
            self._smallest.clamp_(max=loss)
            return True
        if self._undo is None or self._undone == MOST_UNDONE:
            halved = f", which was halved {MOST_UNDONE} times" if self._undo is not None else ""
            raise Diverged(f"training diverged in {epoch}: {wrong}; lower the learning rate{halved}")
        self._go_back()
        self._undone += 1
        return False

    def _what_is_wrong(self, loss: float) -> str:
        weights = (tensor for name, tensor in training_tensors(self._optimiser).items() if name.startswith("parameter"))
        if not math.isfinite(loss) or not all(bool(weight.isfinite().all()) for weight in weights):
            return f"the loss ({loss:g}) or a weight is not finite"
        if self._undo is not None and loss > self._undo * float(self._smallest):
            return f"the loss ({loss:g}) is more than {self._undo:g} times what it was before ({float(self._smallest):g})"
        return ""
