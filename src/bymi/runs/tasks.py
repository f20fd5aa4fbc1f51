"""Tasks: a problem and its evaluator, from a few parameters. To add one: write a class and list it in TASKS."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from bymi import datasets
from bymi.attacks import Attack, DataAttack
from bymi.core.errors import require
from bymi.core.named_parts import Checked, Table, bounded, part_by_name
from bymi.core.random_streams import stream
from bymi.distributed.device_and_thread_settings import Host
from bymi.problems import LinearProblem, LinearShard, ModuleProblem, Problem, Shards, lenet, start_of
from bymi.problems.linear_problem import LARGEST_SPREAD, draw_samples, linear_start
from bymi.problems.triton_convolution import starting
from bymi.runs.evaluators import Evaluator, ImageEvaluator, LinearEvaluator

_SIDE = 28  # pixels
_AT_ONCE = 1000  # nodes whose data are attacked at a time: bounds the copies


class Task(Checked, ABC):
    """Builds the problem of all nodes. `identification`: samples per node that detection uses, half of all by default."""

    gains: ClassVar[bool]
    """Whether it is faster on an accelerator."""

    dtype: ClassVar[torch.dtype]
    """Type of the models."""

    kind: ClassVar[type] = object
    """Type of the data, for attacks that rewrite one kind of data."""

    identification: int | None

    @abstractmethod
    def build(
        self, byzantine: Tensor, attack: Attack, host: Host, seed: int, blocks: Sequence[Tensor] | None = None
    ) -> tuple[Problem, Evaluator]:
        """The problem of nodes 0..M-1, with the data of `byzantine` [M] under attack, and its evaluator.

        With `blocks` of nodes the problem is used for these only, and need not have the data of others.
        """

    def identification_of(self, samples: int) -> int:
        count = samples // 2 if self.identification is None else self.identification
        require(2 <= count < samples, "data.identification", count, f"2 to data.samples - 1 = {samples - 1}")
        return count


@dataclass(frozen=True)
class Linear(Task):
    """The linear model of the paper's section 5.1: least squares in `dim` dimensions, closed-form optimum.

    Nodes with different data: `optimum_spread` tau gives node i the parameter theta* + tau z_i, z_i ~ N(0, I);
    `covariance_spread` s its k-th feature the standard deviation exp(s w_ik - s^2), w_ik ~ N(0, 1). Gaps are to the exact
    optimum of the honest nodes' samples.
    """

    gains: ClassVar[bool] = False
    dtype: ClassVar[torch.dtype] = torch.float64
    kind: ClassVar[type] = LinearShard
    dim: int = 30
    samples: int = 100
    identification: int | None = None
    optimum_spread: float = bounded(0.0, ge=0, le=LARGEST_SPREAD)
    covariance_spread: float = bounded(0.0, ge=0, le=LARGEST_SPREAD)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dim >= 1, "dim", self.dim, "1 or more")
        require(self.samples >= 4, "samples", self.samples, "4 or more")
        self.identification_of(self.samples)

    def build(
        self, byzantine: Tensor, attack: Attack, host: Host, seed: int, blocks: Sequence[Tensor] | None = None
    ) -> tuple[Problem, Evaluator]:
        device = host.place(gains=self.gains)
        node_blocks = [torch.arange(len(byzantine))] if blocks is None else list(blocks)
        counts = [len(nodes) for nodes in node_blocks]
        rows = torch.empty(sum(counts), self.samples, self.dim + 1, dtype=self.dtype)
        # Block by block: the bits of a product may depend on its number of rows.
        spreads = {"optimum_spread": self.optimum_spread, "covariance_spread": self.covariance_spread}
        for nodes, part in zip(node_blocks, rows.split(counts), strict=True):
            shard = draw_samples(part, nodes, seed=seed, **spreads)
            _put_under_attack(shard, byzantine[nodes], nodes, attack, seed)
        start = linear_start(self.dim, seed=seed)
        numbers = None if blocks is None else torch.cat(node_blocks).to(device)
        problem = LinearProblem(rows.to(device), shard.parameter.to(device), start.to(device), numbers)
        return problem, LinearEvaluator(problem, byzantine.to(device))


@dataclass(frozen=True)
class Images(Task):
    """LeNet on labelled images of 28 x 28, pixels of mean 0 and variance 1.

    `samples` per node (default: all there are), split by `partition`: "stratified" (the same labels everywhere),
    "dirichlet:dirichlet_alpha=0.5" or "label-shards:shards=2". Two more ways in which nodes differ: `feature_shift`
    "rotated" (node i has all its images turned by i quarter turns) or "inverted" (the images of odd nodes are negatives); test
    images are shifted in the same parts. `smallest`: a node keeps a share of its samples that is uniform on a log scale between
    this and 1.
    """

    gains: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype] = torch.float32
    kind: ClassVar[type] = Shards
    dataset: ClassVar[str]
    samples: int | None = None
    identification: int | None = 200
    partition: str = "stratified"
    feature_shift: datasets.FeatureShift = "none"
    smallest: float = bounded(1.0, gt=0, le=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.samples is None or self.samples >= 4, "samples", self.samples, "4 or more")
        require(self.identification is None or self.identification >= 2, "identification", self.identification, "2 or more")
        if self.samples is not None:
            self.identification_of(self.samples)
        self._partition()

    def _partition(self) -> datasets.Partition:
        tables = datasets.Partition, datasets.PARTITIONS, datasets.ALIASES
        made: datasets.Partition = part_by_name("partition", self.partition, *tables)
        return made

    def build(
        self, byzantine: Tensor, attack: Attack, host: Host, seed: int, blocks: Sequence[Tensor] | None = None
    ) -> tuple[Problem, Evaluator]:
        device = host.place(gains=self.gains)
        with starting(device):
            return self._build(byzantine, attack, host, seed, blocks, device)

    def _build(
        self, byzantine: Tensor, attack: Attack, host: Host, seed: int, blocks: Sequence[Tensor] | None, device: torch.device
    ) -> tuple[Problem, Evaluator]:
        # A rank with some of the nodes does not cache all images for later runs.
        source = (_read_once if blocks is None else _read)(self.dataset, host.data, os.environ.get("BYMI_DATA"))
        images = source.images
        self._require_usable(source)
        places = self._partition().split(images.train_labels, len(byzantine), samples=self.samples, seed=seed)
        numbers = None if blocks is None else torch.cat(list(blocks))
        places = places if numbers is None else places[numbers]

        def normalised(pixels: Tensor) -> Tensor:
            # Move bytes, then scale on the device: a quarter of the traffic.
            return pixels.to(device).to(torch.float32).sub_(source.centre).div_(source.spread)

        nodes = torch.arange(len(byzantine)) if numbers is None else numbers
        pixels = datasets.shift_features(images.train_images[places], nodes, self.feature_shift)
        shards = Shards(normalised(pixels), images.train_labels[places].to(device))
        _put_under_attack(shards, byzantine[nodes], nodes, attack, seed)
        labels = [int(shards.targets.min()), int(shards.targets.max())]
        known = f"labels 0 to {images.classes - 1}, those of {self.dataset}"
        require(labels[0] >= 0 and labels[1] < images.classes, f"attack: {attack} makes labels", labels, known)
        model = lenet(images.classes)
        sizes = self.sizes(len(byzantine), places.shape[1], seed=seed)
        problem = ModuleProblem(
            model,
            nnf.cross_entropy,
            shards if sizes is None else _first_of(shards, sizes[nodes].tolist()),
            start=start_of(model, seed=seed),
            numbers=numbers,
            gradients=host.gradients,
            threads=host.threads,
            samples=None if sizes is None else (int(sizes.min()), int(sizes.max())),
        )
        tested = datasets.shift_features(images.test_images[:, None], torch.arange(len(images.test_images)), self.feature_shift)
        return problem, ImageEvaluator(
            problem, normalised(tested.squeeze(1)), images.test_labels.to(device), byzantine.to(device)
        )

    def sizes(self, nodes: int, most: int, *, seed: int) -> Tensor | None:
        """Numbers of samples [M] of all nodes; None if they are equal."""
        if self.smallest == 1:
            return None
        share = self.smallest ** stream(seed, "shard sizes", node=torch.arange(nodes)).uniform(1).squeeze(1)
        sizes = (share * most).round().long()
        require(int(sizes.min()) >= 4, "data.smallest", self.smallest, f"4 samples or more per node of {most}")
        return sizes

    def _require_usable(self, source: _Source) -> None:
        """Raise unless LeNet can take the images and they differ at all."""
        height, width = source.images.train_images.shape[-2:]
        fits = _SIDE <= min(height, width) <= max(height, width) < _SIDE + 4  # sizes that its two poolings map to the same
        require(fits, "data", f"{self.dataset} of {height} x {width} pixels", f"{_SIDE} x {_SIDE}, which LeNet is for")
        require(source.spread > 0, "data", f"{self.dataset} with one grey only", "images with two or more")


def _put_under_attack(shard: LinearShard | Shards, byzantine: Tensor, nodes: Tensor, attack: Attack, seed: int) -> None:
    """Put the data of Byzantine nodes [B] bool under a data attack, in place; `nodes` [B]: the nodes of the shard."""
    places, device = byzantine.nonzero().flatten(), shard.targets.device
    if not isinstance(attack, DataAttack) or not len(places):
        return
    attack.require_kind(type(shard))
    for some in places.split(_AT_ONCE):
        fresh = stream(seed, "attack data", node=nodes[some].to(device), device=device)
        touched = type(shard)(*(part[some.to(device)] for part in shard[:2]), *shard[2:])
        wrong: Any = attack(touched, stream(seed, "attack", device=device), fresh)
        for part, changed in zip(shard[:2], wrong[:2], strict=True):
            part.index_copy_(0, some.to(device), changed)


def _first_of(shards: Shards, sizes: Sequence[int]) -> list[Shards]:
    """The first samples of each node."""
    return [Shards(inputs[:size], targets[:size]) for inputs, targets, size in zip(*shards, sizes, strict=True)]


class MNIST(Images):
    """LeNet on MNIST: 60,000 handwritten digits (paper, section 5.2)."""

    dataset = "mnist"


class FashionMNIST(Images):
    """LeNet on Fashion-MNIST: 60,000 pieces of clothing (paper, section 5.2)."""

    dataset = "fashion-mnist"


class Digits(Images):
    """LeNet on scikit-learn's 1,797 small digits: real data without a download. Needs bymi[digits]."""

    dataset = "digits"


def fetch(name: str, folder: Path | None, progress: datasets.Progress) -> None:
    """Download the data of a task, if necessary, before anything is run."""
    task = TASKS[name]
    if issubclass(task, Images):
        datasets.load_images(task.dataset, folder, progress)


class _Source(NamedTuple):
    """An image set, with mean and standard deviation of its training pixels."""

    images: datasets.ImageSet
    centre: float
    spread: float


def _read(name: str, folder: Path | None, environment: str | None) -> _Source:
    """The image set of a name; `environment`: BYMI_DATA, which `load_images` reads, as a part of the cache key."""
    images = datasets.load_images(name, folder)
    # From the histogram: as float64 the pixels would take eight times the memory.
    counts = torch.bincount(images.train_images.flatten(), minlength=256).to(torch.float64)
    values = torch.arange(256, dtype=torch.float64)
    centre = (counts @ values) / counts.sum()
    spread = ((counts @ (values - centre).square()) / counts.sum()).sqrt()
    return _Source(images, float(centre), float(spread))


_read_once = lru_cache(maxsize=2)(_read)  # for many runs in one process


_TASKS: dict[str, type[Task]] = {"linear": Linear, "mnist": MNIST, "fashion-mnist": FashionMNIST, "digits": Digits}
TASKS: Table[Task] = Table(Task, _TASKS, "bymi.tasks")

ALIASES: dict[str, str] = {"fmnist": "fashion-mnist", "fashion": "fashion-mnist"}
