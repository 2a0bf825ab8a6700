"""Triton kernels of the gradient block: 3 x 3 convolutions of few channels, channels innermost, and their gradients.

A library's convolution splits a block into some forty small kernels and spends its time between them. Here each layer is one
kernel for the forward pass (convolution, bias and ReLU) and two for the backward pass, tiles of pixels go through the tensor
cores, and the concatenation of the two branches is written in place.

Activations are (B, H, W, C), contiguous; weights are packed as (9, inputs, outputs) with tap = 3 (row + 1) + column + 1.
Sums over pixels are split among programs that each write a partial sum, so results do not depend on scheduling.
Imported on first use only: Triton is slow to import and not everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inside(row, column, tap, height, width):
    """Whether the neighbour of a pixel under a tap lies in the image."""
    r, c = row + tap // 3 - 1, column + tap % 3 - 1
    return (r >= 0) & (r < height) & (c >= 0) & (c < width)


@triton.jit
def _prelu(x, slopes):
    return tl.where(x > 0, x, (x.to(tl.float32) * slopes).to(x.dtype))


@triton.jit
def convolve(
    inputs,  # (B, H, W, CI)
    weights,  # (9, CI, CO); with TRANSPOSED (9, CO, CI)
    other,  # the bias (CO,); with TRANSPOSED the level (B, H, W, CO) whose activation is differentiated
    slopes,  # with PRELU those of the activation of the inputs (CI,), or with TRANSPOSED of `other` (CO,)
    outputs,  # (B, H, W, CO)
    sums,  # with TRANSPOSED the outputs of each program summed over its pixels (B * programs per image, CO): the bias's gradient
    slope_sums,  # with TRANSPOSED and PRELU the same for the slopes
    height,
    width,
    CI: tl.constexpr,
    CO: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    RELU: tl.constexpr,
    PRELU: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """A layer: convolution + bias, with RELU then the ReLU, with PRELU of inputs that still have to go through theirs.

    With TRANSPOSED the gradient with respect to the level below, through the activation between them. ReLUs are applied when a
    level is written, PReLUs when it is read: what lies below 0 is needed for the gradient of their slopes.
    """
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // width, pixel % width
    place = tl.program_id(1).to(tl.int64) * height * width + pixel
    ci, co = tl.arange(0, CI), tl.arange(0, CO)
    here = inputs + place[:, None] * CI + ci[None, :]
    tile = weights + (co[:, None] * CI + ci[None, :] if TRANSPOSED else ci[:, None] * CO + co[None, :])
    total = tl.zeros((PIXELS, CO), tl.float32)
    for tap in tl.range(9):
        shift = (tap // 3 - 1) * width + tap % 3 - 1
        x = tl.load(here + shift * CI, mask=_inside(row, column, tap, height, width)[:, None], other=0.0)
        if PRELU and not TRANSPOSED:
            x = _prelu(x, tl.load(slopes + ci)[None, :])
        w = tl.trans(tl.load(tile + (8 - tap) * (CI * CO))) if TRANSPOSED else tl.load(tile + tap * (CI * CO))
        total = tl.dot(x, w, total, input_precision="ieee")
    there, valid = place[:, None] * CO + co[None, :], (row < height)[:, None]
    if TRANSPOSED:
        if RELU or PRELU:
            level = tl.load(other + there, mask=valid, other=0.0).to(tl.float32)
            total = tl.where(valid, total, 0.0)
            program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
            if PRELU:
                tl.store(slope_sums + program * CO + co, tl.sum(tl.where(level > 0, 0.0, total * level), 0))
                total = tl.where(level > 0, total, total * tl.load(slopes + co)[None, :])
            else:
                total = tl.where(level > 0, total, 0.0)
            tl.store(sums + program * CO + co, tl.sum(total, 0))
    else:
        total += tl.load(other + co)[None, :]
        if RELU:
            total = tl.maximum(total, 0.0)
    tl.store(outputs + there, total.to(outputs.dtype.element_ty), mask=valid)


@triton.jit
def correlate(
    moved,  # (B, H, W, CM)
    fixed,  # (B, H, W, CF)
    slopes,  # with PRELU of the activation that `fixed` still has to go through (CF,)
    sums,  # partial sums (splits, 9, CM, CF)
    tiles,
    tiles_per_image,
    height,
    width,
    CM: tl.constexpr,
    CF: tl.constexpr,
    PRELU: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """sum over pixels p of moved[p + tap] fixed[p]', the weight gradient of a convolution.

    Three neighbours in a row lie side by side in memory, so they are read as one (a fourth is masked) and become the rows of
    one product; three such products, one for each line, share what is read of `fixed`.
    """
    split = tl.program_id(0)
    k, cf = tl.arange(0, 4 * CM), tl.arange(0, CF)
    above, level, below = tl.zeros((4 * CM, CF), tl.float32), tl.zeros((4 * CM, CF), tl.float32), tl.zeros((4 * CM, CF), tl.float32)
    for tile in tl.range(split, tiles, tl.num_programs(0)):
        pixel = (tile % tiles_per_image) * PIXELS + tl.arange(0, PIXELS)
        row, beside = pixel // width, (pixel % width)[:, None] + (k // CM - 1)[None, :]
        place = (tile // tiles_per_image).to(tl.int64) * height * width + pixel
        f = tl.load(fixed + place[:, None] * CF + cf[None, :], mask=(row < height)[:, None], other=0.0)
        if PRELU:
            f = _prelu(f, tl.load(slopes + cf)[None, :])
        here = moved + (place - 1)[:, None] * CM + k[None, :]
        valid = (beside >= 0) & (beside < width) & (k < 3 * CM)[None, :]
        for line in tl.static_range(3):
            inside = (row + line >= 1) & (row + line <= height) & (row < height)
            m = tl.load(here + (line - 1) * width * CM, mask=valid & inside[:, None], other=0.0)
            if line == 0:
                above = tl.dot(tl.trans(m), f, above, input_precision="ieee")
            elif line == 1:
                level = tl.dot(tl.trans(m), f, level, input_precision="ieee")
            else:
                below = tl.dot(tl.trans(m), f, below, input_precision="ieee")
    to = sums + split * (9 * CM * CF) + k[:, None] * CF + cf[None, :]
    tl.store(to, above, mask=(k < 3 * CM)[:, None])
    tl.store(to + 3 * CM * CF, level, mask=(k < 3 * CM)[:, None])
    tl.store(to + 6 * CM * CF, below, mask=(k < 3 * CM)[:, None])


@triton.jit
def convolve_pair(first, second, weights, bias, outputs, height, width, C: tl.constexpr, PIXELS: tl.constexpr):
    """relu(convolution + bias) of two images (B, H, W) to C channels each, side by side: (B, H, W, 2 C); weights (9, 2 C)."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // width, pixel % width
    place = tl.program_id(1).to(tl.int64) * height * width + pixel
    c = tl.arange(0, 2 * C)
    total = tl.zeros((PIXELS, 2 * C), tl.float32) + tl.load(bias + c)[None, :]
    for tap in tl.static_range(9):
        shift = (tap // 3 - 1) * width + tap % 3 - 1
        valid = _inside(row, column, tap, height, width)
        a, b = tl.load(first + place + shift, mask=valid, other=0.0), tl.load(second + place + shift, mask=valid, other=0.0)
        total += tl.where((c < C)[None, :], a[:, None], b[:, None]).to(tl.float32) * tl.load(weights + tap * 2 * C + c)[None, :]
    to = outputs + place[:, None] * (2 * C) + c[None, :]
    tl.store(to, tl.maximum(total, 0.0).to(outputs.dtype.element_ty), mask=(row < height)[:, None])


@triton.jit
def pair_weight_gradient(first, second, gradient, weights, tiles, tiles_per_image, height, width, C: tl.constexpr, PIXELS: tl.constexpr):
    """Partial sums (splits, 16, 2 C) of the gradient of the weights of `convolve_pair`; taps 9 to 15 are padding."""
    split = tl.program_id(0)
    tap, c = tl.arange(0, 16), tl.arange(0, 2 * C)
    total_a, total_b = tl.zeros((16, 2 * C), tl.float32), tl.zeros((16, 2 * C), tl.float32)
    for tile in tl.range(split, tiles, tl.num_programs(0)):
        pixel = (tile % tiles_per_image) * PIXELS + tl.arange(0, PIXELS)
        place = (tile // tiles_per_image).to(tl.int64) * height * width + pixel
        d = tl.load(gradient + place[:, None] * (2 * C) + c[None, :], mask=(pixel < height * width)[:, None], other=0.0)
        valid = _inside((pixel // width)[:, None], (pixel % width)[:, None], tap[None, :], height, width) & (tap < 9)[None, :]
        neighbour = place[:, None] + ((tap // 3 - 1) * width + tap % 3 - 1)[None, :]
        a = tl.load(first + neighbour, mask=valid, other=0.0).to(d.dtype)
        b = tl.load(second + neighbour, mask=valid, other=0.0).to(d.dtype)
        total_a = tl.dot(tl.trans(a), d, total_a, input_precision="ieee")
        total_b = tl.dot(tl.trans(b), d, total_b, input_precision="ieee")
    to = weights + split * (16 * 2 * C) + tap[:, None] * (2 * C) + c[None, :]
    tl.store(to, tl.where((c < C)[None, :], total_a, total_b))


@triton.jit
def to_one(
    inputs,  # (B, H, W, stride), the first C channels from the pointer on
    weights,  # (n, 9, C), n = 1 or B
    outputs,  # (B, H, W), float32
    weight_stride,
    height,
    width,
    STRIDE: tl.constexpr,
    C: tl.constexpr,
    SQUARED: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Convolution to one channel, of the inputs or of their squares, each image with its own weights where there are B of them."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // width, pixel % width
    place = tl.program_id(1).to(tl.int64) * height * width + pixel
    c = tl.arange(0, C)
    total = tl.zeros((PIXELS,), tl.float32)
    for tap in tl.static_range(9):
        shift = (tap // 3 - 1) * width + tap % 3 - 1
        valid = _inside(row, column, tap, height, width)[:, None]
        x = tl.load(inputs + (place + shift)[:, None] * STRIDE + c[None, :], mask=valid, other=0.0).to(tl.float32)
        w = tl.load(weights + tl.program_id(1) * weight_stride + tap * C + c)
        total += tl.sum((x * x if SQUARED else x) * w[None, :], 1)
    tl.store(outputs + place, total, mask=row < height)


@triton.jit
def to_one_gradient(
    inputs,  # (B, H, W, C)
    gradient,  # of the output: (B, H, W), float32
    weights,  # (16, C), taps 9 to 15 zero
    outputs,  # gradient of the inputs (B, H, W, C)
    sums,  # partial sums (splits, C, 16) of the weights' gradient
    tiles,
    tiles_per_image,
    height,
    width,
    C: tl.constexpr,
    SQUARED: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Both gradients of `to_one` in one pass: D[p, tap] = gradient at the pixel that sees p under that tap; then D w and inputs' D."""
    split = tl.program_id(0)
    tap, c = tl.arange(0, 16), tl.arange(0, C)
    w = tl.load(weights + tap[:, None] * C + c[None, :])
    total = tl.zeros((C, 16), tl.float32)
    for tile in tl.range(split, tiles, tl.num_programs(0)):
        pixel = (tile % tiles_per_image) * PIXELS + tl.arange(0, PIXELS)
        place = (tile // tiles_per_image).to(tl.int64) * height * width + pixel
        seen_by = _inside((pixel // width)[:, None], (pixel % width)[:, None], 8 - tap[None, :], height, width) & (tap < 9)[None, :]
        neighbour = place[:, None] - ((tap // 3 - 1) * width + tap % 3 - 1)[None, :]
        there, valid = place[:, None] * C + c[None, :], (pixel < height * width)[:, None]
        x = tl.load(inputs + there, mask=valid, other=0.0)
        d = tl.load(gradient + neighbour, mask=seen_by, other=0.0).to(x.dtype)
        back = tl.dot(d, w.to(x.dtype), input_precision="ieee")
        if SQUARED:
            back = back * 2 * x.to(tl.float32)
            x = (x.to(tl.float32) * x.to(tl.float32)).to(x.dtype)
        tl.store(outputs + there, back.to(outputs.dtype.element_ty), mask=valid)
        total = tl.dot(tl.trans(x), d, total, input_precision="ieee")
    tl.store(sums + split * (C * 16) + c[:, None] * 16 + tap[None, :], total)
