"""What the paper's figures look at beside Shepp-Logan: an ellipse image, the same with a text, and one with a faint large ellipse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.data import ellipse_images, ellipse_parameters, rasterise, with_text
from bdgd.data.phantoms import Ellipses

TEXT = "ICPR 2020"
#: The test image of Figures 5 and 6: ellipses of many sizes, none of which hides the text.
ELLIPSE_IMAGE = 3
#: Image and ellipse of Figure 4: of the first 100 test images the one whose ellipse of 1 to 3 % of the image's contrast is largest
#: (23 % of its area) and lies mostly (84 % of its edge) on the background, as the paper describes its own.
FAINT_IMAGE, FAINT_ELLIPSE = 70, 2
_CLEAR = 7  # pixels: the side of the square around a pixel that no other edge may enter
_NEAR = 17  # pixels: the side of the square around a pixel of the edge that counts as its surroundings


@dataclass(frozen=True, eq=False)
class FaintEllipse:
    """An image (1, 1, H, W) with a faint ellipse of value `contrast`, and three boolean masks (H, W).

    inside: the ellipse. edge: the pixels on either side of its outline, where no other edge is near.
    flat: pixels within 8 of that edge whose 7 x 7 surroundings are constant.
    """

    image: Tensor
    inside: Tensor
    edge: Tensor
    flat: Tensor
    contrast: float


def faint_ellipse(size: int = 128) -> FaintEllipse:
    """The limited-view image of Figure 4, with where its faint ellipse is."""
    image = ellipse_images("test", FAINT_IMAGE + 1, size)[FAINT_IMAGE:]
    drawn = ellipse_parameters("test", FAINT_IMAGE + 1)[FAINT_IMAGE : FAINT_IMAGE + 1]
    whole = rasterise(drawn, size, dtype=torch.float64)
    alone = Ellipses(*(part[:, FAINT_ELLIPSE : FAINT_ELLIPSE + 1] for part in (drawn.value, drawn.half_axes, drawn.centre, drawn.rotation)))
    faint = rasterise(alone, size, dtype=torch.float64)
    inside = faint > 0
    edge = (_range(inside.double(), 3) > 0) & ~_uneven(whole - faint, _CLEAR)
    flat = ~_uneven(whole, _CLEAR) & (F.max_pool2d(edge.double(), _NEAR, 1, _NEAR // 2) > 0)
    contrast = float(drawn.value[0, FAINT_ELLIPSE] / (whole.max() - whole.min()))
    return FaintEllipse(image, inside[0, 0], edge[0, 0], flat[0, 0], contrast)


def ellipse_pictures(count: int, size: int = 128) -> Tensor:
    """(count, 1, size, size): test ellipse images from number 3 on, which is the one that the figures show."""
    return ellipse_images("test", ELLIPSE_IMAGE + count, size)[ELLIPSE_IMAGE:]


def text_pictures(count: int, size: int = 128) -> tuple[Tensor, Tensor]:
    """The same images with the text at the value 1, and its mask (1, 1, size, size)."""
    return with_text(ellipse_pictures(count, size), TEXT, value=1.0, return_mask=True)


def _range(x: Tensor, side: int) -> Tensor:
    """(B, 1, H, W) largest minus smallest value in the square around each pixel."""
    return F.max_pool2d(x, side, 1, side // 2) + F.max_pool2d(-x, side, 1, side // 2)


def _uneven(x: Tensor, side: int) -> Tensor:
    """Whether the values in the square differ by more than what rounding makes of sums of ellipses."""
    return _range(x, side) > 1e-9 * float(x.abs().max())
