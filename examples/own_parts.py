"""Your own graph, rule and attack in one run: `python examples/own_parts.py`."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

import bymi
from bymi.attacks import VectorAttack
from bymi.engine import simulate
from bymi.problems import linear_problem, linear_shard


@dataclass(frozen=True)
class Nearest(bymi.WeightedRule):
    """Average the own model with the k nearest ones: a rule is its parameters and one pure method."""

    k: int = 8

    def weigh(self, inbox: bymi.Inbox, round: bymi.Round) -> bymi.Mixture:
        distance = torch.where(inbox.heard, inbox.dist2_to_own(), torch.inf)
        near = inbox.heard & (distance.argsort(1).argsort(1) < self.k)
        share = 1.0 / (1 + near.sum(1, dtype=torch.float64))
        return bymi.Mixture(own=share, weight=near * share[:, None])


@dataclass(frozen=True)
class Push(VectorAttack):
    """Everybody under attack uses the clean mean gradient plus a constant."""

    size: float = 2.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: bymi.Stream, fresh: bymi.Stream) -> Tensor:
        return (honest.mean(0) + self.size).expand_as(would_send)


def main() -> None:
    graph = bymi.Graph.from_networkx(nx.random_regular_graph(30, 60, seed=1))
    byzantine = torch.arange(60) < 9
    problem = linear_problem(linear_shard(torch.arange(60), dim=10, samples=100, seed=0), seed=0)
    plan = bymi.Plan(
        steps=600, warm_up_steps=100, warm_up=bymi.WarmUp(Nearest(), bymi.StepSize(0.05)), detector=bymi.Detector()
    )
    adversary = bymi.Adversary(byzantine, Push())
    clean = (~byzantine).nonzero().flatten()
    best = problem.minimiser(clean)
    for snapshot in simulate(problem, graph, plan, adversary):
        if snapshot.verdict is not None:
            found = (snapshot.verdict.flagged | ~graph.hears)[clean][:, byzantine]
            print(f"attackers found by {found.all(1).sum()} of {len(clean)} honest nodes")
        if snapshot.step % 100 == 0:
            gap = problem.excess(snapshot.theta[clean].mean(0), best, clean)
            print(f"round {snapshot.step:4d}  {snapshot.phase:12s}  gap {gap:.1e}")


if __name__ == "__main__":
    main()
