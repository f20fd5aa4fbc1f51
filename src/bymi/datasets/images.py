"""Sets of labelled grey images, for training and for testing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bymi.core.errors import InputError
from bymi.datasets.idx_files import read_idx


class ImageFiles(NamedTuple):
    """Paths of the four IDX files of a set."""

    train_images: Path
    train_labels: Path
    test_images: Path
    test_labels: Path


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as bytes 0..255 (70,000 take 55 MB), to be scaled for training. Labels are 0..classes-1."""

    name: str
    train_images: Tensor  # [N, 1, H, W] uint8
    train_labels: Tensor  # [N] int64
    test_images: Tensor  # [T, 1, H, W] uint8
    test_labels: Tensor  # [T] int64
    classes: int


def read_image_set(name: str, files: ImageFiles, *, classes: int = 10) -> ImageSet:
    """Read the four files and check that they fit each other; errors name the file or the pair."""
    train_images, train_labels = _read_part(files.train_images, files.train_labels, classes)
    test_images, test_labels = _read_part(files.test_images, files.test_labels, classes)
    if train_images.shape[1:] != test_images.shape[1:]:
        raise InputError(
            f"{files.test_images}: expected images of {_size(train_images)} pixels as in {files.train_images}, "
            f"found {_size(test_images)}"
        )
    return ImageSet(name, train_images, train_labels, test_images, test_labels, classes)


def _read_part(images_path: Path, labels_path: Path, classes: int) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(images_path), read_idx(labels_path)
    for path, tensor, dimensions in ((images_path, images, 3), (labels_path, labels, 1)):
        if tensor.dim() != dimensions:
            raise InputError(f"{path}: expected {dimensions} dimension{'s'[: dimensions - 1]}, found {tensor.dim()}")
    if len(images) != len(labels):
        raise InputError(
            f"{labels_path}: expected {len(images)} labels, one for each image in {images_path}, found {len(labels)}"
        )
    if int(labels.max()) >= classes:
        raise InputError(f"{labels_path}: expected labels 0 to {classes - 1}, found {int(labels.max())}")
    return images.unsqueeze(1), labels.to(torch.int64)


def _size(images: Tensor) -> str:
    return f"{images.shape[-2]} x {images.shape[-1]}"
