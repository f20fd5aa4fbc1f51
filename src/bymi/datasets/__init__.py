"""Labelled image sets: reading, locating or downloading, and partitioning among nodes. To add a set: list it in DATASETS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bymi.core.errors import InputError, did_you_mean
from bymi.datasets.data_folders import cache_folder, find_files
from bymi.datasets.digits import load_digits
from bymi.datasets.download import SOURCES, Progress, RemoteFile, Source, download
from bymi.datasets.feature_shift import FeatureShift, shift_features
from bymi.datasets.idx_files import read_idx
from bymi.datasets.images import ImageFiles, ImageSet, read_image_set
from bymi.datasets.partition import PARTITIONS, Dirichlet, LabelShards, Partition, Stratified

Loader = Callable[[str | Path | None, Progress | None], ImageSet]


def _load_idx(name: str, folder: str | Path | None, progress: Progress | None) -> ImageSet:
    files = find_files(name, folder)
    if files is None:
        download(SOURCES[name], cache_folder(name), progress)
        files = find_files(name, cache_folder(name))
        assert files is not None
    return read_image_set(name, files)


DATASETS: dict[str, Loader] = {
    "mnist": partial(_load_idx, "mnist"),
    "fashion-mnist": partial(_load_idx, "fashion-mnist"),
    "digits": lambda folder, progress: load_digits(),
}

ALIASES: dict[str, str] = {
    "fmnist": "fashion-mnist",
    "fashion": "fashion-mnist",
    "iid": "stratified",
}


def load_images(name: str, folder: str | Path | None = None, progress: Progress | None = None) -> ImageSet:
    """An image set by name: from `folder`, BYMI_DATA, the user's cache or system packages, else downloaded once.

    `folder` holds the four IDX files, or a subfolder of that name which does; digits need none. `progress(file, done, total)`
    is called while bytes arrive; the library itself prints nothing.
    """
    known = ALIASES.get(name, name)
    if known not in DATASETS:
        raise InputError(f"dataset: got {name!r}{did_you_mean(name, DATASETS, ALIASES)}; allowed: {', '.join(DATASETS)}")
    return DATASETS[known](folder, progress)


__all__ = [
    "ALIASES",
    "DATASETS",
    "PARTITIONS",
    "SOURCES",
    "Dirichlet",
    "FeatureShift",
    "ImageFiles",
    "ImageSet",
    "LabelShards",
    "Partition",
    "Progress",
    "RemoteFile",
    "Source",
    "Stratified",
    "cache_folder",
    "download",
    "find_files",
    "load_digits",
    "load_images",
    "read_idx",
    "read_image_set",
    "shift_features",
]
