"""Optimisers of the third phase on the linear model: exact and stochastic gradients, equal and different nodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.core.graph import Graph
from bymi.core.network import LocalNetwork
from bymi.core.random_streams import stream
from bymi.core.topology import ErdosRenyi
from bymi.detection import Detector, Panel, Watch
from bymi.experiment.spec import read_spec
from bymi.problems import LinearProblem, linear_problem, linear_shard
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import simulate
from bymi.training.phases import optimise
from bymi.training.plan import Optimisation, Plan, StepSize

NAME = "optimisers"
SHOWS = "Optimisers of the third phase: exact and stochastic gradients, equal and different nodes, constant and falling steps."
NODES, DIM, SAMPLES, ROUNDS, EVERY = 24, 5, 40, 600, 20
CUT = 0.2  # share of in-arcs between honest nodes that each node cuts
SPREAD = 0.5  # of node optima, where nodes differ
STEPS = (0.01, 0.03, 0.1, 0.3)
"""Step sizes of which each method takes the best, by the final gap on seed 100."""

METHODS: dict[str, dict[str, Any]] = {
    "DSGD": {"method": "dsgd"},
    "DGD-RS as printed": {"method": "dgd-rs", "order": "combine-then-adapt"},
    "DRSGD as published": {"method": "drsgd", "order": "combine-then-adapt"},
    "DRSGD": {"method": "drsgd"},
    "DRSGD, momentum 0.9": {"method": "drsgd:momentum=0.9"},
    "FROST": {"method": "frost"},
    "FROST, heavy ball 0.3": {"method": "frost:heavy_ball=0.3"},
    "FROST, own step sizes": {"method": "frost:spread=0.5"},
    "AB": {"method": "ab", "order": "combine-then-adapt"},
    "push-pull": {"method": "push-pull"},
    "DSGD, mutual": {"method": "dsgd", "mutual": True},
    "tracking, mutual": {"method": "gradient-tracking", "mutual": True},
    "tracking, mutual, heavy ball 0.3": {"method": "gradient-tracking:heavy_ball=0.3", "mutual": True},
}
"""Rows. The order is adapt-then-combine unless it is given; `mutual`: over the edges that neither end has cut."""

COLUMNS: dict[str, dict[str, Any]] = {
    "exact, equal": {"batch": "all", "spread": 0.0, "schedule": "constant"},
    "exact, different": {"batch": "all", "spread": SPREAD, "schedule": "constant"},
    "stochastic, equal": {"batch": 8, "spread": 0.0, "schedule": "constant"},
    "stochastic, different": {"batch": 8, "spread": SPREAD, "schedule": "constant"},
    "stochastic, equal, falling": {"batch": 8, "spread": 0.0, "schedule": "linear"},
    "stochastic, different, falling": {"batch": 8, "spread": SPREAD, "schedule": "linear"},
}
"""Gradients over all samples or mini-batches of 8; nodes with samples of one distribution, or of optima of their own."""

WHOLE: dict[str, dict[str, Any]] = {
    "published: DRSGD": {"profile": "paper"},
    "published: FROST": {"profile": "paper", "optimisation": {"method": "frost"}},
    "published: push-pull": {"profile": "paper", "optimisation": {"method": "push-pull"}},
    "hardened: DRSGD": {"profile": "hardened"},
    "hardened: tracking": {"profile": "hardened", "optimisation": {"method": "gradient-tracking"}},
    "hardened: tracking, no clipping": {
        "profile": "hardened",
        "optimisation": {"method": "gradient-tracking"},
        "watch": {"fuse": "off"},
    },
}
"""The whole method under attack: the default experiment with fewer nodes and rounds."""

WHOLE_NODES, WHOLE_ROUNDS = 100, 1000


def points(fast: bool) -> list[dict[str, Any]]:
    """A row, a column and a seed each; then whole runs."""
    seeds = range(1 if fast else 5)
    found: list[dict[str, Any]] = [
        {"column": column, "row": row, "seed": seed} for column in COLUMNS for row in METHODS for seed in seeds
    ]
    found += [{"column": "whole", "row": row, "seed": seed} for row in WHOLE for seed in seeds]
    return [point for point in found if not fast or point["column"] in ("exact, different", "stochastic, equal")]


def measure(point: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """Step size chosen, gap over the rounds and largest distance between nodes at the end; or the end of a whole run."""
    if point["column"] == "whole":
        return _whole_run(point["row"], point["seed"])
    step = _best_step(point["row"], point["column"])
    curve, apart = _curve(point["row"], point["column"], point["seed"], step)
    return {"step": step, "gap": _finite(curve[-1]), "apart": _finite(apart), "curve": [_finite(value) for value in curve]}


_CHOSEN: dict[tuple[str, str], float] = {}


def _best_step(row: str, column: str) -> float:
    """The step size with the smallest final gap on seed 100; the smallest one if all diverge."""
    if (row, column) not in _CHOSEN:
        ends = {step: _curve(row, column, 100, step)[0][-1] for step in STEPS}
        _CHOSEN[row, column] = min(ends, key=lambda step: (not math.isfinite(ends[step]), ends[step]))
    return _CHOSEN[row, column]


def _curve(row: str, column: str, seed: int, step: float) -> tuple[list[float], float]:
    """Mean over nodes of their excess risk, every so many rounds, and the largest distance from the mean at the end."""
    how, where = dict(METHODS[row]), COLUMNS[column]
    mutual = how.pop("mutual", False)
    graph, problem = cut_graph(seed), _problem(seed, where["spread"])
    if mutual:
        graph = Graph.from_hears(graph.mutual)
    detection: dict[str, Any] = {"detector": Detector()}
    if mutual:
        # All nodes average, however few neighbours they have.
        panel = Panel(few=None)
        detection = {"detector": Detector(pruning="mutual", panel=panel), "watch": Watch(every=None, fuse=None)}
    settings = Optimisation(
        StepSize(step, where["schedule"]),
        where["batch"],
        max_local_step=1e9,
        min_weight=1e-9,
        **{"order": "adapt-then-combine", **how},
    )
    plan = Plan(ROUNDS + 1, 1, optimisation=settings, seed=seed, **detection)
    nodes = torch.arange(NODES)
    best, theta = problem.minimiser(nodes), problem.initial(nodes)
    curvature = problem.curvature(nodes)
    found: list[float] = []
    for snapshot in optimise(problem, LocalNetwork(graph), plan, theta, FollowsProtocol()):
        theta = snapshot.theta
        if (snapshot.step - 1) % EVERY == 0:
            found.append(_excess(theta, best, curvature))
            if not math.isfinite(found[-1]) or found[-1] > 1e12:
                return [*found, math.inf], math.inf
    return found, float((theta - theta.mean(0)).norm(dim=1).max())


def _excess(theta: Tensor, best: Tensor, curvature: Tensor) -> float:
    """Mean over nodes of risk(theta_i) - risk(best), over the samples of all nodes."""
    off = theta - best
    return float(((off @ curvature) * off).sum(1).mean() / 2)


def cut_graph(seed: int) -> Graph:
    """An Erdos-Renyi graph after one-sided cuts, strongly connected, of which the mutual arcs are connected, too."""
    for attempt in range(1000):
        graph = ErdosRenyi(0.5).draw(NODES, seed=seed)
        cut = graph.prune(stream(seed, "optimisers cuts", step=attempt).uniform(NODES, NODES) < CUT)
        if bool(cut.core().members.all()) and bool(Graph.from_hears(cut.mutual).core().members.all()):
            return cut
    raise AssertionError("no connected graph in a thousand draws")


def _problem(seed: int, spread: float) -> LinearProblem:
    shard = linear_shard(torch.arange(NODES), dim=DIM, samples=SAMPLES, seed=seed, optimum_spread=spread)
    return linear_problem(shard, seed=seed)


def _whole_run(row: str, seed: int) -> dict[str, Any]:
    """A run under attack: gap of the core's mean model to the optimum of honest nodes and of the core, who is in it."""
    base = {"method": "drsgd-bymi", "seed": seed, "nodes": WHOLE_NODES, "steps": WHOLE_ROUNDS}
    setup = set_up_run(read_spec({**base, **WHOLE[row]}).resolved)
    honest = (~setup.byzantine).nonzero().flatten()
    assert isinstance(setup.problem, LinearProblem)
    graph, theta = setup.graph, setup.problem.initial(honest)
    for snapshot in simulate(setup.problem, setup.graph, setup.plan, setup.adversary):
        theta = snapshot.theta
        if snapshot.network is not None:
            graph = snapshot.network.graph  # type: ignore[attr-defined]
    core = graph.core().members
    gap = float(setup.problem.excess(theta[core].mean(0), setup.problem.minimiser(honest), honest))
    own = setup.problem.minimiser(core.nonzero().flatten())
    to_own = float(setup.problem.excess(theta[core].mean(0), own, core.nonzero().flatten()))
    return {
        "gap": _finite(gap),
        "gap_to_core": _finite(to_own),
        "core": int(core.sum()),
        "core_byzantine": int((core & setup.byzantine).sum()),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
