"""One step of the optimiser: Adam with all its state in place from the start, and the step itself, plain or as one CUDA graph.

A captured step reads and writes tensors where they are, so whatever restores them (a resumed run, an epoch that is undone) fills
the tensors of `training_tensors` and never replaces them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bdgd.training.objective import Objective
from bdgd.training.turns import alone

Step = Callable[[Tensor, list[Tensor]], Tensor]


def adam(objective: Objective, *, learning_rate: float, weight_decay: float, second_moment: float) -> torch.optim.Adam:
    """Adam with its state in place from the start, so that it can be restored and captured; inferred parameters do not decay."""
    inferred = set(objective.inferred())
    plain = [parameter for parameter in objective.parameters() if parameter not in inferred]
    random = [parameter for parameter in objective.parameters() if parameter in inferred]
    groups = [{"params": plain, "weight_decay": weight_decay}, {"params": random, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    device = (plain + random)[0].device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(learning_rate, device=device) if on_gpu else learning_rate
    optimiser = torch.optim.Adam(groups, rate, (0.9, second_moment), capturable=on_gpu, fused=on_gpu or None)
    for parameter in plain + random:
        optimiser.state[parameter] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimiser


def training_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything that a step changes, by name: the parameters ("parameter.0", ...) and the optimiser's state."""
    tensors: dict[str, Tensor] = {}
    for number, parameter in enumerate(p for group in optimiser.param_groups for p in group["params"]):
        tensors[f"parameter.{number}"] = parameter.detach()
        tensors |= {f"{name}.{number}": value for name, value in optimiser.state[parameter].items()}
    return tensors


def way_back(optimiser: torch.optim.Optimizer) -> Callable[[], None]:
    """Remembers what a step changes as it is now; what is returned brings it back, in place, as often as it is called."""
    tensors = training_tensors(optimiser)
    before = {name: tensor.clone() for name, tensor in tensors.items()}

    def go_back() -> None:
        for name, tensor in tensors.items():
            tensor.copy_(before[name])

    return go_back


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give all parameters this learning rate."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # the captured step reads this tensor
        else:
            group["lr"] = rate


def plain_step(objective: nn.Module, optimiser: torch.optim.Optimizer, gradient_norm: float | None) -> Step:
    """The step on image numbers and noise, which gives the loss before it; gradients longer than `gradient_norm` are shortened to it."""

    def step(index: Tensor, noise: list[Tensor]) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = objective(index, noise)
        loss.backward()
        if gradient_norm is not None:
            nn.utils.clip_grad_norm_(objective.parameters(), gradient_norm)
        optimiser.step()
        return loss.detach()

    return step


def captured_step(step: Step, optimiser: torch.optim.Optimizer, index: Tensor, noise: list[Tensor]) -> Step:
    """The step as one CUDA graph: small batches are bound by the time to launch kernels one by one."""
    index, noise = index.clone(), [local.clone() for local in noise]
    go_back = way_back(optimiser)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a few real steps first, as the capture needs them, then back to where we were
        for _ in range(3):
            step(index, noise)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with alone(), torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a capture bears nothing beside it, see `turns`
        loss = step(index, noise)
    go_back()

    def replay(new_index: Tensor, new_noise: list[Tensor]) -> Tensor:
        index.copy_(new_index)
        for mine, new in zip(noise, new_noise, strict=True):
            mine.copy_(new)
        graph.replay()
        return loss

    return replay
