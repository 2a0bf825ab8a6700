"""Scanner geometries as frozen values: where the pixels, the detectors and the rays are.

Pixel [i, j] has its centre at x = (i - (H-1)/2) * pixel_size, y = (j - (W-1)/2) * pixel_size: the first index is x,
and pictures are shown with y upward. Detector d has its centre at (d - (D-1)/2) * detector_spacing + detector_offset.
Angles are in radians, lengths in one unit of the user's choice (that of pixel_size).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bdgd.checks import InputError, require_count, require_number, require_positive

_SAME_ANGLE = 1e-6  # radians: views closer than this are one view measured twice
_LOST = math.radians(10)  # a gap of so much in a turn is views that were left out


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """What parallel and fan beam share: an image grid, V view angles and a line of D equidistant detectors.

    image_size: (H, W), or one number for a square. angles: any sequence or tensor, kept as a tuple of float64 values.
    detector_offset moves the detector along itself, so an axis of rotation that is not at the detector's middle
    is an offset: axis at detector c means detector_offset = ((D-1)/2 - c) * detector_spacing.
    """

    image_size: tuple[int, int]
    angles: tuple[float, ...]
    detectors: int
    detector_spacing: float = 1.0
    detector_offset: float = 0.0
    pixel_size: float = 1.0

    #: what files call it
    beam = ""
    #: angle after which the views repeat: pi for parallel lines, 2 pi for a source that goes around
    period = 2 * math.pi

    def __post_init__(self) -> None:
        freeze = object.__setattr__  # the one place where a frozen value is completed
        freeze(self, "image_size", _image_size(self.image_size))
        freeze(self, "angles", _angles(self.angles))
        freeze(self, "detectors", require_count(self.detectors, "detectors"))
        freeze(self, "detector_spacing", require_positive(self.detector_spacing, "detector_spacing"))
        freeze(self, "detector_offset", require_number(self.detector_offset, "detector_offset"))
        freeze(self, "pixel_size", require_positive(self.pixel_size, "pixel_size"))

    @property
    def views(self) -> int:
        """V, the number of views."""
        return len(self.angles)

    @property
    def image_radius(self) -> float:
        """Half the diagonal of the image: no pixel lies further from the axis."""
        return 0.5 * math.hypot(*self.image_size) * self.pixel_size

    @property
    def axis_spacing(self) -> float:
        """From one detector to the next, seen at the axis."""
        return self.detector_spacing

    def detector_positions(self) -> Tensor:
        """(D,) centres of the detector cells along the detector."""
        return (torch.arange(self.detectors, dtype=torch.float64) - (self.detectors - 1) / 2) * self.detector_spacing + self.detector_offset

    def pixel_centres(self) -> tuple[Tensor, Tensor]:
        """x (H,) and y (W,) of the pixel centres."""
        h, w = self.image_size
        x = (torch.arange(h, dtype=torch.float64) - (h - 1) / 2) * self.pixel_size
        y = (torch.arange(w, dtype=torch.float64) - (w - 1) / 2) * self.pixel_size
        return x, y

    def axes(self) -> tuple[Tensor, Tensor]:
        """Per view: the unit vector along the detector (cos, sin) and the one along the central ray (-sin, cos), each (V, 2)."""
        theta = torch.tensor(self.angles, dtype=torch.float64)
        return torch.stack((theta.cos(), theta.sin()), -1), torch.stack((-theta.sin(), theta.cos()), -1)

    def rays(self) -> tuple[Tensor, Tensor]:
        """A point on, and the unit direction of, the ray of every detector: two tensors (V, D, 2)."""
        raise NotImplementedError

    def detector_coordinates(self, points: Tensor) -> Tensor:
        """(V, N) position along the detector, as in `detector_positions`, where the ray through each of the (N, 2) points arrives."""
        raise NotImplementedError

    @property
    def view_weights(self) -> Tensor:
        """(V,) the angle in radians that each view stands for: half the way to its neighbours, as in a midpoint rule.

        Neighbours are looked for modulo `period`, and views at the same angle share what one would stand for. Where the
        widest gap is clearly wider than the others the views form an open arc, whose first and last view stand for as
        much on their outer side as on their inner one.
        """
        return self._weights(self.period)

    @property
    def turn_weights(self) -> Tensor | None:
        """(V,) `view_weights` modulo a full turn, for which views from opposite sides differ; None where the views are no full turn.

        A turn from which a view is left out, or a gap of at most 10 degrees, is still one: the neighbours stand for the gap.
        """
        return self._weights(2 * math.pi, _LOST) if self._gaps(2 * math.pi, _LOST)[-1] else None

    def _weights(self, period: float, lost: float = 0.0) -> Tensor:
        """(V,) `view_weights` modulo `period`."""
        order, distinct, gaps, closed = self._gaps(period, lost)
        before, after = gaps.roll(1), gaps.clone()
        if not closed:  # the widest gap comes last, between the end of the arc and its start
            after[-1], before[0] = before[-1], after[0]
        shares = (before + after) / 2 / torch.bincount(distinct)
        weights = torch.empty(self.views, dtype=torch.float64)
        weights[order] = shares[distinct]
        return weights

    @property
    def arc(self) -> tuple[float, float]:
        """Where the arc that the views stand for starts, and how long it is, in radians; a closed one is `period` long."""
        order, _, gaps, closed = self._gaps(self.period)
        start = self.angles[int(order[0])] - float(gaps[0]) / 2
        return start, self.period if closed else float(self.view_weights.sum())

    def _gaps(self, period: float, lost: float = 0.0) -> tuple[Tensor, Tensor, Tensor, bool]:
        """The views in the order of their angle modulo `period` (V,), the number of the distinct angle that each has (V,),
        the gap after each distinct angle, widest last, and whether the views close the circle, if need be with a gap of `lost`."""
        angles = torch.tensor(self.angles, dtype=torch.float64).remainder(period)
        order = torch.argsort(angles, stable=True)
        gaps = torch.diff(angles[order], append=angles[order[:1]] + period)
        turn = -1 - int(gaps.argmax())
        order, gaps = order.roll(turn), gaps.roll(turn)
        apart = gaps > _SAME_ANGLE
        distinct = apart.roll(1).cumsum(0) - 1
        gaps = gaps[apart]
        inner = float(gaps[:-1].max()) if len(gaps) > 1 else 0.0
        widest = max(2 * inner, lost) + _SAME_ANGLE if lost else 1.5 * inner  # one view may be lost, however far apart they are
        return order, distinct, gaps, inner == 0.0 or float(gaps[-1]) <= widest

    def __getitem__(self, views: int | slice | Sequence[int]) -> Self:
        """The geometry of some of the views: `geometry[::2]`, `geometry[:60]`, `geometry[[0, 7, 9]]`."""
        chosen = np.asarray(self.angles)[list(views) if isinstance(views, tuple) else views]  # to NumPy a tuple is one index
        return replace(self, angles=tuple(np.atleast_1d(chosen).tolist()))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, with the name of the beam; `geometry_from_dict` reads it back."""
        values = asdict(self)
        return {"beam": self.beam, **values, "image_size": list(self.image_size), "angles": list(self.angles)}

    def to_json(self) -> str:
        """`to_dict` as one line of JSON, as scan files take it."""
        return json.dumps(self.to_dict())

    def to_toml(self) -> str:
        """`to_dict` as TOML, a line per key; `read_geometry` reads it back."""
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.to_dict().items())


@dataclass(frozen=True, kw_only=True)
class ParallelBeam(Geometry):
    """Parallel rays: view theta has s = x cos(theta) + y sin(theta), rays along (-sin(theta), cos(theta))."""

    beam = "parallel"
    period = math.pi

    @classmethod
    def sparse(cls, *, image_size: int | tuple[int, int] = 128, views: int = 30, pixel_size: float = 1.0) -> Self:
        """Few views over the half circle, theta = (v + 1/2) pi / V, on the paper's detector."""
        angles = (np.arange(require_count(views, "views")) + 0.5) * math.pi / views
        return cls._on_paper_detector(image_size, angles, pixel_size)

    @classmethod
    def limited(cls, *, image_size: int | tuple[int, int] = 128, degrees: int = 120, pixel_size: float = 1.0) -> Self:
        """One view per degree over a limited arc, theta = (v + 1/2) degrees, on the paper's detector."""
        angles = np.deg2rad(np.arange(require_count(degrees, "degrees")) + 0.5)
        return cls._on_paper_detector(image_size, angles, pixel_size)

    @classmethod
    def _on_paper_detector(cls, image_size: int | tuple[int, int], angles: np.ndarray, pixel_size: float) -> Self:
        """2 ceil(r / pixel) + 1 cells that together span the image diagonal 2 r exactly."""
        size, pixel = _image_size(image_size), require_positive(pixel_size, "pixel_size")
        radius = 0.5 * math.hypot(*size)
        cells = 2 * math.ceil(radius) + 1
        return cls(
            image_size=size, angles=tuple(angles.tolist()), detectors=cells, detector_spacing=2 * radius * pixel / cells, pixel_size=pixel
        )

    def rays(self) -> tuple[Tensor, Tensor]:
        along_detector, along_ray = self.axes()
        points = self.detector_positions()[None, :, None] * along_detector[:, None]
        return points, along_ray[:, None].expand_as(points)

    def detector_coordinates(self, points: Tensor) -> Tensor:
        return self.axes()[0].to(points) @ points.T


@dataclass(frozen=True, kw_only=True)
class FanBeam(Geometry):
    """A point source and a flat detector that turn around the axis.

    View theta has its source at source_to_axis * (sin(theta), -cos(theta)) and its detector through
    (source_to_detector - source_to_axis) * (-sin(theta), cos(theta)) along (cos(theta), sin(theta)).
    """

    source_to_axis: float
    source_to_detector: float

    beam = "fan"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source_to_axis", "source_to_detector"):
            object.__setattr__(self, name, require_positive(getattr(self, name), name))
        if self.source_to_axis <= self.image_radius:
            raise InputError(
                f"the source lies inside the image: source_to_axis is {self.source_to_axis:g},"
                f" half the image diagonal {self.image_radius:g}; check that pixel_size and the distances are in the same unit"
            )
        if self.source_to_detector < self.source_to_axis:
            raise InputError(
                f"source_to_detector ({self.source_to_detector:g}) must be at least source_to_axis ({self.source_to_axis:g});"
                " it is measured from the source, not from the axis"
            )

    @property
    def axis_spacing(self) -> float:
        return self.detector_spacing * self.source_to_axis / self.source_to_detector

    def rays(self) -> tuple[Tensor, Tensor]:
        along_detector, along_ray = self.axes()
        source = (-self.source_to_axis * along_ray)[:, None]
        middle = (self.source_to_detector - self.source_to_axis) * along_ray[:, None]
        cells = middle + self.detector_positions()[None, :, None] * along_detector[:, None]
        directions = cells - source
        return source.expand_as(cells), directions / directions.norm(dim=-1, keepdim=True)

    def depths(self, points: Tensor) -> Tensor:
        """(V, N) distance of each of the (N, 2) points from the source, measured along the central ray."""
        return self.source_to_axis + self.axes()[1].to(points) @ points.T

    def detector_coordinates(self, points: Tensor) -> Tensor:
        return self.source_to_detector * (self.axes()[0].to(points) @ points.T) / self.depths(points)


def _image_size(size: Any) -> tuple[int, int]:
    if isinstance(size, Sequence) or hasattr(size, "__len__"):
        if len(size) != 2:
            raise InputError(f"image_size must be one number or (height, width), got {size!r}; pass 128 or (96, 120)")
        return require_count(size[0], "image height"), require_count(size[1], "image width")
    side = require_count(size, "image_size")
    return side, side


def _angles(angles: Any) -> tuple[float, ...]:
    values = angles.detach().cpu().numpy() if isinstance(angles, Tensor) else angles
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"angles must be a sequence of numbers in radians, got {type(values).__name__}; pass a list or an array") from None
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"angles must be a non-empty sequence of numbers in radians, got shape {array.shape}; pass one angle per view")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise InputError(f"angles must be finite, but {bad} of the {array.size} are NaN or infinite; leave those views out")
    return tuple(array.tolist())
