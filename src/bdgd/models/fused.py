"""The gradient block's convolutions by the kernels of `kernels`: the same functions as in `cascade` and `last_layers`, fewer passes.

They are used on a GPU under bfloat16 autocast where Triton is installed (`usable`); everywhere else the plain PyTorch calls
of the block are, which are also what these are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bdgd.backends import triton_works

#: Partial sums of a weight gradient: enough programs to fill a GPU, few enough that adding them up costs nothing.
SPLITS = 132
#: Channels that few channels are padded to.
PADDED = 16
#: Pixels per program, warps and pipeline stages of each kernel, found by measurement on an H200.
Tuning = tuple[int, int, int]
CONVOLVE: Tuning = (128, 4, 3)
CORRELATE: Tuning = (64, 8, 3)
CORRELATE_FEW: Tuning = (128, 4, 3)  # for no more than 32 x 16 channels
PAIR: Tuning = (128, 4, 2)
PAIR_GRADIENT: Tuning = (512, 4, 2)
ONE: Tuning = (256, 4, 2)
ONE_GRADIENT: Tuning = (128, 4, 2)


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
        packed = [_pack(dtype, image_2, gradient_2), _pack(dtype, merge_1), _pack(dtype, merge_2)]
        x, gradient = x.contiguous(), gradient.contiguous()
        levels = [_convolve_pair(x, gradient, pair, torch.cat((biases[0], biases[2])), dtype)]
        for w, bias in zip(packed, (torch.cat((biases[1], biases[3])), *biases[4:]), strict=True):
            levels.append(_convolve(levels[-1], w, bias, relu=True))
        ctx.save_for_backward(x, gradient, pair, *packed, *levels)
        return levels[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient, pair, *rest = ctx.saved_tensors
        packed, levels = rest[:3], rest[3:]
        d = torch.ops.aten.threshold_backward(d.permute(0, 2, 3, 1).contiguous(), levels[3], 0)
        weights, biases = [], [d.sum((0, 1, 2), dtype=torch.float32)]
        for w, below in zip(reversed(packed), reversed(levels[:3]), strict=True):
            weights.append(_weight_gradient(below, d))
            d, bias, _ = _convolve_back(d, w, below, relu=True)
            biases.append(bias)
        merge_2, merge_1, second = weights
        first = _pair_gradient(x, gradient, d)
        inputs = [_input_gradient(d, pair, n) if ctx.needs_input_grad[1 + n] else None for n in (0, 1)]
        image = first[:16], biases[3][:16], second[:32, :16], biases[2][:32]
        other = first[16:], biases[3][16:], second[32:, 16:], biases[2][32:]
        return (None, *inputs, *image, *other, merge_1, biases[1], merge_2, biases[0])


class _Stack(torch.autograd.Function):
    """Three convolutions with PReLUs between them; channels are padded to what the tensor cores take."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, x: Tensor, *parameters: Tensor) -> Tensor:
        w1, b1, slopes_1, w2, b2, slopes_2, w3, b3 = parameters
        ctx.channels, ctx.outputs = x.shape[1], len(b3)
        packed = [_pack(dtype, w1, inputs=PADDED), _pack(dtype, w2), _pack(dtype, w3, outputs=PADDED)]
        levels = [_channels_last(x, dtype)]
        levels.append(_convolve(levels[-1], packed[0], b1))
        levels.append(_convolve(levels[-1], packed[1], b2, slopes_1))
        last = _convolve(levels[-1], packed[2], torch.nn.functional.pad(b3, (0, PADDED - len(b3))), slopes_2)
        ctx.save_for_backward(*packed, *levels, slopes_1, slopes_2)
        return last[..., : len(b3)].permute(0, 3, 1, 2).float()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        p1, p2, p3, x, t1, t2, slopes_1, slopes_2 = ctx.saved_tensors
        d3 = _channels_last(d, x.dtype)
        d2, b2, s2 = _convolve_back(d3, p3, t2, slopes_2)
        d1, b1, s1 = _convolve_back(d2, p2, t1, slopes_1)
        w3 = _weight_gradient(t2, d3, slopes_2)[: ctx.outputs]
        w2, w1 = _weight_gradient(t1, d2, slopes_1), _weight_gradient(x, d1)[:, : ctx.channels]
        dx = _convolve_back(d1, p1, x)[0][..., : ctx.channels].permute(0, 3, 1, 2).float() if ctx.needs_input_grad[1] else None
        return None, dx, w1, b1, s1, w2, b2, s2, w3, d.sum((0, 2, 3))


class _ToOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weights: Tensor, squared: bool) -> Tensor:
        ctx.squared = squared
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        ctx.save_for_backward(inputs, weights)
        return _to_one(inputs, weights.flatten(2).transpose(1, 2).float().contiguous(), squared)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, None]:
        from bdgd.models import kernels

        inputs, weights = ctx.saved_tensors
        assert len(weights) == 1, "weights of each image's own are for inference"
        taps = torch.nn.functional.pad(weights[0].flatten(1).float(), (0, 7)).T.contiguous()  # (16, C)
        back, sums = torch.empty_like(inputs), _new(d, torch.float32, SPLITS, inputs.shape[3], 16)
        sizes, options = _over_all(inputs, ONE_GRADIENT)
        kernels.to_one_gradient[(SPLITS,)](
            inputs, d.float().contiguous(), taps, back, sums, *sizes, C=inputs.shape[3], SQUARED=ctx.squared, **options
        )
        return back.permute(0, 3, 1, 2), sums.sum(0)[:, :9].reshape(weights.shape).to(weights.dtype), None


def _convolve_pair(x: Tensor, gradient: Tensor, weights: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The first level (B, H, W, 32) of two images (B, 1, H, W) with weights (9, 32)."""
    from bdgd.models import kernels

    batch, _, height, width = x.shape
    outputs = _new(x, dtype, batch, height, width, 32)
    grid, options = _image_by_image(outputs, PAIR)
    kernels.convolve_pair[grid](x, gradient, weights, bias, outputs, height, width, C=16, **options)
    return outputs


def _convolve(inputs: Tensor, weights: Tensor, bias: Tensor, slopes: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """The next level: (B, H, W, CI), through a PReLU with `slopes` first, with weights (9, CI, CO) -> (B, H, W, CO)."""
    from bdgd.models import kernels

    _, ci, co = weights.shape
    outputs = _new(inputs, inputs.dtype, *inputs.shape[:3], co)
    grid, options = _image_by_image(inputs, CONVOLVE)
    kernels.convolve[grid](
        inputs, weights, bias, slopes, outputs, None, None, *inputs.shape[1:3],
        CI=ci, CO=co, TRANSPOSED=False, RELU=relu, PRELU=slopes is not None, **options,
    )  # fmt: skip
    return outputs


def _convolve_back(
    d: Tensor, weights: Tensor, below: Tensor, slopes: Tensor | None = None, *, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the level below (B, H, W, CI) through its ReLU or PReLU, and the sums over all pixels that its bias and slopes get."""
    from bdgd.models import kernels

    _, ci, co = weights.shape
    outputs, (grid, options) = torch.empty_like(below), _image_by_image(d, CONVOLVE)
    sums, slope_sums = (_new(d, torch.float32, grid[0] * grid[1], ci) for _ in range(2))
    kernels.convolve[grid](
        d, weights, below, slopes, outputs, sums, slope_sums, *d.shape[1:3],
        CI=co, CO=ci, TRANSPOSED=True, RELU=relu, PRELU=slopes is not None, **options,
    )  # fmt: skip
    return outputs, sums.sum(0), slope_sums.sum(0)


def _weight_gradient(inputs: Tensor, d: Tensor, slopes: Tensor | None = None) -> Tensor:
    """Gradient (CO, CI, 3, 3) from a level (B, H, W, CI) and the gradient above it (B, H, W, CO); the thinner of the two is moved."""
    from bdgd.models import kernels

    ci, co = inputs.shape[3], d.shape[3]
    move_inputs, prelu = ci <= co, slopes is not None
    moved, fixed = (inputs, d) if move_inputs else (d, inputs)
    sums = _new(d, torch.float32, SPLITS, 9, moved.shape[3], fixed.shape[3])
    sizes, options = _over_all(inputs, CORRELATE if ci * co > 512 else CORRELATE_FEW)
    kernels.correlate[(SPLITS,)](
        moved, fixed, slopes, sums, *sizes, CM=moved.shape[3], CF=fixed.shape[3],
        PRELU_MOVED=prelu and move_inputs, PRELU_FIXED=prelu and not move_inputs, **options,
    )  # fmt: skip
    total = sums.sum(0)  # d moved by a tap is the same as the inputs moved by the opposite one
    return (total.permute(2, 1, 0) if move_inputs else total.flip(0).permute(1, 2, 0)).unflatten(2, (3, 3))


def _pair_gradient(x: Tensor, gradient: Tensor, d: Tensor) -> Tensor:
    """Gradient (32, 1, 3, 3) of the weights of the first level."""
    from bdgd.models import kernels

    sums = _new(d, torch.float32, SPLITS, 16, 32)
    sizes, options = _over_all(d, PAIR_GRADIENT)
    kernels.pair_weight_gradient[(SPLITS,)](x, gradient, d, sums, *sizes, C=16, **options)
    return sums.sum(0)[:9].T.reshape(32, 1, 3, 3)


def _input_gradient(d: Tensor, pair: Tensor, which: int) -> Tensor:
    """Gradient (B, 1, H, W) of the image (0) or of the misfit gradient (1): the transposed first level."""
    half = slice(16 * which, 16 * which + 16)
    return _to_one(d[..., half], pair[:, half].flip(0).contiguous()[None], False)


def _to_one(inputs: Tensor, weights: Tensor, squared: bool) -> Tensor:
    """(B, H, W, C), channels innermost, with weights (n, 9, C) -> (B, 1, H, W)."""
    from bdgd.models import kernels

    batch, height, width, channels = inputs.shape
    outputs = _new(inputs, torch.float32, batch, 1, height, width)
    grid, options = _image_by_image(inputs, ONE)
    stride = 0 if len(weights) == 1 else 9 * channels
    kernels.to_one[grid](inputs, weights, outputs, stride, height, width, STRIDE=inputs.stride(2), C=channels, SQUARED=squared, **options)
    return outputs


def _pack(dtype: torch.dtype, *blocks: Tensor, inputs: int = 0, outputs: int = 0) -> Tensor:
    """Weights (CO, CI, 3, 3) as (9, CI, CO) in `dtype`, several as blocks on the diagonal of one, with zeros up to `inputs` x `outputs`."""
    needed = sum(block.shape[1] for block in blocks), sum(block.shape[0] for block in blocks)
    shape = (9, inputs or needed[0], outputs or needed[1])
    packed = (torch.empty if shape[1:] == blocks[0].shape[1::-1] else torch.zeros)(shape, device=blocks[0].device, dtype=dtype)
    i = o = 0
    for block in blocks:
        packed[:, i : i + block.shape[1], o : o + block.shape[0]] = block.flatten(2).permute(2, 1, 0)
        i, o = i + block.shape[1], o + block.shape[0]
    return packed


def _channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) as (B, H, W, PADDED), zeros beyond C."""
    batch, channels, height, width = x.shape
    padded = torch.zeros(batch, height, width, PADDED, device=x.device, dtype=dtype)
    padded[..., :channels] = x.permute(0, 2, 3, 1)
    return padded


def _image_by_image(like: Tensor, tuning: Tuning) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid (tiles of an image, images) and options of a kernel over the pixels of (B, H, W, C)."""
    pixels, warps, stages = tuning
    batch, height, width, _ = like.shape
    return (-(-height * width // pixels), batch), {"PIXELS": pixels, "num_warps": warps, "num_stages": stages}


def _over_all(like: Tensor, tuning: Tuning) -> tuple[tuple[int, int, int, int], dict[str, int]]:
    """Tiles in all, tiles of an image, height and width; and options of a kernel that sums over all pixels of (B, H, W, C)."""
    (per_image, batch), options = _image_by_image(like, tuning)
    return (batch * per_image, per_image, like.shape[1], like.shape[2]), options


def _new(like: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, device=like.device, dtype=dtype)
