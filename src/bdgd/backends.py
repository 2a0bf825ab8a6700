"""What makes a device fast, or exact: bfloat16 in training, float32 where it is asked for, memory that is kept, and kernels in Triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ExactConvolutions(TorchFunctionMode):
    """Inside, in this thread, float32 convolutions on a GPU are just that; by PyTorch's default they round what goes in to TF32's 10 bits.

    PyTorch's own setting is one for all threads, and cannot be brought back to what it was in every case.
    """

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return (_exact_conv2d if func is F.conv2d else func)(*args, **(kwargs or {}))


def _exact_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """`F.conv2d` by the function behind it, which is told whether TF32 is allowed; single images and paddings in words are left alone."""
    if x.ndim != 4 or isinstance(padding, str):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    stride, padding, dilation = ((size, size) if isinstance(size, int) else size for size in (stride, padding, dilation))
    cudnn, deterministic = torch.backends.cudnn, torch.are_deterministic_algorithms_enabled()
    how = (cudnn.benchmark, cudnn.deterministic or deterministic, cudnn.enabled)
    return torch._convolution(x, weight, bias, stride, padding, dilation, False, (0, 0), groups, *how, allow_tf32=False)


def fast_convolutions(device: torch.device, *, round_images: bool = False) -> torch.autocast:
    """For training: bfloat16 inside convolutions as `training_precision` has it; operator and loss keep their precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=training_precision(device, round_images=round_images) == torch.bfloat16)


def training_precision(device: torch.device, *, round_images: bool = False) -> torch.dtype:
    """Of the convolutions in training: bfloat16 where that is faster.

    round_images: every update of the network goes from image to image, as in learned primal-dual, so that bfloat16 rounds them
    all. Its kernels on a GPU are worth that; on a CPU it stays in float32.
    """
    fast = device.type == "cuda" if round_images else prefers_bfloat16(device)
    return torch.bfloat16 if fast else torch.float32


def prefers_bfloat16(device: torch.device) -> bool:
    """Whether convolutions are faster in bfloat16 than in float32: on a GPU, and on a CPU that has instructions for it."""
    return device.type == "cuda" or (device.type == "cpu" and _cpu_has_bfloat16())


@cache
def _cpu_has_bfloat16() -> bool:
    """Without its instructions a CPU emulates bfloat16, slowly. PyTorch 2.11 has no public name for this question."""
    asked = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(supported() for supported in asked if supported is not None)


def expect_tensors(device: torch.device) -> None:
    """To be called before tensors of some MB are made and dropped over and over on a CPU: glibc then keeps their memory.

    It gives freed memory back to the system beyond twice the largest block, of up to 32 MB, that it has seen freed, and pages that
    the system hands out have to be cleared one by one. So one block of that size is made and dropped, without being touched.
    """
    if device.type == "cpu":
        torch.empty(31 << 20, dtype=torch.uint8)


def triton_works(device: torch.device) -> bool:
    """Whether this is a GPU on which a Triton kernel compiles and runs; found out once."""
    return device.type == "cuda" and _probe(device.index or 0)


@cache
def _probe(index: int) -> bool:
    """Old GPUs lack bfloat16, and Triton needs a C compiler: what fails here would fail later in the middle of the work."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(index) < (8, 0):
        return False
    try:
        return _adds_one(torch.device("cuda", index))
    except Exception:  # whatever the reason, there is a way without Triton
        return False


def _adds_one(device: torch.device) -> bool:
    """Whether the smallest kernel does what it says. Triton is slow to import, so it is imported here."""
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(values, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
        place = values + tl.arange(0, COUNT)
        tl.store(place, tl.load(place) + 1)

    values = torch.zeros(16, device=device)
    add_one[(1,)](values, COUNT=16)
    return bool((values == 1).all())
