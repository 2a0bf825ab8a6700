"""The projectors of other packages behind one interface, for measurements only. A peer that cannot be used here says why.

Each is called as its own documents say, with its own detector where it has no choice: times compare, arrays need not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdgd.operators import LinearOperator, ParallelBeam

Map = Callable[[Tensor], Tensor]


class Peer(LinearOperator):
    """A peer's forward projection and its own adjoint as a linear operator, so that the same adjoint test judges all."""

    def __init__(self, name: str, domain: tuple[int, ...], range_: tuple[int, ...], forward: Map, adjoint: Map, device: torch.device):
        super().__init__(domain, range_, device)
        self.name, self._forward, self._backward = name, forward, adjoint

    def _apply(self, x: Tensor) -> Tensor:
        return self._forward(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._backward(y)


class Missing(Exception):
    """A peer cannot be used here; the message says why."""


Maker = Callable[[ParallelBeam, torch.device, int], Peer]


def make_peer(name: str, geometry: ParallelBeam, device: torch.device, images: int = 1) -> Peer:
    """The peer of that name for a geometry, for batches of `images` where it must know; raises `Missing` where it cannot be used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = PEERS[name](geometry, device, images)
            peer(torch.zeros(images if name == ASTRA_GPU else 1, *peer.domain_shape, device=peer.device))
            return peer
    except Missing:
        raise
    except Exception as error:  # whatever is wrong with it, the benchmark goes on without
        raise Missing(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}") from error


def _astra_cpu(geometry: ParallelBeam, device: torch.device, images: int) -> Peer:
    """ASTRA's 'linear' projector, image by image, as its interface for CPUs has it."""
    import astra

    h, w = geometry.image_size
    beam = astra.create_proj_geom("parallel", geometry.detector_spacing, geometry.detectors, np.array(geometry.angles))
    projector = astra.create_projector("linear", beam, astra.create_vol_geom(w, h))

    def through(algorithm: Any) -> Map:
        def apply(batch: Tensor) -> Tensor:
            results = []
            for item in batch[:, 0].numpy():
                number, result = algorithm(item, projector)
                astra.data2d.delete(number)
                results.append(torch.from_numpy(np.array(result)))
            return torch.stack(results)[:, None]

        return apply

    sizes = (1, w, h), (1, geometry.views, geometry.detectors)
    return Peer(ASTRA_CPU, *sizes, through(astra.create_sino), through(astra.create_backprojection), torch.device("cpu"))


def _astra_gpu(geometry: ParallelBeam, device: torch.device, images: int) -> Peer:
    """ASTRA's 3D projector on a stack of slices, which are the images of the batch: tensors on the GPU, without a copy."""
    if device.type != "cuda":
        raise Missing("there is no GPU here")
    import astra
    import astra.experimental

    h, w = geometry.image_size
    angles = np.array(geometry.angles)
    astra.set_gpu_index(device.index or 0)
    beam = astra.create_proj_geom("parallel3d", geometry.detector_spacing, 1.0, images, geometry.detectors, angles)
    projector = astra.create_projector("cuda3d", beam, astra.create_vol_geom(w, h, images))

    def forward(x: Tensor) -> Tensor:
        y = torch.empty(images, geometry.views, geometry.detectors, device=x.device)
        _direct(astra.experimental.direct_FP3D, projector, x[:, 0].contiguous(), y)
        return y[:, None]

    def adjoint(y: Tensor) -> Tensor:
        x = torch.empty(images, w, h, device=y.device)
        _direct(astra.experimental.direct_BP3D, projector, x, y[:, 0].contiguous())
        return x[:, None]

    return Peer(ASTRA_GPU, (1, w, h), (1, geometry.views, geometry.detectors), forward, adjoint, device)


def _direct(function: Any, projector: int, volume: Tensor, sinograms: Tensor) -> None:
    """Run ASTRA on two tensors (slices, ...): as they are, or as links to their memory where its version is older."""
    torch.cuda.current_stream(volume.device).synchronize()  # ASTRA has a stream of its own
    try:
        function(projector, volume, sinograms)
    except Exception:  # what it raises has changed from version to version
        from astra.pythonutils import GPULink

        function(projector, *(GPULink(t.data_ptr(), *reversed(t.shape), 4 * t.shape[2]) for t in (volume, sinograms)))


def _deepinv(geometry: ParallelBeam, device: torch.device, images: int) -> Peer:
    """deepinv's Tomography: rotates the image by sampling and sums; its adjoint by differentiation, its default."""
    from deepinv.physics import Tomography

    size = geometry.image_size[0]
    physics = Tomography(np.rad2deg(geometry.angles).tolist(), size, normalize=False, device=device)

    def adjoint(y: Tensor) -> Tensor:
        with torch.enable_grad():
            result: Tensor = physics.A_adjoint(y)
        return result.detach()

    shape = tuple(physics.A(torch.zeros(1, 1, size, size, device=device)).shape[1:])
    return Peer(DEEPINV, (1, size, size), shape, physics.A, adjoint, device)


def _skimage(geometry: ParallelBeam, device: torch.device, images: int) -> Peer:
    """scikit-image: `radon`, and `iradon` without a filter, whose factor pi / 2V is undone since it is meant for filtered views."""
    from skimage.transform import iradon, radon

    degrees, size = np.rad2deg(geometry.angles), geometry.image_size[0]
    scale = 2 * geometry.views / math.pi

    def forward(x: Tensor) -> Tensor:
        return torch.stack([torch.from_numpy(radon(image, degrees, circle=False)) for image in x[:, 0].numpy()])[:, None]

    def adjoint(y: Tensor) -> Tensor:
        images = [iradon(sinogram, degrees, filter_name=None, circle=False, output_size=size) for sinogram in y[:, 0].numpy()]
        return scale * torch.from_numpy(np.stack(images))[:, None]

    shape = (1, *radon(np.zeros((size, size), np.float32), degrees, circle=False).shape)
    return Peer(SKIMAGE, (1, size, size), shape, forward, adjoint, torch.device("cpu"))


ASTRA_CPU, ASTRA_GPU, DEEPINV, SKIMAGE = "ASTRA, CPU", "ASTRA, GPU", "deepinv", "scikit-image"
PEERS: dict[str, Maker] = {ASTRA_CPU: _astra_cpu, ASTRA_GPU: _astra_gpu, DEEPINV: _deepinv, SKIMAGE: _skimage}
