"""DRSGD-ByMI: warm-up, detection, optimisation, in order. Paper: alg:DRSGD-ByMI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from bymi.detection import Record, Trail
from bymi.detection.fuse import shorten
from bymi.detection.retreat import misled
from bymi.network import Network
from bymi.phases import Forge, NoForge, Snapshot, detect, judge, optimise, warm_up
from bymi.plan import Plan
from bymi.problems import Problem, split_samples

_FUSE = 3.0  # by which deeds are measured where no fuse acts


def drsgd_bymi(problem: Problem, network: Network, plan: Plan, forge: Forge | None = None) -> Iterator[Snapshot]:
    """Yield a Snapshot after every round. A plan without a detector is its warm-up rule alone, on all samples."""
    forge = forge or NoForge()
    nodes = network.nodes
    everything = torch.arange(problem.samples, device=nodes.device).expand(len(nodes), -1)
    if plan.detector is None:
        yield from warm_up(problem, network, plan, everything, forge, rounds=plan.steps)
        return
    if plan.watch is not None:
        yield from _watched(problem, network, plan, everything, forge)
        return

    split = split_samples(nodes, samples=problem.samples, identification=plan.identification, seed=plan.seed)
    theta = problem.initial(nodes)
    for snapshot in warm_up(problem, network, plan, split.warm_up, forge, rounds=plan.warm_up_steps):
        theta = snapshot.theta
        yield snapshot

    detection = detect(problem, network, plan, split, theta, forge)
    yield detection

    assert detection.network is not None
    yield from optimise(problem, detection.network, plan, theta, forge)


def _watched(problem: Problem, network: Network, plan: Plan, everything: Tensor, forge: Forge) -> Iterator[Snapshot]:
    """The hardened profile: the same three phases, the last two in turns, with an eye on what neighbours really send."""
    assert plan.watch is not None
    moments = plan.detections
    record = Record.blank(network.arcs, plan.watch.longest)
    theta, trail = problem.initial(network.nodes), Trail()
    for snapshot in warm_up(problem, network, plan, everything, forge, rounds=plan.warm_up_steps):
        # No deeds to judge yet: under a robust rule good nodes stand apart, too, those whom it makes refuse most others.
        theta = snapshot.theta
        yield snapshot

    rounds = plan.steps - plan.warm_up_steps
    used, before = network.arcs, theta  # whom nodes listen to, and where they stood, since the detection before
    for start, end in pairwise([*moments, plan.steps]):
        detection, record = judge(problem, network, plan, theta, forge, step=start, trail=trail, record=record)
        verdict, pruned = detection.verdict, detection.network
        assert verdict is not None
        assert pruned is not None
        if start == moments[-1] > moments[0] and plan.watch.retreat is not None:
            back = misled(verdict, used, plan.watch.retreat)
            theta = torch.where(back[:, None], before, theta)
            detection = replace(detection, theta=theta)
        yield detection
        network, trail = pruned, Trail()
        used, before = network.arcs & ~verdict.flagged, theta
        for snapshot in optimise(problem, network, plan, theta, forge, steps=range(start, end)):
            theta = snapshot.theta
            if end < plan.steps:
                rate = plan.optimisation.step_size.at(snapshot.step - 1 - plan.warm_up_steps, rounds)
                trail.see(snapshot.inbox, rate, *_shorten(plan, snapshot))
            yield snapshot


def _shorten(plan: Plan, snapshot: Snapshot) -> tuple[Tensor, Tensor]:
    """What the fuse did to the messages of a round, or would have done."""
    if snapshot.share is not None and snapshot.blown is not None:
        return snapshot.share, snapshot.blown
    factor = None if plan.watch is None else plan.watch.fuse
    share, blown = shorten(snapshot.inbox, factor or _FUSE)
    return share, blown if factor is not None else torch.zeros_like(blown)
