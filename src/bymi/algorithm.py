"""DRSGD-ByMI: warm-up, detection, optimisation, in order. Paper: alg:DRSGD-ByMI."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bymi.network import Network
from bymi.phases import Forge, NoForge, Snapshot, detect, optimise, warm_up
from bymi.plan import Plan
from bymi.problems import Problem, split_samples


def drsgd_bymi(problem: Problem, network: Network, plan: Plan, forge: Forge | None = None) -> Iterator[Snapshot]:
    """Yield a Snapshot after every round. A plan without a detector is its warm-up rule alone, on all samples."""
    forge = forge or NoForge()
    nodes = network.nodes
    if plan.detector is None:
        everything = torch.arange(problem.samples, device=nodes.device).expand(len(nodes), -1)
        yield from warm_up(problem, network, plan, everything, forge, rounds=plan.steps)
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
