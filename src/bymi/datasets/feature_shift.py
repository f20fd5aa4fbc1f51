"""Images that differ from node to node by a fixed transformation: the same labels, other features."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bymi.core.errors import require

FeatureShift = Literal["none", "rotated", "inverted"]

_WHITE = 255
_QUARTERS = 4


def shift_features(images: Tensor, nodes: Tensor, shift: FeatureShift) -> Tensor:
    """Images [M, n, 1, H, W] of bytes, those of each node shifted by its number in `nodes` [M].

    "rotated": node i turns its images by i mod 4 quarter turns. "inverted": odd nodes have negatives.
    """
    if shift == "none":
        return images
    shifted = images.clone()
    if shift == "inverted":
        odd = nodes % 2 == 1
        shifted[odd] = _WHITE - images[odd]
        return shifted
    height, width = images.shape[-2:]
    require(height == width, "feature_shift", shift, f"square images, got {height} x {width} pixels")
    for turns in range(1, _QUARTERS):
        turned = nodes % _QUARTERS == turns
        shifted[turned] = torch.rot90(images[turned], turns, (-2, -1))
    return shifted
