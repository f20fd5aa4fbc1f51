"""scikit-learn's digits: 1,797 small scans that ship with that package, for experiments without a download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bymi.core.errors import InputError, first_line
from bymi.datasets.images import ImageSet
from bymi.datasets.partition import apportion, deal

_FILE = "datasets/data/digits.csv.gz"
_TEST = 300
_GREY = 16  # the brightest pixel of the original


def load_digits() -> ImageSet:
    """The digits as 28 x 28 images: each of the 8 x 8 pixels enlarged three times, with a dark border of two pixels.

    They have the shape of MNIST, so the same networks fit. Always the same 1,497 for training and 300 for testing, stratified
    by label. Needs scikit-learn (the extra `digits`), of which one file is read: to import it would take seconds.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise InputError("digits: needs scikit-learn, which is not installed: pip install 'bymi[digits]'")
    try:
        with gzip.open(Path(package.origin).parent / _FILE, "rt") as lines:
            rows = torch.from_numpy(np.loadtxt(lines, delimiter=","))  # 64 pixels and a label
    except (OSError, EOFError, ValueError) as problem:
        raise InputError(f"digits: cannot read {_FILE} of scikit-learn: {first_line(problem)}") from problem
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].to(torch.int64)
    images = _enlarge((pixels * (255 / _GREY)).round().to(torch.uint8))
    test = deal(labels, apportion(torch.bincount(labels)[None], torch.tensor([_TEST])), seed=0)[0].sort().values
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[test] = True
    return ImageSet("digits", images[~in_test], labels[~in_test], images[in_test], labels[in_test], classes=10)


def _enlarge(images: Tensor) -> Tensor:
    """[N, 8, 8] to [N, 1, 28, 28]."""
    tripled = images.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    return torch.nn.functional.pad(tripled, (2, 2, 2, 2)).unsqueeze(1)
