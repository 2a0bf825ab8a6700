"""`bdgd doctor`: what is installed here, what is live and why, and whether it is right."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import typer
from torch import Tensor

import bdgd
from bdgd.apps.console import FAILED, Output
from bdgd.apps.options import Device, choose_device
from bdgd.apps.provenance import hardware, version_of
from bdgd.classical import fbp
from bdgd.data import disc
from bdgd.evaluation.timing import synchronise
from bdgd.operators import FanBeam, Geometry, ParallelBeam, RayTransform, adjoint_mismatch

#: Geometries whose projector is examined, each with a batch that keeps a device busy.
PROJECTORS: dict[str, tuple[Geometry, int]] = {
    "128 x 128, 30 views (the paper's)": (ParallelBeam.sparse(), 64),
    "512 x 512, 360 views": (ParallelBeam.sparse(image_size=512, views=360), 4),
}
PACKAGES = ("torch", "numpy", "scipy", "h5py", "scikit-image", "matplotlib")
MOST_MISMATCH = 1e-5  # of the adjoint in float32
MOST_SCALE_ERROR = 0.01  # of the inside of a disc


@dataclass(frozen=True)
class Finding:
    """One line of the table; `good` is None for what is neither right nor wrong."""

    name: str
    value: str
    good: bool | None = True


def doctor(out: Output, device: Device = "auto") -> None:
    """Say what is installed, which device and projector are live and why, and check them."""
    where = choose_device(device)
    out.say(f"bdgd doctor on {hardware(where)}")
    findings = [*_versions(), *_devices(where)]
    with out.progress("checking", 2 + 3 * len(PROJECTORS)) as step:
        for finding in _checks(where):
            findings.append(finding)
            step(figure=finding.name)
    out.table(("", "", ""), [("" if f.good is None else out.mark(f.good), f.name, f.value) for f in findings])
    wrong = [finding for finding in findings if finding.good is False]
    if wrong:
        out.say(f"{len(wrong)} of {len(findings)} lines are wrong, first: {wrong[0].name}: {wrong[0].value}.")
        raise typer.Exit(FAILED)
    out.say("All is well.")


def _checks(where: torch.device) -> Iterator[Finding]:
    """What is computed and compared; a check that breaks off is a finding too."""
    for examined in (_fbp_scale(where), *(_projector(name, *PROJECTORS[name], where) for name in PROJECTORS)):
        try:
            yield from examined
        except Exception as error:
            yield Finding("a check broke off", f"{type(error).__name__}: {' '.join(str(error).split())}", False)


def _versions() -> Iterator[Finding]:
    yield Finding("Python", platform.python_version())
    yield Finding("bdgd", f"{bdgd.__version__} in {Path(bdgd.__file__).parent}")
    for name in PACKAGES:
        version = version_of(name)
        yield Finding(name, version or f"not installed; pip install {name}", version is not None)
    if triton := version_of("triton"):
        yield Finding("triton", triton)


def _devices(where: torch.device) -> Iterator[Finding]:
    yield Finding("CPU", f"{hardware('cpu')}, PyTorch uses {torch.get_num_threads()}")
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory
        yield Finding(f"GPU {index}", f"{torch.cuda.get_device_name(index)}, {memory / 2**30:.0f} GiB")
    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"PyTorch is built for CUDA {built}, but sees no device" if built else "this PyTorch is a CPU build"
        yield Finding("GPU", f"none: {reason}", None)
    yield Finding("live device", str(where))


def _fbp_scale(where: torch.device) -> Iterator[Finding]:
    """Whether a disc of value 1 comes back as 1 inside."""
    circle = tuple(math.radians(degree + 0.5) for degree in range(360))
    fan = FanBeam(image_size=(128, 128), angles=circle, detectors=261, detector_spacing=1.5, source_to_axis=300, source_to_detector=500)
    for name, geometry in (("parallel", ParallelBeam.sparse(views=180)), ("fan", fan)):
        A = RayTransform(geometry, where)
        inside = disc(128, 32).to(where) > 0.5
        value = float(fbp(A, A(disc(128, 40).to(where)))[inside].mean())
        yield Finding(f"FBP scale, {name}", f"a disc of value 1 comes back as {value:.4f}", abs(value - 1) <= MOST_SCALE_ERROR)


def _projector(name: str, geometry: Geometry, batch: int, where: torch.device) -> Iterator[Finding]:
    """Strategy, transpose and speed of the ray transform of one geometry."""
    start = time.perf_counter()
    A = RayTransform(geometry, where)
    synchronise(where)
    seconds = time.perf_counter() - start
    yield Finding(f"projector, {name}", f"{A.strategy}, because {A.strategy_reason}; built in {seconds:.2g} s")
    mismatch = adjoint_mismatch(A, trials=1)
    yield Finding("- adjoint mismatch", f"{mismatch:.1e}, at most {MOST_MISMATCH:g} in float32", mismatch < MOST_MISMATCH)
    x = torch.rand((batch, *A.domain_shape), generator=torch.Generator().manual_seed(0)).to(where)
    y = A(x)
    forward, adjoint = (_rate(operation, operand) for operation, operand in ((A, x), (A.T, y)))
    yield Finding("- images per second", f"{forward:,.0f} forward, {adjoint:,.0f} adjoint, {batch} at a time")


def _rate(operation: Callable[[Tensor], Tensor], batch: Tensor, seconds: float = 0.3) -> float:
    """Images per second, over as many calls as fit into `seconds`, at least one."""
    operation(batch)  # the first call may still prepare something
    synchronise(batch.device)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < seconds:
        operation(batch)
        synchronise(batch.device)
        calls += 1
    return calls * len(batch) / (time.perf_counter() - start)
