"""The convolutions of a block by the kernels of `kernels`: the same functions as in `cascade` and `last_layers`, fewer passes.

Their derivatives are written out. They are used on a GPU under bfloat16 autocast where Triton is installed (`usable`);
everywhere else the plain PyTorch calls of the block are, which are also what these are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bdgd.backends import triton_works
from bdgd.models.launches import (
    PADDED,
    channels_last,
    convolve,
    convolve_back,
    convolve_pair,
    input_gradient,
    pack,
    pair_gradient,
    to_one,
    to_one_gradients,
    weight_gradient,
)


def usable(like: Tensor) -> bool:
    """Whether the fused kernels should compute with a tensor like this one."""
    return (
        like.is_cuda
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
        and triton_works(like.device)
    )


def features(x: Tensor, gradient: Tensor, parameters: Sequence[Tensor], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """What the last layer sees, (B, 16, H, W) in `dtype`, channels innermost in memory, from image and gradient (B, 1, H, W).

    parameters: weight and bias of the two layers of the image branch, of the gradient branch and of the merging part.
    """
    result: Tensor = _Features.apply(dtype, x, gradient, *parameters)
    return result


def stack(x: Tensor, parameters: Sequence[Tensor], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Three 3 x 3 convolutions C-32-32-n with PReLUs of 32 slopes between them: (B, C, H, W) -> (B, n, H, W) in float32.

    parameters: weight, bias and slopes of the first two layers, weight and bias of the third. At most 16 channels in and out.
    """
    result: Tensor = _Stack.apply(dtype, x, *parameters)
    return result


def convolve_to_one(inputs: Tensor, weights: Tensor, squared: bool = False) -> Tensor:
    """3 x 3 convolution of (B, C, H, W), or of its square, with weights (1, C, 3, 3) or (B, C, 3, 3): (B, 1, H, W) in float32."""
    result: Tensor = _ToOne.apply(inputs, weights, squared)
    return result


class _Features(torch.autograd.Function):
    """Four levels: both first layers, both second layers as one convolution with two blocks of weights, and the merging part."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, x: Tensor, gradient: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        image_1, image_2, gradient_1, gradient_2, merge_1, merge_2 = weights
        pair = torch.cat((image_1, gradient_1)).reshape(32, 9).T.contiguous()
        packed = [pack(dtype, image_2, gradient_2), pack(dtype, merge_1), pack(dtype, merge_2)]
        x, gradient = x.contiguous(), gradient.contiguous()
        levels = [convolve_pair(x, gradient, pair, torch.cat((biases[0], biases[2])), dtype)]
        for w, bias in zip(packed, (torch.cat((biases[1], biases[3])), *biases[4:]), strict=True):
            levels.append(convolve(levels[-1], w, bias, relu=True))
        ctx.save_for_backward(x, gradient, pair, *packed, *levels)
        return levels[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient, pair, *rest = ctx.saved_tensors
        packed, levels = rest[:3], rest[3:]
        d = torch.ops.aten.threshold_backward(d.permute(0, 2, 3, 1).contiguous(), levels[3], 0)
        weights, biases = [], [d.sum((0, 1, 2), dtype=torch.float32)]
        for w, below in zip(reversed(packed), reversed(levels[:3]), strict=True):
            weights.append(weight_gradient(below, d))
            d, (bias,) = convolve_back(d, w, below, relu=True)
            biases.append(bias)
        merge_2, merge_1, second = weights
        first = pair_gradient(x, gradient, d)
        inputs = [input_gradient(d, pair, n) if ctx.needs_input_grad[1 + n] else None for n in (0, 1)]
        image = first[:16], biases[3][:16], second[:32, :16], biases[2][:32]
        other = first[16:], biases[3][16:], second[32:, 16:], biases[2][32:]
        return (None, *inputs, *image, *other, merge_1, biases[1], merge_2, biases[0])


class _Stack(torch.autograd.Function):
    """Three convolutions with PReLUs between them; channels are padded to what the tensor cores take."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, x: Tensor, *parameters: Tensor) -> Tensor:
        w1, b1, slopes_1, w2, b2, slopes_2, w3, b3 = parameters
        ctx.channels, ctx.outputs = x.shape[1], len(b3)
        packed = [pack(dtype, w1, inputs=PADDED), pack(dtype, w2), pack(dtype, w3, outputs=PADDED)]
        levels = [channels_last(x, dtype)]
        levels.append(convolve(levels[-1], packed[0], b1))
        levels.append(convolve(levels[-1], packed[1], b2, slopes_1))
        last = convolve(levels[-1], packed[2], torch.nn.functional.pad(b3, (0, PADDED - len(b3))), slopes_2)
        ctx.save_for_backward(*packed, *levels, slopes_1, slopes_2)
        return last[..., : len(b3)].permute(0, 3, 1, 2).float()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        p1, p2, p3, x, t1, t2, slopes_1, slopes_2 = ctx.saved_tensors
        d3 = channels_last(d, x.dtype)
        d2, (b2, s2) = convolve_back(d3, p3, t2, slopes_2)
        d1, (b1, s1) = convolve_back(d2, p2, t1, slopes_1)
        w3 = weight_gradient(t2, d3, slopes_2)[: ctx.outputs]
        w2, w1 = weight_gradient(t1, d2, slopes_1), weight_gradient(x, d1)[:, : ctx.channels]
        dx = convolve_back(d1, p1, x)[0][..., : ctx.channels].permute(0, 3, 1, 2).float() if ctx.needs_input_grad[1] else None
        return None, dx, w1, b1, s1, w2, b2, s2, w3, d.sum((0, 2, 3))


class _ToOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weights: Tensor, squared: bool) -> Tensor:
        ctx.squared = squared
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        ctx.save_for_backward(inputs, weights)
        return to_one(inputs, weights.flatten(2).transpose(1, 2).float().contiguous(), squared)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, weights = ctx.saved_tensors
        assert len(weights) == 1, "weights of each image's own are for inference"
        back, taps = to_one_gradients(inputs, d, weights[0], ctx.squared)
        return back.permute(0, 3, 1, 2), taps.reshape(weights.shape).to(weights.dtype), None
