"""Noise of a measurement: frozen values that turn a clean sinogram into a noisy one.

Each is called as `noise(clean, generator=g)` with clean (B, ...). Random numbers are drawn on the generator's device, image
after image: with a CPU generator the noise is the same on every device, and does not depend on how the images were batched.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from bdgd.checks import InputError, require_finite, require_number, require_positive

#: Photons in one ray: beyond it float64 has no number for every count, and a GPU draws counts of 32 bits.
_MOST_COUNTS, _MOST_ON_GPU = 2.0**53, 2.0**31


class Noise(Protocol):
    """What `simulate` needs of a noise; `to_dict` is how it is kept beside the data."""

    def __call__(self, clean: Tensor, *, generator: torch.Generator) -> Tensor: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class GaussianNoise:
    """y + relative * mean|y| * n with n standard normal, the mean taken per image: the paper's noise with 0.01."""

    relative: float = 0.01

    def __post_init__(self) -> None:
        relative = require_number(self.relative, "relative noise")
        if relative < 0:
            raise InputError(f"relative noise must be at least 0, got {relative:g}; 0.01 is one per cent of the mean")
        object.__setattr__(self, "relative", relative)

    def __call__(self, clean: Tensor, *, generator: torch.Generator) -> Tensor:
        """Noisy sinograms, shaped like `clean` (B, ...)."""
        _require_clean(clean)
        # Image by image: sums and torch.randn of a whole batch depend on the size of the batch.
        level = self.relative * torch.stack([image.contiguous().abs().double().mean() for image in clean]).to(clean.dtype)  # (B,)
        normal = [torch.randn(clean.shape[1:], generator=generator, device=generator.device, dtype=clean.dtype) for _ in clean]
        return clean + level.reshape(-1, *(1,) * (clean.ndim - 1)) * torch.stack(normal).to(clean.device)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers with the kind of noise; `noise_from_dict` reads it back."""
        return {"kind": "gaussian", **asdict(self)}


@dataclass(frozen=True)
class PoissonNoise:
    """Photon counting in transmission CT: I ~ Poisson(photons * exp(-attenuation * y)), and back to -log(I / photons) / attenuation.

    photons: expected count of a ray that meets nothing. attenuation: turns the sinogram's unit into the dimensionless -log of the
    transmission; an image in [0, 1] on 128 pixels of size 1 has integrals up to about 100, so 0.02 to 0.05 is realistic there
    and 1 would let no photon through. A ray without a single count is taken as half a count, so the largest value that
    comes out is log(2 photons) / attenuation.
    """

    photons: float
    attenuation: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "photons", require_positive(self.photons, "photons"))
        object.__setattr__(self, "attenuation", require_positive(self.attenuation, "attenuation"))

    def __call__(self, clean: Tensor, *, generator: torch.Generator) -> Tensor:
        """Noisy sinograms, shaped like `clean` (B, ...); the counts are drawn in float64, where they stay whole numbers."""
        _require_clean(clean)
        expected = self.photons * torch.exp(-self.attenuation * clean.to(device=generator.device, dtype=torch.float64))
        require_finite(expected, "the expected photon count")
        if (most := float(expected.max())) > (_MOST_COUNTS if expected.device.type == "cpu" else _MOST_ON_GPU):
            raise InputError(f"a ray would count {most:.3g} photons, more than can be drawn; take fewer, or noise=None for none of it")
        counts = torch.poisson(expected, generator=generator).clamp_min(0.5)
        noisy = -torch.log(counts / self.photons) / self.attenuation
        return noisy.to(device=clean.device, dtype=clean.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers with the kind of noise; `noise_from_dict` reads it back."""
        return {"kind": "poisson", **asdict(self)}


_KINDS: dict[str, type[GaussianNoise] | type[PoissonNoise]] = {"gaussian": GaussianNoise, "poisson": PoissonNoise}


def noise_from_dict(values: dict[str, Any]) -> GaussianNoise | PoissonNoise:
    """The noise that `to_dict` described; an unknown or missing key is an error."""
    values = dict(values)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"a noise needs kind = 'gaussian' or 'poisson', got {kind!r}")
    known = [field.name for field in fields(_KINDS[kind])]
    if unknown := sorted(set(values) - set(known)):
        raise InputError(f"unknown key {unknown[0]!r} in {kind} noise; known are {', '.join(known)}")
    if missing := [name for name in known[:1] if name not in values]:
        raise InputError(f"{kind} noise needs {missing[0]!r}; add it")
    return _KINDS[kind](**values)


def _require_clean(clean: Tensor) -> None:
    if not isinstance(clean, Tensor) or clean.ndim < 2 or not clean.is_floating_point():
        got = f"{clean.dtype} {tuple(clean.shape)}" if isinstance(clean, Tensor) else type(clean).__name__
        raise InputError(f"the clean sinogram must be floating point of shape (B, 1, V, D), got {got}; add the batch axis with [None]")
    require_finite(clean, "the clean sinogram")
