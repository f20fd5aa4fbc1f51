"""From a spec to the objects of a run: roles, graph, data, adversary, plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.aggregation import Average
from bymi.attacks import Adversary, Attack, DataAttack
from bymi.detection import Detector
from bymi.experiment.spec import Spec
from bymi.graph import Graph
from bymi.plan import Optimisation, Plan, StepSize, WarmUp, theorem_step
from bymi.problems import LinearProblem, LinearShard, linear_problem, linear_shard
from bymi.streams import stream


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that a run needs. Only `adversary` and the metrics look at `byzantine`."""

    byzantine: Tensor  # [M] bool
    graph: Graph
    problem: LinearProblem
    adversary: Adversary
    plan: Plan


def build_scene(spec: Spec) -> Scene:
    """The scene of a spec with one method. Each part has its own random stream: a new attack leaves the graph as it was."""
    byzantine = _roles(spec)
    attack: Attack = spec.attack.build()
    return Scene(
        byzantine=byzantine,
        graph=spec.graph.build().draw(spec.nodes, seed=spec.seed, must_connect=~byzantine),
        problem=_problem(spec, byzantine, attack),
        adversary=Adversary(byzantine, attack, mixing=spec.byzantine_mixing, pruning=spec.byzantine_pruning, seed=spec.seed),
        plan=_plan(spec),
    )


def _roles(spec: Spec) -> Tensor:
    """floor(ratio m) Byzantine nodes, drawn uniformly."""
    count = math.floor(spec.byzantine_ratio * spec.nodes + 1e-9)
    byzantine = torch.zeros(spec.nodes, dtype=torch.bool)
    byzantine[stream(spec.seed, "roles").permutation(spec.nodes)[:count]] = True
    return byzantine


def _problem(spec: Spec, byzantine: Tensor, attack: Attack) -> LinearProblem:
    shard = linear_shard(torch.arange(spec.nodes), dim=spec.data.dim, samples=spec.data.samples, seed=spec.seed)
    if isinstance(attack, DataAttack) and bool(byzantine.any()):
        touched = LinearShard(shard.features[byzantine], shard.targets[byzantine], shard.parameter)
        wrong = attack(touched, stream(spec.seed, "attack"))
        places = byzantine.nonzero().flatten()
        shard = shard._replace(
            features=shard.features.index_copy(0, places, wrong.features),
            targets=shard.targets.index_copy(0, places, wrong.targets),
        )
    return linear_problem(shard, seed=spec.seed)


def _plan(spec: Spec) -> Plan:
    method = spec.methods[0]
    detection, optimisation = spec.detection, spec.optimisation
    size = optimisation.step_size
    value = theorem_step(spec.nodes, spec.steps - spec.warm_up_steps) if isinstance(size, str) else size
    return Plan(
        steps=spec.steps,
        warm_up_steps=spec.warm_up_steps,
        warm_up=WarmUp(
            rule=Average() if method == "dsgd" else spec.warm_up.rule.build(),
            step_size=StepSize(spec.warm_up.step_size, spec.warm_up.schedule),
            batch=spec.warm_up.batch,
        ),
        detector=Detector(
            fdr_level=detection.fdr_level,
            offset=detection.offset,
            centre=detection.centre.build(),
            scale=detection.scale.build(),
        )
        if method == "drsgd-bymi"
        else None,
        optimisation=Optimisation(
            step_size=StepSize(value, optimisation.schedule),
            batch=optimisation.batch,
            convention=optimisation.convention,
            max_local_step=optimisation.max_local_step,
            min_weight=optimisation.min_weight,
            premix_rounds=optimisation.premix_rounds,
        ),
        identification=spec.identification,
        seed=spec.seed,
    )
