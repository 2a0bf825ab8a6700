"""The Triton kernels compiled for a GPU on a machine that has none: what the interpreter lets pass must also be good Triton.

A compiler takes an integer argument of 1 for a plain number, so all sizes are tried as 1 too. It runs in a process of its own, since
another test may have imported the kernels for the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")

SCRIPT = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bdgd.models import kernels, launches
from bdgd.operators import ray_kernels

HOPPER = GPUTarget("cuda", 90, 32)


def compiled(kernel, sizes, constants, pointers="*fp32", floats=(), others={}, tuning=None):
    \"\"\"Compiles with so large sizes, as it is launched where it has a tuning; everything else is a pointer.\"\"\"
    pixels, warps, stages = tuning or (constants.get("PIXELS"), 4, 3)
    constants = constants | ({} if pixels is None else {"PIXELS": pixels})
    kinds, fixed = {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = constants.get(name, 1 if sizes.get(name) == 1 else None)
        if value is not None or name in constants:
            kinds[name], fixed[(place,)] = "constexpr", value
        else:
            kinds[name] = "i32" if name in sizes else "fp32" if name in floats else others.get(name, pointers)
    # Aligned as PyTorch's tensors are: only then is what is read next copied beside the work, and products left under way.
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(kernel.arg_names) if kinds[name].startswith("*")}
    options = {"num_warps": warps, "num_stages": stages}
    asm = triton.compile(ASTSource(fn=kernel, signature=kinds, constexprs=fixed, attrs=aligned), target=HOPPER, options=options).asm
    assert asm["ptx"]
    print(kernel.fn.__name__, unsafe_products(asm["ttgir"]))


def unsafe_products(code):
    \"\"\"How many products read registers and are not waited for at once: the next step of a loop may overwrite these before.\"\"\"
    lines = [line for line in code.splitlines() if "warp_group_dot" in line] + [""]
    pairs = zip(lines, lines[1:])
    return sum("isAsync" in dot and " : tensor<" in dot and "pendings = 0" not in after for dot, after in pairs)


SIZES = ("height", "width", "views", "detectors", "batch")
for size in (7, 1):
    sizes = dict.fromkeys(SIZES, size)
    compiled(ray_kernels.project, sizes, {"VIEWS": 2, "DETECTORS": 16, "IMAGES": 16})
    for fan in (False, True):
        compiled(ray_kernels.backproject, sizes, {"FAN": fan, "CANDIDATES": 3, "PIXELS": 128, "IMAGES": 16}, floats=("reach",))

for size in (7, 1):
    image, tiles = dict.fromkeys(("height", "width"), size), dict.fromkeys(("height", "width", "tiles", "tiles_per_image"), size)
    few = {"slopes": "*fp32", "sums": "*fp32", "slope_sums": "*fp32"}
    for prelu in (False, True):
        common = {"RELU": not prelu, "PRELU": prelu} | ({} if prelu else {"slopes": None})
        back, tuning = launches.CONVOLVE, launches.CONVOLVE_PRELU if prelu else launches.CONVOLVE
        for ci, co in ((16, 32), (32, 32), (32, 16)) if prelu else ((32, 64), (64, 32), (32, 16)):
            forward = common | {"CI": ci, "CO": co, "TRANSPOSED": False, "sums": None, "slope_sums": None}
            compiled(kernels.convolve, image, forward, "*bf16", others={"other": "*fp32", "slopes": "*fp32"}, tuning=tuning)
            compiled(kernels.convolve, image, common | {"CI": co, "CO": ci, "TRANSPOSED": True}, "*bf16", others=few, tuning=back)
        for cm, tuning in ((16, launches.CORRELATE_FEW), (32, launches.CORRELATE)):
            sums = {"CM": cm, "CF": 32 if prelu else 2 * cm, "PRELU": prelu} | ({} if prelu else {"slopes": None})
            compiled(kernels.correlate, tiles, sums, "*bf16", others=few, tuning=tuning)
    compiled(kernels.convolve_pair, image, {"C": 16}, others={"outputs": "*bf16"}, tuning=launches.PAIR)
    compiled(kernels.pair_weight_gradient, tiles, {"C": 16}, others={"gradient": "*bf16"}, tuning=launches.PAIR_GRADIENT)
    to_one, bfloat16 = {"STRIDE": 16, "C": 16, "SQUARED": False}, {"inputs": "*bf16", "outputs": "*bf16"}
    compiled(kernels.to_one, {**image, "weight_stride": 144}, to_one, others={"inputs": "*bf16"}, tuning=launches.ONE)
    for squared in (False, True):
        compiled(kernels.to_one_gradient, tiles, {"C": 16, "SQUARED": squared}, others=bfloat16, tuning=launches.ONE_GRADIENT)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings its assembler on Linux only")
def test_the_kernels_compile_for_a_gpu_with_all_sizes_and_keep_what_products_read() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in lines} == {
        "project", "backproject", "convolve", "correlate", "convolve_pair", "pair_weight_gradient", "to_one", "to_one_gradient",
    }  # fmt: skip
    assert {unsafe for _, unsafe in lines} == {"0"}
