"""Triton kernels of the ray transform: Joseph's weights (see `joseph`) computed where they are used, without a matrix.

A ray steps along the axis it is steepest in; at step n it crosses the other axis at start + slope * n, in pixels. Its three
numbers (start, slope, length of ray per step) are in a table; the sign of the length says the axis: positive for y, the
second index. The weight of a pixel at distance t < 1 from the crossing is (1 - t) * |length|, so the transpose can gather:
each pixel looks for the few rays of every view that pass within one pixel of it. Both kernels compute the weight from the
same three numbers in the same way, which makes them exact transposes up to the rounding of the sums.

Images are columns (H * W, B) and sinograms (V * D, B): the batch is innermost, so one weight serves all images of a tile.
Imported on first use only: Triton is slow to import and not everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def project(
    images,
    rays,
    sinograms,
    height,
    width,
    views,
    detectors,
    batch,
    VIEWS: tl.constexpr,
    DETECTORS: tl.constexpr,
    IMAGES: tl.constexpr,
):
    """Forward: VIEWS neighbouring views of DETECTORS neighbouring rays walk through nearly the same pixels together."""
    r = tl.arange(0, VIEWS * DETECTORS)
    view, detector = tl.program_id(1) * VIEWS + r // DETECTORS, tl.program_id(0) * DETECTORS + r % DETECTORS
    b = tl.program_id(2) * IMAGES + tl.arange(0, IMAGES)
    exists, wanted = (view < views) & (detector < detectors), (b < batch)[None, :]
    ray = view * detectors + detector
    start = tl.load(rays + 3 * ray, mask=exists, other=-2.0)
    slope = tl.load(rays + 3 * ray + 1, mask=exists, other=0.0)
    length = tl.load(rays + 3 * ray + 2, mask=exists, other=1.0)
    along_y = length > 0
    steps, across = tl.where(along_y, width, height), tl.where(along_y, height, width)
    step, beside = tl.where(along_y, 1, width), tl.where(along_y, width, 1)

    # Steps before the first and after the last crossing of the image by any of these rays are skipped.
    safe = tl.where(tl.abs(slope) > 1e-6, slope, 1.0)
    level = tl.abs(slope) <= 1e-6
    enters = tl.where(level, 0.0, tl.minimum((-1 - start) / safe, (across - start) / safe))
    leaves = tl.where(level, steps.to(enters.dtype), tl.maximum((-1 - start) / safe, (across - start) / safe))
    first = tl.maximum(tl.min(tl.where(exists, enters, 1e9)), 0.0).to(tl.int32)
    last = tl.minimum(tl.max(tl.where(exists, leaves, -1.0)), tl.max(steps) - 1.0).to(tl.int32)

    total = tl.zeros((VIEWS * DETECTORS, IMAGES), images.dtype.element_ty)
    for n in tl.range(first, last + 1):
        crossing = tl.fma(slope, slope * 0 + n, start)
        lower = tl.floor(crossing)
        upper_weight = crossing - lower
        pixel = tl.minimum(tl.maximum(lower, -2.0), across.to(lower.dtype)).to(tl.int32)
        inside = exists & (n < steps)
        at = images + (n * step + pixel * beside)[:, None] * batch + b[None, :]
        below = tl.load(at, mask=(inside & (pixel >= 0) & (pixel < across))[:, None] & wanted, other=0.0)
        above = tl.load(at + (beside * batch)[:, None], mask=(inside & (pixel >= -1) & (pixel < across - 1))[:, None] & wanted, other=0.0)
        total += (1 - upper_weight)[:, None] * below + upper_weight[:, None] * above
    tl.store(sinograms + ray[:, None] * batch + b[None, :], total * tl.abs(length)[:, None], mask=exists[:, None] & wanted)


@triton.jit
def backproject(
    sinograms,
    rays,
    axes,  # (V, 4): detector coordinate of a pixel = (i * a + j * b + c) / (depth as below)
    depths,  # (V, 4): depth = i * a + j * b + c, all ones for parallel rays
    images,  # (parts, H * W, B): the sum over every parts-th view
    height,
    width,
    views,
    detectors,
    batch,
    reach,
    FAN: tl.constexpr,
    CANDIDATES: tl.constexpr,
    PIXELS: tl.constexpr,
    IMAGES: tl.constexpr,
):
    """Transpose: every pixel gathers the rays within `reach` detector cells of where it is seen, at most CANDIDATES per view.

    The views are shared by the programs of the third axis of the grid, since few images alone do not fill a GPU.
    """
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    b = tl.program_id(1) * IMAGES + tl.arange(0, IMAGES)
    i, j, wanted = pixel // width, pixel % width, (b < batch)[None, :]
    total = tl.zeros((PIXELS, IMAGES), images.dtype.element_ty)
    for view in tl.range(tl.program_id(2), views, tl.num_programs(2)):
        seen = tl.load(axes + 4 * view) * i + tl.load(axes + 4 * view + 1) * j + tl.load(axes + 4 * view + 2)
        if FAN:
            seen = seen / (tl.load(depths + 4 * view) * i + tl.load(depths + 4 * view + 1) * j + tl.load(depths + 4 * view + 2))
        nearest = tl.ceil(seen + tl.load(axes + 4 * view + 3) - reach)
        nearest = tl.minimum(tl.maximum(nearest, -CANDIDATES), detectors * 1.0).to(tl.int32)  # a size of 1 is a plain number, without .to
        for k in tl.static_range(CANDIDATES):
            detector = nearest + k
            exists = (detector >= 0) & (detector < detectors) & (i < height)
            ray = view * detectors + detector
            start = tl.load(rays + 3 * ray, mask=exists, other=0.0)
            slope = tl.load(rays + 3 * ray + 1, mask=exists, other=0.0)
            length = tl.load(rays + 3 * ray + 2, mask=exists, other=0.0)
            along_y = length > 0
            distance = tl.abs(tl.fma(slope, tl.where(along_y, j, i).to(slope.dtype), start) - tl.where(along_y, i, j))
            weight = tl.maximum(1 - distance, 0.0) * tl.abs(length)
            y = tl.load(sinograms + ray[:, None] * batch + b[None, :], mask=(exists & (weight > 0))[:, None] & wanted, other=0.0)
            total += weight[:, None] * y
    part = images + tl.program_id(2).to(tl.int64) * height * width * batch
    tl.store(part + pixel[:, None] * batch + b[None, :], total, mask=(i < height)[:, None] & wanted)
