"""The Triton kernels compiled for a GPU on a machine that has none: what the interpreter lets pass must also be good Triton.

What is launched is compiled as it would be for these tensors: a compiler takes an integer argument of 1 for a plain number, and reads
in larger pieces where addresses and sizes are multiples of 16. It runs in a process of its own, since another test may have imported
the kernels for the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")

SCRIPT = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bdgd.models import GradientBlock, fused, kernels
from bdgd.models.primal_dual import _update
from bdgd.operators import FanBeam, ParallelBeam, ray_kernels
from bdgd.operators.on_the_fly import OnTheFly

HOPPER = GPUTarget("cuda", 90, 32)
KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
done = set()


class Compiled:
    \"\"\"In place of a kernel: whoever launches it compiles it, once for each kind of arguments, and nothing runs.\"\"\"

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, num_warps=4, num_stages=3, **named):
        values = dict(zip(self.kernel.arg_names, arguments)) | named
        signature, constants, multiples = {}, {}, {}
        for parameter in self.kernel.params:
            place, value = (parameter.num,), values[parameter.name]
            if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[parameter.name], constants[place] = "constexpr", value
            else:
                signature[parameter.name] = KINDS[value.dtype] if torch.is_tensor(value) else "fp32" if isinstance(value, float) else "i32"
                number = value.data_ptr() if torch.is_tensor(value) else value
                if isinstance(number, int) and number % 16 == 0:
                    multiples[place] = [["tt.divisibility", 16]]
        kind = (self.kernel.fn.__name__, num_warps, num_stages, str(signature), str(constants), str(multiples))
        if kind not in done:
            source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=multiples)
            options = {"num_warps": num_warps, "num_stages": num_stages}
            print(kind[0], unsafe_products(triton.compile(source, target=HOPPER, options=options).asm["ttgir"]))
            done.add(kind)


def unsafe_products(code):
    \"\"\"How many products read registers and are not waited for at once: the next step of a loop may overwrite these before.\"\"\"
    lines = [line for line in code.splitlines() if "warp_group_dot" in line] + [""]
    return sum("isAsync" in dot and " : tensor<" in dot and "pendings = 0" not in after for dot, after in zip(lines, lines[1:]))


def differentiated(function, *inputs):
    outputs = function(*inputs)
    torch.autograd.grad(outputs, inputs, torch.randn_like(outputs))


for module, names in (
    (kernels, ("convolve", "correlate", "convolve_pair", "pair_weight_gradient", "to_one", "to_one_gradient")),
    (ray_kernels, ("project", "backproject")),
):
    for name in names:
        setattr(module, name, Compiled(getattr(module, name)))

for size in ((16, 32), (9, 11), (1, 1)):
    block, update = GradientBlock("mean_field"), _update(7, 5)
    layers = (*block.image_branch, *block.gradient_branch, *block.merge)
    x, gradient, memories = (torch.randn(2, channels, *size, requires_grad=True) for channels in (1, 1, 7))
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    differentiated(lambda x, gradient, *parameters: fused.features(x, gradient, parameters), x, gradient, *parameters)
    differentiated(lambda memories, *parameters: fused.stack(memories, parameters), memories, *update.parameters())
    seen = torch.randn(2, 16, *size, dtype=torch.bfloat16, requires_grad=True)
    for squared in (False, True):
        differentiated(lambda seen, weight: fused.convolve_to_one(seen, weight, squared), seen, block.last.weight)
    fused.convolve_to_one(seen, torch.randn(2, 16, 3, 3))

for geometry in (
    ParallelBeam.sparse(image_size=16, views=5),
    ParallelBeam(image_size=1, angles=[0.5], detectors=1),
    FanBeam(image_size=(9, 11), angles=[0, 1], detectors=7, source_to_axis=20.0, source_to_detector=33.0),
):
    rays = OnTheFly(geometry, torch.device("cpu"), torch.float32)
    for batch in (1, 2, 4, 16):
        rays.transpose(rays.forward(torch.randn(geometry.image_size[0] * geometry.image_size[1], batch)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings its assembler on Linux only")
def test_the_kernels_compile_for_a_gpu_as_they_are_launched_and_keep_what_products_read() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in lines} == {
        "project", "backproject", "convolve", "correlate", "convolve_pair", "pair_weight_gradient", "to_one", "to_one_gradient",
    }  # fmt: skip
    assert {unsafe for _, unsafe in lines} == {"0"}
