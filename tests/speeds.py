"""Sizes and numbers of the benchmark that take no time."""

from __future__ import annotations

import torch
from torch import Tensor

from bdgd.evaluation import speed
from bdgd.evaluation.speed import peers

TINY = speed.Sizes(
    size=16,
    images=(1, 2),
    draws=(2, 4),
    blocks=(1, 2),
    trained_blocks=(1, 2),
    trained_images=16,
    trained_epochs=1,
    sides=(16, 32),
    views=(3, 6),
    projected=2,
    together=1,
    fixed=1,
)


def tiny_data(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Images, gradients and truths, each (32, 1, 16, 16)."""
    generator = torch.Generator().manual_seed(0)
    x, gradient, truth = (torch.rand(32, 1, 16, 16, generator=generator).to(device) for _ in range(3))
    return x, gradient, truth


def measured_parts(faster: float, *, astra_gpu: bool = True) -> speed.Parts:
    """Parts of a GPU run in which everything is `faster` times a peer's rate."""
    base = {"default": True, "mismatch": 1e-7, "memory": 1e6, "by": "bdgd, matrix"}
    rows = []
    for size, views, images in ((128, 30, 16), (128, 30, 64), (512, 360, 16)):
        case = {"size": size, "views": views, "images": images}
        rows.append(base | case | {"forward": faster, "adjoint": faster})
        peer = {"default": False, "by": peers.ASTRA_GPU, "mismatch": 1e-4, "note": ""}
        rows.append(
            peer | case | ({"forward": 1.0, "adjoint": 1.0} if astra_gpu else {"forward": None, "adjoint": None, "note": "missing: no"})
        )
    for size, views in ((128, 30), (512, 360)):
        cpu = {"by": peers.ASTRA_CPU, "default": False, "note": "per image", "images": 1, "mismatch": 0.0}
        rows.append(cpu | {"size": size, "views": views, "forward": 1.0, "adjoint": 1.0})
    training = [
        {"batch": b, "by": by, "rate": r, "memory": 1} for b in (128, 32) for by, r in (("plain eager loop", 1.0), ("bdgd", faster))
    ]
    growth = [
        {"what": "sampling", "against": a, "measured": "seconds", "slope": 1.0, "points": [(1, 1.0), (2, 2.0)]}
        for a in ("images", "draws", "blocks")
    ]
    memory = [{"what": "greedy training", "against": "blocks", "measured": "bytes", "slope": 0.0, "points": [(1, 1.0), (2, 1.0)]}]
    return {
        "projector": {"rows": rows},
        "training": {"rows": training, "curve": {"difference": 0.002, "steps": 50}},
        "sampling": {"row": {"images": 101, "draws": 100, "blocks": 10, "seconds": 1.0, "memory": 1}},
        "growth": {"rows": growth + memory},
        "quality": {"recipe": "", "cold": 40.0, "warm": 24.0, "validation_psnr": 45.0, "ellipses_psnr": 45.0, "shepp_logan_psnr": 48.0},
    }
