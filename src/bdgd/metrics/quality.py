"""Image quality against the truth: one number per image, with an explicit data range."""

from __future__ import annotations

import torch
from torch import Tensor

from bdgd.checks import InputError, require_batch, require_finite, require_positive

#: A true value above this, in multiples of the image's unit, is object; all else is background, where most reconstructions are exact.
OBJECT = 1e-6

_WINDOW = 7  # pixels: the side of SSIM's window, scikit-image's default


def psnr(estimate: Tensor, truth: Tensor, data_range: float = 1.0) -> Tensor:
    """(B,) peak signal-to-noise ratio in dB, 10 log10(data_range^2 / mean((estimate - truth)^2)); infinite for an exact match.

    estimate and truth (B, 1, H, W); the mean is over one image, in float64.
    """
    _require_pair(estimate, truth)
    error = (estimate.double() - truth.double()).square().flatten(1).mean(1)
    return 10 * torch.log10(require_positive(data_range, "data_range") ** 2 / error)


def mean_psnr(estimate: Tensor, truth: Tensor, data_range: float = 1.0) -> float:
    """The mean of `psnr` over the images that are not matched exactly, as an empty one is by nothing; infinite where all are."""
    values = psnr(estimate, truth, data_range)
    finite = values[values.isfinite()]
    return float(finite.mean()) if len(finite) else float("inf")


def ssim(estimate: Tensor, truth: Tensor, data_range: float = 1.0) -> Tensor:
    """(B,) structural similarity, 1 for an exact match: scikit-image's, with its uniform 7 x 7 window, in float64.

    estimate and truth (B, 1, H, W), each side at least 7 pixels. Computed on the CPU, returned on the estimate's device.
    """
    from skimage.metrics import structural_similarity

    _require_pair(estimate, truth)
    data_range = require_positive(data_range, "data_range")
    height, width = truth.shape[2:]
    if min(height, width) < _WINDOW:
        raise InputError(f"SSIM needs images of at least {_WINDOW} x {_WINDOW} pixels, got {height} x {width}; use psnr for smaller ones")
    pairs = zip(estimate.detach().double().cpu().numpy(), truth.detach().double().cpu().numpy(), strict=True)
    values = [structural_similarity(t[0], e[0], data_range=data_range, win_size=_WINDOW) for e, t in pairs]
    return torch.tensor(values, dtype=torch.float64, device=estimate.device)


def _require_pair(estimate: Tensor, truth: Tensor) -> None:
    if not isinstance(truth, Tensor):
        raise InputError(f"truth must be a torch tensor of shape (B, 1, H, W), got {type(truth).__name__}; convert it with torch.as_tensor")
    if truth.ndim != 4 or truth.shape[1] != 1:
        remedy = {2: "[None, None]", 3: "[None]" if truth.shape[0] == 1 else "[:, None]"}.get(truth.ndim)
        add = f"add axes with {remedy}" if remedy else "score one channel at a time"
        raise InputError(f"truth must be images of shape (B, 1, H, W), got {tuple(truth.shape)}; {add}")
    require_batch(truth, truth.shape[1:], "truth")
    require_batch(estimate, truth.shape[1:], "estimate")
    if len(estimate) != len(truth):
        raise InputError(f"estimate and truth must be pairs, got {len(estimate)} and {len(truth)} images; repeat one of them with .expand")
    if estimate.device != truth.device:
        raise InputError(f"estimate is on {estimate.device}, truth on {truth.device}; move one with .to")
    require_finite(estimate, "estimate")
    require_finite(truth, "truth")
