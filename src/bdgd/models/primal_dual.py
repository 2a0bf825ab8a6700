"""Learned primal-dual (Adler and Oektem 2018), the strongest rival of the cascade: unrolled, without sharing, trained as a whole.

    dual   h <- h + G_i(h, A1 p_2, y1),     primal   p <- p + F_i(p, A1' h_1),     i = 1 ... I

with five memories each, three 3 x 3 convolutions of width 32 with per-channel PReLU per update, and p_1 as the image. All memories
start at zero, as its authors have it, or p_1 and p_2, what is shown and what is projected, at the filtered back-projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bdgd.checks import InputError, require_choice, require_count
from bdgd.classical import fbp
from bdgd.keyed import keyed_generator, own_random_state
from bdgd.models import fused
from bdgd.models.last_layers import reset_convolution
from bdgd.models.reconstructor import Reconstructor
from bdgd.operators import LinearOperator, operator_norm

MEMORIES, WIDTH = 5, 32
STARTS = ("zero", "fbp")


class LearnedPrimalDual(Reconstructor):
    """`iterations` unrolled primal-dual updates on `A` scaled to norm 1; with ten, 253,220 parameters. It has one draw only.

    start: "zero" or "fbp", which needs an operator that has a filtered back-projection.
    """

    log_noise: Tensor

    def __init__(self, A: LinearOperator, iterations: int = 10, *, start: str = "zero", value_scale: float = 1.0, seed: int = 0):
        super().__init__(A, value_scale=value_scale)
        if len(A.range_shape) != 3 or A.range_shape[0] != 1:
            raise InputError(
                f"learned primal-dual needs an operator to sinograms of shape (1, V, D), the range_shape of {A} is {tuple(A.range_shape)};"
                " a cascade takes any"
            )
        self.norm, self.starts_at = operator_norm(A), require_choice(start, STARTS, "start")
        count = require_count(iterations, "iterations")
        with own_random_state():
            self.dual = nn.ModuleList(_update(MEMORIES + 2, MEMORIES) for _ in range(count))
            self.primal = nn.ModuleList(_update(MEMORIES + 1, MEMORIES) for _ in range(count))
        self.register_buffer("log_noise", torch.tensor(float("nan")))
        generator = keyed_generator(seed, "primal-dual")
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                reset_convolution(layer, generator)
        self.to(getattr(A, "device", "cpu"), torch.float32)

    def start(self, y: Tensor) -> Tensor:
        """p_1 and p_2 before the first update (B, 1, H, W), of sinograms y (B, 1, V, D)."""
        return fbp(self.A, y) if self.starts_at == "fbp" else y.new_zeros(len(y), *self.A.domain_shape)

    def forward(self, y: Tensor, start: Tensor | None = None) -> Tensor:
        """Sinograms (B, 1, V, D) -> images (B, 1, H, W), both divided by value_scale. start: where it is known already."""
        start = self.start(y) if start is None else start
        y = y / self.norm
        h = y.new_zeros(len(y), MEMORIES, *self.A.range_shape[1:])
        p = torch.cat((start, start, y.new_zeros(len(y), MEMORIES - 2, *self.A.domain_shape[1:])), 1)
        for dual, primal in zip(self.dual, self.primal, strict=True):
            h = h + dual(torch.cat((h, self._scaled(self.A, p[:, 1:2]), y), 1)).to(h.dtype)
            p = p + primal(torch.cat((p, self._scaled(self.A.T, h[:, 0:1])), 1)).to(p.dtype)
        return p[:, 0:1]

    def _scaled(self, A: LinearOperator, v: Tensor) -> Tensor:
        """A v or A' v for an operator of norm 1; inside autocast it keeps its precision, whatever the operator does there."""
        with torch.autocast(v.device.type, enabled=False):
            return A(v) / self.norm

    @property
    def noise_level(self) -> Tensor:
        return self.value_scale * self.log_noise.exp()

    def arguments(self) -> dict[str, Any]:
        return {"iterations": len(self.primal), "start": self.starts_at, "value_scale": self.value_scale}


class _Update(nn.Sequential):
    """Three convolutions with PReLUs between them."""

    def forward(self, x: Tensor) -> Tensor:
        return fused.stack(x, list(self.parameters())) if fused.usable(x) else super().forward(x)


def _update(channels_in: int, channels_out: int) -> _Update:
    def convolution(a: int, b: int) -> nn.Conv2d:
        return nn.Conv2d(a, b, 3, padding=1)

    return _Update(
        convolution(channels_in, WIDTH), nn.PReLU(WIDTH), convolution(WIDTH, WIDTH), nn.PReLU(WIDTH), convolution(WIDTH, channels_out)
    ).float()
