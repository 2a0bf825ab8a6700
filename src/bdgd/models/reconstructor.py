"""What every learned model shares: an operator that moves with it, checks of its input, provenance."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from bdgd.checks import InputError, require_batch, require_finite, require_operator, require_positive
from bdgd.data.correction import Correction
from bdgd.models.calibration import Calibration
from bdgd.models.scale_head import ScaleHead
from bdgd.operators import Geometry, LinearOperator, RayTransform


class Reconstructor(nn.Module):
    """A learned map from sinograms of the operator `A` to images.

    A model says whether its draws are `random`, what its `noise_level` is, and which `arguments` build it again. Its network
    works on images of about 0 to 1, which is image values divided by `value_scale`: sinograms are divided by it on the way in and
    images multiplied on the way out, so that whoever uses the model sees physical values such as 0.04 per mm.
    """

    A: LinearOperator

    def __init__(self, A: LinearOperator, *, value_scale: float = 1.0):
        super().__init__()
        require_operator(A, "a model")
        if len(A.domain_shape) != 3 or A.domain_shape[0] != 1:
            raise InputError(f"a model needs an operator on images of shape (1, H, W), the domain_shape of {A} is {tuple(A.domain_shape)}")
        if getattr(A, "dtype", torch.float32) != torch.float32:
            raise InputError(f"a model works in torch.float32, {A} in {A.dtype}; make the operator with dtype=torch.float32")
        Reconstructor._use_operator(self, A)
        self.value_scale = require_positive(value_scale, "value_scale")
        #: how the weights came about: preset, seed, commit, hardware, seconds, scores; saved with them
        self.provenance: dict[str, Any] = {}
        #: per-pixel scale of the error; without one the noise level is the same in every pixel
        self.scale_head: ScaleHead | None = None
        #: what makes intervals cover their level; None before `bdgd.calibrate`
        self.calibration: Calibration | None = None
        #: what was done to the scans that it was trained on, and must be done to a measured one (`scans.corrected`); None: nothing
        self.correction: Correction | None = None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def geometry(self) -> Geometry | None:
        """That of its operator; None where it has none, or something else of that name."""
        geometry = getattr(self.A, "geometry", None)
        return geometry if isinstance(geometry, Geometry) else None

    @property
    def random(self) -> bool:
        """Whether two draws differ."""
        return False

    @property
    def noise_level(self) -> Tensor:
        """Standard deviation of the truth around one draw, a scalar in the unit of the images; NaN before training."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments beside the operator, as plain values."""
        raise NotImplementedError

    def _use_operator(self, A: LinearOperator) -> None:
        vars(self)["A"] = A  # one that is an nn.Module is none of the model's parts: its tensors are neither trained, saved nor loaded

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `cpu` and `cuda` all call: the operator moves with the parameters."""
        super()._apply(fn, recurse)
        there = torch.device(getattr(self.A, "device", self.device))
        if isinstance(self.A, nn.Module):
            self.A.to(self.device)
        elif hasattr(self.A, "to") and (there.type != self.device.type or there.index not in (None, self.device.index)):
            self._use_operator(self.A.to(self.device))
        return self

    def clues(self, y: Tensor, mean: Tensor, epistemic: Tensor) -> Tensor:
        """What a scale head sees (B, C, H, W) of sinograms, the mean of their draws and its variance."""
        raise InputError(f"a scale head reads the last block of a cascade, and {type(self).__name__} has none")

    def fingerprint(self) -> str:
        """Sixteen letters that are the same for the same weights, scale head included, on every device."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def with_calibration(self, calibration: Calibration | None) -> Self:
        """The same model with that calibration, which must have been made for these weights and this geometry; None takes it away."""
        if calibration is not None and calibration.weights != self.fingerprint():
            raise InputError("the calibration was made for other weights than this model's; make one with bdgd.calibrate(model, scans)")
        if calibration is not None and calibration.arguments not in (None, self.arguments()):
            raise InputError(
                f"the calibration was made for a model with {calibration.arguments}, this one has {self.arguments()}; make one with"
                " bdgd.calibrate(model, scans)"
            )
        if calibration is not None and not calibration.fits(self.A):
            raise InputError("the calibration was made for another geometry than this model's; make one with bdgd.calibrate(model, scans)")
        model = self.snapshot()
        model.calibration = calibration
        return model

    def calibrated_for(self, draws: int) -> Self:
        """The model itself where its calibration holds for so many draws of weights or there is none, else without it."""
        held = self.calibration is None or (self.calibration.draws, self.calibration.draw) == (draws, "weights")
        return self if held else self.with_calibration(None)

    @property
    def has_alarm(self) -> bool:
        """Whether `bdgd.alarm` can judge its images: it is calibrated, on enough of them."""
        return self.calibration is not None and self.calibration.alarm is not None

    def forget_error_bars(self) -> None:
        """Drop scale head and calibration: they hold for the weights they were made with, not for what training makes of them."""
        self.scale_head, self.calibration = None, None

    def snapshot(self) -> Self:
        """The model as it is now, on the same operator: training the original further does not change it."""
        return copy.deepcopy(self, {id(shared): shared for shared in (self.A, getattr(self, "initial", None))})

    def require_usable(self) -> None:
        """Raise where a weight is no number, which the cascade's guard would hide, or the calibration was made for other weights."""
        broken = [name for name, parameter in self.named_parameters() if not bool(parameter.isfinite().all())]
        if broken:
            raise InputError(f"{len(broken)} of the model's tensors hold NaN or infinite values, {broken[0]} first; load or train it again")
        if self.calibration is not None and self.calibration.weights != self.fingerprint():
            raise InputError(
                "the model's weights have changed since it was calibrated; make a new calibration with bdgd.calibrate(model, scans), or"
                " go on without one: model.with_calibration(None)"
            )

    def check(self, y: Tensor) -> None:
        """Raise unless y is a finite batch of this model's sinograms, in float32, where the model is."""
        require_batch(y, self.A.range_shape, "the sinogram")
        if y.device.type != self.device.type:
            raise InputError(f"the model is on {self.device}, the sinogram on {y.device}; move one of them with .to(...)")
        if y.dtype != torch.float32:
            raise InputError(f"the model works in torch.float32, the sinogram is {y.dtype}; convert it with .float()")
        require_finite(y, "the sinogram")


def ray_transform(model: Reconstructor) -> RayTransform:
    """The operator of a model from a file, which is a ray transform wherever `load` was not given another."""
    assert isinstance(model.A, RayTransform)
    return model.A
