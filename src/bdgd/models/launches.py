"""Launches of the kernels of `kernels`: grids, memory for results, partial sums added up. Tensors are (B, H, W, C), contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

#: Partial sums of a weight gradient: enough programs to fill a GPU, few enough that adding them up costs nothing.
SPLITS = 132
#: Channels that few channels are padded to.
PADDED = 16
#: Pixels per program, warps and pipeline stages of each kernel, found by measurement on an H200.
Tuning = tuple[int, int, int]
CONVOLVE: Tuning = (128, 4, 3)
#: A PReLU leaves what goes into a product in registers. With more than one stage Triton before 3.7 fills them anew while the product
#: may still be under way (its issue 9433), which a GPU that does other work at the same time does not forgive.
CONVOLVE_PRELU: Tuning = (128, 4, 1)
CORRELATE: Tuning = (64, 8, 3)
CORRELATE_FEW: Tuning = (128, 4, 3)  # for no more than 32 x 16 channels
PAIR: Tuning = (128, 4, 2)
PAIR_GRADIENT: Tuning = (512, 4, 2)
ONE: Tuning = (256, 4, 2)
ONE_GRADIENT: Tuning = (128, 4, 2)


def convolve_pair(x: Tensor, gradient: Tensor, weights: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The first level (B, H, W, 32) of two images (B, 1, H, W) with weights (9, 32)."""
    from bdgd.models import kernels

    batch, _, height, width = x.shape
    outputs = _new(x, dtype, batch, height, width, 32)
    grid, options = _image_by_image(outputs, PAIR)
    kernels.convolve_pair[grid](x, gradient, weights, bias, outputs, height, width, C=16, **options)
    return outputs


def convolve(inputs: Tensor, weights: Tensor, bias: Tensor, slopes: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """The next level: (B, H, W, CI), through a PReLU with `slopes` first, with weights (9, CI, CO) -> (B, H, W, CO)."""
    from bdgd.models import kernels

    _, ci, co = weights.shape
    outputs = _new(inputs, inputs.dtype, *inputs.shape[:3], co)
    grid, options = _image_by_image(inputs, CONVOLVE if slopes is None else CONVOLVE_PRELU)
    kernels.convolve[grid](
        inputs, weights, bias, slopes, outputs, None, None, *inputs.shape[1:3],
        CI=ci, CO=co, TRANSPOSED=False, RELU=relu, PRELU=slopes is not None, **options,
    )  # fmt: skip
    return outputs


def convolve_back(d: Tensor, weights: Tensor, below: Tensor, slopes: Tensor | None = None, *, relu: bool = False) -> tuple[Tensor, Tensor]:
    """Gradient of the level below (B, H, W, CI) through its activation, and in one tensor those of what it was made with:
    of its bias with a ReLU (1, CI), of its bias and its slopes with a PReLU (2, CI), of nothing without either (0, CI)."""
    from bdgd.models import kernels

    _, ci, co = weights.shape
    outputs, (grid, options) = torch.empty_like(below), _image_by_image(d, CONVOLVE)
    prelu = slopes is not None
    sums = _new(d, torch.float32, 2 if prelu else int(relu), grid[0] * grid[1], ci)
    kernels.convolve[grid](
        d, weights, below, slopes, outputs, sums, sums[1:], *d.shape[1:3],
        CI=co, CO=ci, TRANSPOSED=True, RELU=relu, PRELU=prelu, **options,
    )  # fmt: skip
    return outputs, sums.sum(1)


def weight_gradient(inputs: Tensor, d: Tensor, slopes: Tensor | None = None) -> Tensor:
    """Gradient (CO, CI, 3, 3) from a level (B, H, W, CI) and the gradient above it (B, H, W, CO).

    The thinner of the two is moved, and of equals the gradient, so that what still goes through a PReLU, 32 channels, stays in place.
    """
    from bdgd.models import kernels

    ci, co = inputs.shape[3], d.shape[3]
    move_inputs = ci < co
    assert slopes is None or not move_inputs
    moved, fixed = (inputs, d) if move_inputs else (d, inputs)
    sums = _new(d, torch.float32, SPLITS, 9, moved.shape[3], fixed.shape[3])
    sizes, options = _over_all(inputs, CORRELATE if ci * co > 512 else CORRELATE_FEW)
    kernels.correlate[(SPLITS,)](
        moved, fixed, slopes, sums, *sizes, CM=moved.shape[3], CF=fixed.shape[3], PRELU=slopes is not None, **options
    )
    total = sums.sum(0)  # d moved by a tap is the same as the inputs moved by the opposite one
    return (total.permute(2, 1, 0) if move_inputs else total.flip(0).permute(1, 2, 0)).unflatten(2, (3, 3))


def pair_gradient(x: Tensor, gradient: Tensor, d: Tensor) -> Tensor:
    """Gradient (32, 1, 3, 3) of the weights of the first level."""
    from bdgd.models import kernels

    sums = _new(d, torch.float32, SPLITS, 16, 32)
    sizes, options = _over_all(d, PAIR_GRADIENT)
    kernels.pair_weight_gradient[(SPLITS,)](x, gradient, d, sums, *sizes, C=16, **options)
    return sums.sum(0)[:9].T.reshape(32, 1, 3, 3)


def input_gradient(d: Tensor, pair: Tensor, which: int) -> Tensor:
    """Gradient (B, 1, H, W) of the image (0) or of the misfit gradient (1): the transposed first level."""
    half = slice(16 * which, 16 * which + 16)
    return to_one(d[..., half], pair[:, half].flip(0).contiguous()[None], False)


def to_one(inputs: Tensor, weights: Tensor, squared: bool) -> Tensor:
    """(B, H, W, C), channels innermost, with weights (n, 9, C) -> (B, 1, H, W)."""
    from bdgd.models import kernels

    batch, height, width, channels = inputs.shape
    outputs = _new(inputs, torch.float32, batch, 1, height, width)
    grid, options = _image_by_image(inputs, ONE)
    stride = 0 if len(weights) == 1 else 9 * channels
    kernels.to_one[grid](inputs, weights, outputs, stride, height, width, STRIDE=inputs.stride(2), C=channels, SQUARED=squared, **options)
    return outputs


def to_one_gradients(inputs: Tensor, d: Tensor, weights: Tensor, squared: bool) -> tuple[Tensor, Tensor]:
    """Gradients of `to_one`: of the inputs (B, H, W, C), and of one set of weights (C, 3, 3) as (C, 9)."""
    from bdgd.models import kernels

    taps = torch.nn.functional.pad(weights.flatten(1).float(), (0, 7)).T.contiguous()  # (16, C)
    back, sums = torch.empty_like(inputs), _new(d, torch.float32, SPLITS, inputs.shape[3], 16)
    sizes, options = _over_all(inputs, ONE_GRADIENT)
    kernels.to_one_gradient[(SPLITS,)](
        inputs, d.float().contiguous(), taps, back, sums, *sizes, C=inputs.shape[3], SQUARED=squared, **options
    )
    return back, sums.sum(0)[:, :9]


def pack(dtype: torch.dtype, *blocks: Tensor, inputs: int = 0, outputs: int = 0) -> Tensor:
    """Weights (CO, CI, 3, 3) as (9, CI, CO) in `dtype`, several as blocks on the diagonal of one, with zeros up to `inputs` x `outputs`."""
    needed = sum(block.shape[1] for block in blocks), sum(block.shape[0] for block in blocks)
    shape = (9, inputs or needed[0], outputs or needed[1])
    packed = (torch.empty if shape[1:] == blocks[0].shape[1::-1] else torch.zeros)(shape, device=blocks[0].device, dtype=dtype)
    i = o = 0
    for block in blocks:
        packed[:, i : i + block.shape[1], o : o + block.shape[0]] = block.flatten(2).permute(2, 1, 0)
        i, o = i + block.shape[1], o + block.shape[0]
    return packed


def channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
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
