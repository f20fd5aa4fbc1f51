"""scikit-learn's digits: 1,797 small scans that ship with that package, for experiments without a download."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.datasets.images import ImageSet
from bymi.datasets.partition import apportion, deal

_TEST = 300
_GREY = 16  # the brightest pixel of the original


def load_digits() -> ImageSet:
    """The digits as 28 x 28 images: each of the 8 x 8 pixels enlarged three times, with a dark border of two pixels.

    They have the shape of MNIST, so the same networks fit. Always the same 1,497 for training and 300 for testing, stratified
    by label. Needs scikit-learn (the extra `digits`).
    """
    try:
        source = importlib.import_module("sklearn.datasets")
    except ImportError as problem:
        raise InputError("digits: needs scikit-learn, which is not installed: pip install 'bymi[digits]'") from problem
    bunch = source.load_digits()
    pixels, labels = torch.from_numpy(bunch.images), torch.from_numpy(bunch.target).to(torch.int64)
    images = _enlarge((pixels * (255 / _GREY)).round().to(torch.uint8))
    test = deal(labels, apportion(torch.bincount(labels)[None], torch.tensor([_TEST])), seed=0)[0].sort().values
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[test] = True
    return ImageSet("digits", images[~in_test], labels[~in_test], images[in_test], labels[in_test], classes=10)


def _enlarge(images: Tensor) -> Tensor:
    """[N, 8, 8] to [N, 1, 28, 28]."""
    tripled = images.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    return torch.nn.functional.pad(tripled, (2, 2, 2, 2)).unsqueeze(1)
