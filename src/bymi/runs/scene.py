"""From a sheet to the objects of a run: roles, graph, problem, adversary, plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bymi import aggregation, attacks, detection, topology
from bymi.attacks import Adversary, Attack
from bymi.engine.distributed import usual_layout
from bymi.engine.group import Group
from bymi.engine.host import Host
from bymi.engine.layout import Layout
from bymi.errors import require
from bymi.graph import Graph
from bymi.parts import build_part
from bymi.plan import Optimisation, Plan, StepSize, Stop, WarmUp, theorem_step
from bymi.problems import Problem
from bymi.runs.sheet import Sheet
from bymi.runs.tasks import TASKS, Task
from bymi.runs.yardsticks import Yardstick
from bymi.sparse import SparseGraph
from bymi.streams import stream


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that a run needs. Only `adversary` and the metrics look at `byzantine`."""

    byzantine: Tensor  # [M] bool
    graph: Graph | SparseGraph
    problem: Problem
    yardstick: Yardstick
    adversary: Adversary
    plan: Plan
    layout: Layout | None = None  # who holds which nodes; None: this process all of them, and all at once


def build_scene(sheet: Sheet, host: Host | None = None, group: Group | None = None) -> Scene:
    """The scene of a sheet. Each part has its own random stream: a new attack leaves the graph as it was.

    In a process of a `group` it is a part of it: only its nodes have data.
    """
    host = host or Host()
    seed = sheet.seed
    attack: Attack = build_part(attacks.ATTACKS, sheet["attack"])
    task: Task = build_part(TASKS, sheet["data"])
    byzantine, graph = _roles_and_graph(sheet)
    require(graph.size == sheet["nodes"], "graph", f"{graph.size} nodes", f"nodes = {sheet['nodes']}")
    if sheet.method == "drsgd-bymi" and sheet["detection"]["pruning"] == "mutual":
        require(graph.symmetric, "detection.pruning", "mutual", "directed, on a graph in which not all who are heard hear")
    device = host.place(gains=task.gains)
    layout = None if group is None else usual_layout(graph, task.dtype, device, group)
    blocks = None if layout is None or group is None else layout.blocks(group.rank)
    problem, yardstick = task.build(byzantine, attack, host, seed, blocks)
    if isinstance(graph, SparseGraph) and sheet["optimisation"]["premix_rounds"] is None:
        level = sheet["byzantine_level"] or getattr(attack, "level", None)
        allowed = "any other with so many nodes, or with optimisation.premix_rounds set: else no tracker is sent"
        require(level != "tracker", "attack", sheet["attack"]["name"], allowed)
    byzantine = byzantine.to(device)
    options = {key: sheet[f"byzantine_{key}"] for key in ("mixing", "pruning", "level", "start", "period", "faces")}
    attacks.check_options(attack, *(options[key] for key in ("level", "start", "period", "faces")))
    return Scene(
        byzantine=byzantine,
        graph=graph.to(device),
        problem=problem,
        yardstick=yardstick,
        adversary=Adversary(byzantine, None if isinstance(attack, attacks.DataAttack) else attack, seed=seed, **options),
        plan=_plan(sheet, task.identification_of(problem.samples), problem.samples),
        layout=None if layout is None else layout.to(device),
    )


def _roles_and_graph(sheet: Sheet) -> tuple[Tensor, Graph | SparseGraph]:
    """floor(ratio m) Byzantine nodes, drawn uniformly before there is a graph or placed on it."""
    nodes, how, seed = sheet["nodes"], sheet["byzantine_placement"], sheet.seed
    count = math.floor(sheet["byzantine_ratio"] * nodes + 1e-9)
    recipe: topology.Topology = build_part(topology.TOPOLOGIES, sheet["graph"])
    if how != "random":
        graph = recipe.draw(nodes, seed=seed)
        return attacks.place(graph, count, how, seed=seed), graph
    byzantine = torch.zeros(nodes, dtype=torch.bool)
    byzantine[stream(seed, "roles").permutation(nodes)[:count]] = True
    return byzantine, recipe.draw(nodes, seed=seed, must_connect=~byzantine)


def _plan(sheet: Sheet, identification: int, samples: int) -> Plan:
    warm_up, judging, optimisation = sheet["warm_up"], sheet["detection"], dict(sheet["optimisation"])
    if isinstance(judging["sample"], int):
        require(judging["sample"] <= samples, "detection.sample", judging["sample"], f"2 to {samples}, all that a node has")
    size, schedule = optimisation.pop("step_size"), optimisation.pop("schedule")
    value = theorem_step(sheet["nodes"], sheet.steps - sheet.warm_up_steps) if isinstance(size, str) else size
    parts = {
        "centre": build_part(detection.CENTRES, judging["centre"]),
        "scale": build_part(detection.SCALES, judging["scale"]),
        "panel": None if sheet["panel"] is None else detection.Panel(**sheet["panel"]),
    }
    whole = sheet.method == "drsgd-bymi"
    alone = None if whole else sheet["alone"]  # steps of a baseline of its own, over all rounds
    pace = alone or warm_up
    return Plan(
        steps=sheet.steps,
        warm_up_steps=sheet.steps if alone else sheet.warm_up_steps,
        warm_up=WarmUp(
            rule=aggregation.Average() if sheet.method == "dsgd" else build_part(aggregation.RULES, warm_up["rule"]),
            step_size=StepSize(pace["step_size"], pace["schedule"]),
            batch=pace["batch"],
            cool_down=warm_up["cool_down"],
        ),
        detector=detection.Detector(**{**judging, **parts}) if whole else None,
        optimisation=Optimisation(step_size=StepSize(value, schedule), **optimisation),
        watch=detection.Watch(**sheet["watch"]) if whole and sheet["watch"] is not None else None,
        identification=identification,
        seed=sheet.seed,
        stop=None if sheet["stop"] is None else Stop(**sheet["stop"]),
    )
