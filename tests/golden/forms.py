"""Forms of a round: how one spec is computed in one process or by shards, by matrices or by lists of neighbours.

Everything here that reaches into the library's internals does so to force a form on runs that are far too small for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from bymi import Snapshot, State, simulate
from bymi.core.performance_thresholds import LIMITS
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import sharded_run

LISTS: dict[str, int] = {"lists_from": 1, "nodes_per_place": 0}
STRIPS: dict[str, int] = {**LISTS, "sharded_rows": 1, "sharded_heard": 0, "slice_sets": 2}


@dataclass(frozen=True)
class Form:
    """`words`: what it adds to a spec. `sharded`: in 4 shards, as on ranks. `limits`: those of the library that it changes.

    `absurd`: a number that, sent in every coordinate, some receivers take for a message and others do not.
    """

    words: tuple[str, ...]
    sharded: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    absurd: str = "1e6"


_DENSE, _SPARSE = ("graph=erdos-renyi:p=0.7", "data.dim=10"), ("graph=regular:degree=6", "data.dim=10")

FORMS: dict[str, Form] = {
    "dense": Form(_DENSE),
    "lists": Form(_SPARSE, limits=LISTS),
    "dense, sharded": Form(_DENSE, sharded=True),
    "lists, sharded": Form(_SPARSE, sharded=True, limits=LISTS),
    "slices": Form(("graph=erdos-renyi:p=0.9", "data.dim=100"), sharded=True, absurd="8.8e5"),
    "strips": Form(("graph=regular:degree=8", "data.dim=150"), sharded=True, limits=STRIPS, absurd="8.8e5"),
    # Beyond every limit on dimensions at which the library computes otherwise.
    "long rows": Form(("graph=erdos-renyi:p=0.7", "data.dim=300"), absurd="1.02e6"),
}


@dataclass(frozen=True, eq=False)
class Part:
    """One round as one shard sees it; in one process all nodes are one shard."""

    shard: int
    nodes: Tensor  # [B]
    snapshot: Snapshot


@contextmanager
def forced(form: Form) -> Iterator[None]:
    """The library with the limits of a form inside the block."""
    before = asdict(LIMITS)
    set_limits(form.limits)
    try:
        yield
    finally:
        set_limits(before)


def set_limits(values: Mapping[str, float]) -> None:
    for name, value in values.items():
        assert hasattr(LIMITS, name)
        setattr(LIMITS, name, value)


def resolved_spec_of(words: tuple[str, ...], form: Form) -> ResolvedSpec:
    (spec,) = load(None, [*words, *form.words], 0).expand()
    return spec.resolved


def scene_of(words: tuple[str, ...], form: Form, group: Group | None = None) -> RunSetup:
    """To be called where the form is `forced`."""
    return set_up_run(resolved_spec_of(words, form), Host(device="cpu"), group)


def rounds(words: tuple[str, ...], form: Form, group: Group | None = None, state: State | None = None) -> Iterator[list[Part]]:
    """Every round of a run, by the shards that this process of the `group` holds; in one process also those after a `state`."""
    with forced(form):
        if not form.sharded:
            scene = scene_of(words, form)
            nodes = torch.arange(scene.graph.size)
            for snapshot in simulate(scene.problem, scene.graph, scene.plan, scene.adversary, state):
                yield [Part(0, nodes, snapshot)]
            return
        group = group or Group()
        scene = scene_of(words, form, group)
        spread = sharded_run(scene.problem, scene.graph, scene.adversary, group, layout=scene.layout)
        for snapshots in spread.walk(scene.plan):
            pairs = zip(spread.networks, snapshots, strict=True)
            yield [Part(network.shard, network.nodes, snapshot) for network, snapshot in pairs]
