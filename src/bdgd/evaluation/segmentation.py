"""Images as two materials: turned and enlarged, thresholded by Otsu, and compared with a segmentation by Matthews' correlation."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bdgd.checks import InputError, require_count

#: Pixels of 512 x 512 by which the outline of the disc is moved inwards before its inside is scored.
ERODED = 2


def rotated(images: Tensor, radians: float, size: int | None = None) -> Tensor:
    """Images (B, 1, N, N) turned about their middle, counter-clockwise with y upward, on `size` x `size` pixels of the same extent.

    Bilinear. What is turned in from beyond the image is 0, as air is; an image that is only enlarged keeps its border. Turning and
    enlarging in one step interpolates once. An image that is neither turned nor resized is returned as it is.
    """
    if images.ndim != 4 or images.shape[1] != 1 or images.shape[2] != images.shape[3]:
        raise InputError(f"only square images (B, 1, N, N) can be turned, got {tuple(images.shape)}")
    side = images.shape[-1]
    size = side if size is None else require_count(size, "size")
    if radians == 0.0 and size == side:
        return images
    middle = (torch.arange(size, dtype=torch.float64, device=images.device) + 0.5) * (2 / size) - 1  # pixel centres in [-1, 1]
    x, y = torch.meshgrid(middle, middle, indexing="ij")  # the first index is x
    cos, sin = math.cos(radians), math.sin(radians)
    # The value at a point of the turned image is that of the point turned back. grid_sample wants (last index, first index).
    grid = torch.stack((cos * y - sin * x, cos * x + sin * y), -1).to(images)
    beyond = "border" if radians == 0.0 else "zeros"
    return F.grid_sample(images, grid.expand(len(images), -1, -1, -1), mode="bilinear", padding_mode=beyond, align_corners=False)


def otsu(image: Tensor) -> float:
    """The threshold between two classes of values that leaves the least variance within them (Otsu 1979), from 256 bins."""
    from skimage.filters import threshold_otsu

    values = image.detach().cpu().double().numpy()
    return float(threshold_otsu(values)) if np.ptp(values) > 0 else float(values.flat[0])


def segmented(image: Tensor, radians: float = 0.0) -> Tensor:
    """(512, 512) true where the image (1, 1, N, N), turned and enlarged, lies above its Otsu threshold: acrylic."""
    large = rotated(image, radians, 512)[0, 0]
    return (large > otsu(large)).cpu()


def matthews(estimate: Tensor, truth: Tensor, mask: Tensor | None = None) -> float | None:
    """Matthews' correlation of two segmentations (H, W), over all pixels or those of the mask: 1 where they agree, 0 for chance.

        (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN))

    None where the truth has one class only, so that there is nothing to find; 0 where only the estimate has.
    """
    if estimate.shape != truth.shape or (mask is not None and mask.shape != truth.shape):
        raise InputError(f"segmentations must be of one shape, got {tuple(estimate.shape)} and {tuple(truth.shape)}")
    found, true, other = estimate.bool(), truth.bool(), ~truth.bool()
    if mask is not None:
        true, other = true & mask, other & mask
    positive, negative = int(true.count_nonzero()), int(other.count_nonzero())
    if positive == 0 or negative == 0:
        return None
    hit, false = int((found & true).count_nonzero()), int((found & other).count_nonzero())
    missed, rejected = positive - hit, negative - false
    below = math.sqrt((hit + false) * positive * negative * (rejected + missed))
    return (hit * rejected - false * missed) / below if below else 0.0


def filled_disc(segmentation: Tensor) -> Tensor:
    """(H, W) the disc without its holes: the convex hull of the pixel centres of the segmentation."""
    from skimage.morphology import convex_hull_image

    if not bool(segmentation.any()):
        raise InputError("a segmentation without a single pixel of material has no disc; check that it belongs to the scan")
    return torch.from_numpy(convex_hull_image(segmentation.cpu().numpy(), offset_coordinates=False)) | segmentation.cpu()


def inside_of(disc: Tensor, pixels: int = ERODED) -> Tensor:
    """(H, W) the disc with its outline moved inwards by that many pixels: there only holes tell one image from another."""
    from scipy.ndimage import binary_erosion, generate_binary_structure

    inside = binary_erosion(disc.cpu().numpy(), generate_binary_structure(2, 2), iterations=require_count(pixels, "pixels"))
    return torch.from_numpy(inside)
