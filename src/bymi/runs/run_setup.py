"""From a resolved spec to the objects of a run: Byzantine mask, graph, problem, adversary, plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor

from bymi import aggregation, attacks, detection
from bymi.aggregation import Rule
from bymi.attacks import Adversary, Attack, Timetable
from bymi.core import topology
from bymi.core.errors import BymiError, InputError, require
from bymi.core.graph import NOT_MUTUAL, Graph
from bymi.core.mixing_weights import Weights, weighted
from bymi.core.named_parts import build_part
from bymi.core.random_streams import stream
from bymi.core.time_varying_graph import RedrawnGraph
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.shard_layout import ShardLayout
from bymi.distributed.sharded_run import default_layout
from bymi.problems import Problem
from bymi.runs import memory_estimate as footprint
from bymi.runs.evaluators import Evaluator
from bymi.runs.foreign_source_digests import refuse_imports
from bymi.runs.resolved_spec import LARGEST_SEED, ResolvedSpec, make, require_types
from bymi.runs.tasks import TASKS, Task
from bymi.training.decentralised_optimisers import OPTIMISERS
from bymi.training.plan import Optimisation, Plan, StepSize, Stop, WarmUp, theorem_step


@dataclass(frozen=True, eq=False)
class RunSetup:
    """The objects of a run. Only `adversary` and the metrics read `byzantine`."""

    byzantine: Tensor  # [M] bool
    graph: Graph  # of a redrawn one the union
    problem: Problem
    evaluator: Evaluator
    adversary: Adversary
    plan: Plan
    layout: ShardLayout | None = None  # None: this process computes all nodes at once
    redrawn: RedrawnGraph | None = None  # None: the graph stays as it is
    ground_truth: bool = True  # False: real data, nobody knows who is Byzantine


@dataclass(frozen=True, eq=False)
class Given:
    """A caller's objects in place of parts of a spec, which names them by their digests. None: as the spec says."""

    task: Task | None = None
    graph: Graph | None = None
    byzantine: Tensor | None = None  # [M] bool
    rule: Rule | None = None
    ground_truth: bool = True  # False: real data, nobody knows who is Byzantine


def set_up_run(
    spec: ResolvedSpec, host: Host | None = None, group: Group | None = None, given: Given | None = None
) -> RunSetup:
    """The objects of a run. Each part has its own random stream: another attack leaves the graph as it was.

    In a process of a `group` only its own nodes have data. `given`: objects in place of parts of the spec.
    """
    given = given or Given()
    host = host or Host()
    footprint.check(spec, host, 1 if group is None else group.size)
    seed = spec["seed"]
    attack: Attack = build_part(attacks.ATTACKS, spec["attack"])
    task: Task = given.task or build_part(TASKS, spec["data"])
    byzantine, graph = _roles_and_graph(spec, given)
    require(graph.size == spec["nodes"], "graph", f"{graph.size} nodes", f"nodes = {spec['nodes']}")
    redrawn = _redrawn(spec, given, byzantine)
    if redrawn is not None:
        graph = redrawn.union
    if "weights" in spec.values:
        graph = weighted(graph, spec["weights"])
    if spec.method == "drsgd-bymi" and spec["detection"]["pruning"] == "mutual" and not graph.symmetric:
        raise InputError(NOT_MUTUAL)
    device = host.place(gains=task.gains)
    layout = None if group is None else default_layout(graph, task.dtype, device, group)
    require(layout is None or redrawn is None, "redraw_every", spec.values.get("redraw_every"), "off with several ranks")
    blocks = None if layout is None or group is None else layout.blocks(group.rank)
    problem, evaluator = task.build(byzantine, attack, host, seed, blocks)
    if graph.knows_tracker_limit and spec["optimisation"]["premix_rounds"] is None:
        level = spec["byzantine_level"] or getattr(attack, "level", None)
        allowed = "any other with so many nodes, or with optimisation.premix_rounds set: else no tracker is sent"
        require(level != "tracker", "attack", spec["attack"]["name"], allowed)
    byzantine = byzantine.to(device)
    plan = make_plan(spec, task.identification_of(problem.samples), problem.samples)
    if given.rule is not None and spec.method != "dsgd":
        plan = replace(plan, warm_up=replace(plan.warm_up, rule=given.rule))
    return RunSetup(
        byzantine=byzantine,
        graph=graph.to(device),
        problem=problem,
        evaluator=evaluator,
        adversary=_adversary(byzantine, attack, spec, _timetable(plan, graph.size)),
        plan=plan,
        layout=None if layout is None else layout.to(device),
        redrawn=None if redrawn is None else redrawn.to(device),
        ground_truth=given.ground_truth,
    )


def _timetable(plan: Plan, nodes: int) -> Timetable:
    """What attackers know of the plan."""
    first = plan.stop_from
    steps = [0.0] * first + [plan.step_sum(range(step, step + 1), nodes) for step in range(first, plan.steps)]
    return Timetable(tuple(plan.detections), tuple(steps))


def _adversary(byzantine: Tensor, attack: attacks.Attack, spec: ResolvedSpec, timetable: Timetable | None = None) -> Adversary:
    """The adversary of a run. A data attack acts before the run and leaves messages alone."""
    options = {key: spec[f"byzantine_{key}"] for key in ("mixing", "pruning", "level", "start", "period", "faces")}
    attacks.check_options(attack, *(options[key] for key in ("level", "start", "period", "faces")))
    sent = None if isinstance(attack, attacks.DataAttack) else attack
    return Adversary(byzantine, sent, seed=spec["seed"], timetable=timetable, **options)


def _roles_and_graph(spec: ResolvedSpec, given: Given) -> tuple[Tensor, Graph]:
    """Mask [M] of floor(ratio m) Byzantine nodes, drawn before the graph or placed on it, unless given; and the graph."""
    nodes, how, seed = spec["nodes"], spec["byzantine_placement"], spec["seed"]
    count = math.floor(spec["byzantine_ratio"] * nodes + 1e-9)
    recipe: topology.Topology = build_part(topology.TOPOLOGIES, spec["graph"])
    if given.byzantine is None and how != "random":
        graph = given.graph or recipe.draw(nodes, seed=seed)
        return attacks.place(graph, count, how, seed=seed), graph
    byzantine = torch.zeros(nodes, dtype=torch.bool) if given.byzantine is None else given.byzantine
    if given.byzantine is None:
        byzantine[stream(seed, "roles").permutation(nodes)[:count]] = True
    return byzantine, given.graph or recipe.draw(nodes, seed=seed, must_connect=~byzantine)


def _redrawn(spec: ResolvedSpec, given: Given, byzantine: Tensor) -> RedrawnGraph | None:
    """The graphs that take turns, each connected without the Byzantine nodes; None if the graph stays as it is."""
    every = spec.values.get("redraw_every")
    if every is None:
        return None
    require(given.graph is None, "redraw_every", every, "with a graph by name, which can be drawn again")
    recipe: topology.Topology = build_part(topology.TOPOLOGIES, spec["graph"])
    honest = None if spec["byzantine_placement"] != "random" else ~byzantine
    drawn = RedrawnGraph.draw(
        recipe, spec["nodes"], every=every, graphs=spec.values.get("redraw_graphs", 4), seed=spec["seed"], must_connect=honest
    )
    if "weights" not in spec.values:
        return drawn
    return RedrawnGraph([weighted(graph, spec["weights"]) for graph in drawn.graphs], every)


def make_plan(spec: ResolvedSpec, identification: int, samples: int) -> Plan:
    """The plan of a resolved spec, where nodes have `samples` samples and use `identification` of them in detection."""
    warm_up, judging, optimisation = spec["warm_up"], spec["detection"], dict(spec["optimisation"])
    if isinstance(judging["sample"], int):
        require(judging["sample"] <= samples, "detection.sample", judging["sample"], f"2 to {samples}, all that a node has")
    size, schedule = optimisation.pop("step_size"), optimisation.pop("schedule")
    value = theorem_step(spec["nodes"], spec["steps"] - spec.warm_up_steps) if isinstance(size, str) else size
    method = build_part(OPTIMISERS, optimisation.pop("method", {"name": "drsgd"}))
    parts = {
        "centre": build_part(detection.CENTRES, judging["centre"]),
        "scale": build_part(detection.SCALES, judging["scale"]),
        "threshold": build_part(detection.THRESHOLDS, judging.get("threshold", {"name": "published"})),
        "panel": None if spec["panel"] is None else detection.Panel(**spec["panel"]),
    }
    whole = spec.method == "drsgd-bymi"
    alone = None if whole else spec["alone"]  # step sizes of a baseline's own, over all rounds
    pace = alone or warm_up
    return Plan(
        steps=spec["steps"],
        warm_up_steps=spec["steps"] if alone else spec.warm_up_steps,
        warm_up=WarmUp(
            rule=aggregation.Average() if spec.method == "dsgd" else build_part(aggregation.RULES, warm_up["rule"]),
            step_size=StepSize(pace["step_size"], pace["schedule"]),
            batch=pace["batch"],
            cool_down=warm_up["cool_down"],
            order=None if spec.method == "dsgd" else warm_up.get("order"),
        ),
        detector=detection.Detector(**{**judging, **parts}) if whole else None,
        optimisation=Optimisation(step_size=StepSize(value, schedule), method=method, **optimisation),
        watch=detection.Watch(**spec["watch"]) if whole and spec["watch"] is not None else None,
        identification=identification,
        seed=spec["seed"],
        stop=None if spec["stop"] is None else Stop(**spec["stop"]),
    )


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("steps", "nodes", "record_every", "byzantine_start"), int),
    **dict.fromkeys(("graph", "data", "attack", "warm_up", "detection", "optimisation"), dict),
    **dict.fromkeys(("panel", "watch", "alone", "stop"), dict | None),
    "profile": str,
    "byzantine_ratio": float,
    "byzantine_period": int | None,
    "byzantine_placement": attacks.Placement,
    "weights": Weights,
    "redraw_every": int,
    "redraw_graphs": int,
}
_WARM_UP = {**get_type_hints(WarmUp), "steps": int | None, "rule": dict, "step_size": float, "schedule": str}
_DETECTION = {**get_type_hints(detection.Detector), "centre": dict, "scale": dict, "threshold": dict}
_OPTIMISATION = {**get_type_hints(Optimisation), "method": dict, "step_size": float | Literal["theorem"], "schedule": str}


def check_resolved_spec(spec: ResolvedSpec, where: str, *, imports: bool = False) -> None:
    """Raise InputError, in one line that begins with `where`, for a resolved spec that no spec could have given.

    Checks types, bounds and names of all keys; what depends on data or on the graph shows when the run begins. Unless `imports`
    are allowed, nothing that the spec names is imported.
    """
    try:
        require_types(spec.values, _TYPES)
        if not imports:
            refuse_imports(spec.values, where)
        lowest = {"nodes": 2, "steps": 2, "record_every": 1, "byzantine_start": 0, "redraw_every": 1, "redraw_graphs": 2}
        for key, least in lowest.items():
            require(spec.values.get(key, least) >= least, key, spec.values.get(key), f"{least} or more")
        require(0 <= spec["byzantine_ratio"] < 0.5, "byzantine_ratio", spec["byzantine_ratio"], "0 up to, not including, 0.5")
        seed = spec["seed"]
        require(type(seed) is int and 0 <= seed <= LARGEST_SEED, "seed", seed, f"an integer from 0 to {LARGEST_SEED}")
        require_types(spec["warm_up"], _WARM_UP, "warm_up.")
        require_types(spec["detection"], _DETECTION, "detection.")
        require_types(spec["optimisation"], _OPTIMISATION, "optimisation.")
        if spec["alone"] is not None:
            require_types(spec["alone"], _WARM_UP, "alone.")
        for key, kind in (("panel", detection.Panel), ("watch", detection.Watch), ("stop", Stop)):
            if spec[key] is not None:
                make(kind, spec[key])
        for table, part in ((attacks.ATTACKS, "attack"), (TASKS, "data"), (topology.TOPOLOGIES, "graph")):
            make(table[spec[part]["name"]], {key: value for key, value in spec[part].items() if key != "name"})
        _adversary(torch.zeros(2, dtype=torch.bool), build_part(attacks.ATTACKS, spec["attack"]), spec)
        make_plan(spec, 2, 4 if spec["detection"]["sample"] in ("identification", "all") else spec["detection"]["sample"])
        spec.digest  # noqa: B018 - names the method and its rule, too
        spec.label  # noqa: B018
    except BymiError as problem:
        raise InputError(f"{where}: {str(problem).removeprefix(f'{where}: ')}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(f"{where}: {type(problem).__name__} {problem}") from None
