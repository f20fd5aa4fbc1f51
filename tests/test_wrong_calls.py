"""Wrong calls of everything that is public: each is one line that names the argument, and none is accepted in silence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import bymi
from bymi import attacks, datasets, detection, experiment
from bymi import power_analysis as power
from bymi.attacks import Adversary
from bymi.core.errors import BymiError, GraphError, InputError, is_integer, is_number, shown
from bymi.core.named_parts import Checked, check_fields, read_value
from bymi.core.neighbour_lists import NeighbourLists
from bymi.distributed.device_and_thread_settings import Host
from bymi.problems import LinearShard, linear_problem, linear_shard
from bymi.runs import tasks

NODES = 6
MASK = torch.arange(NODES) < 2
GRAPH = bymi.Complete().draw(NODES)
SHARD = linear_shard(torch.arange(NODES), dim=3, samples=8, seed=0)
LINEAR = linear_problem(SHARD, seed=0)
PLAN = bymi.Plan(4, 2, detector=bymi.Detector(), identification=4)
IMAGES = bymi.Shards(torch.zeros(NODES, 4, 3), torch.zeros(NODES, 4, dtype=torch.int64))
MODEL, LOSS = nn.Linear(3, 2), nn.functional.cross_entropy
VECTORS = torch.zeros(NODES, 3)
HALVES = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
NAN, INF = math.nan, math.inf
TWO_RINGS = nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))
SPEC = experiment.load(None, ["method=dsgd"])


def module(**changed: Any) -> bymi.ModuleProblem:
    return bymi.ModuleProblem(**{"model": MODEL, "loss": LOSS, "shards": IMAGES, **changed})


def linear(**changed: Any) -> bymi.LinearProblem:
    return dataclasses.replace(LINEAR, **changed)


def receive(**changed: Any) -> bymi.Inbox:
    given = {"own": VECTORS, "messages": VECTORS, "expected": GRAPH.hears, "weight": GRAPH.weight}
    return bymi.Inbox.receive(**{**given, "self_weight": GRAPH.self_weight, **changed})


CALLS: list[tuple[str, Callable[[], object]]] = [
    # An adversary: names are taken, anything else is refused.
    ("attack", lambda: Adversary(MASK, attacks.GradientAttack)),  # type: ignore[arg-type]
    ("attack", lambda: Adversary(MASK, "gradients of others")),
    ("attack", lambda: Adversary(MASK, "")),
    ("attack", lambda: Adversary(MASK, "ipm:b=2.0")),
    ("attack", lambda: Adversary(MASK, "ipm:a=two")),
    ("attack", lambda: Adversary(MASK, "ipm:a=nan")),
    ("attack", lambda: Adversary(MASK, "zero:a=1")),
    ("attack", lambda: Adversary(MASK, 3)),  # type: ignore[arg-type]
    ("attack", lambda: Adversary(MASK, bymi.IOS())),  # type: ignore[arg-type]
    ("attack", lambda: Adversary(MASK, lambda honest: -honest)),  # type: ignore[arg-type]
    ("attack", lambda: Adversary(MASK, "label-flip")),  # of data: it would do nothing here
    ("attack", lambda: Adversary(MASK, attacks.OutOfDistribution())),  # type: ignore[arg-type]
    ("members", lambda: Adversary(MASK.int(), "ipm")),
    ("members", lambda: Adversary([0, 1], "ipm")),  # type: ignore[arg-type]
    ("members", lambda: Adversary(MASK[None], "ipm")),
    ("members", lambda: Adversary(MASK[:0], "ipm")),
    ("members", lambda: Adversary(None, "ipm")),  # type: ignore[arg-type]
    ("members", lambda: Adversary([[True], [True, False]], "ipm")),  # type: ignore[arg-type]
    ("mixing", lambda: Adversary(MASK, "ipm", mixing="all")),  # type: ignore[arg-type]
    ("pruning", lambda: Adversary(MASK, "ipm", pruning=None)),  # type: ignore[arg-type]
    ("seed", lambda: Adversary(MASK, "ipm", seed=0.5)),  # type: ignore[arg-type]
    ("start", lambda: Adversary(MASK, "ipm", start="now")),  # type: ignore[arg-type]
    ("period", lambda: Adversary(MASK, "ipm", period=True)),
    ("level", lambda: Adversary(MASK, "ipm", level=["pair"])),  # type: ignore[arg-type]
    ("faces", lambda: Adversary(MASK, "ipm", faces=2)),  # type: ignore[arg-type]
    # The settings of a run.
    ("rule", lambda: bymi.WarmUp(bymi.IOS)),  # type: ignore[arg-type]
    ("rule", lambda: bymi.WarmUp("crumb")),  # type: ignore[arg-type]
    ("rule", lambda: bymi.WarmUp("ios:shares=0.3")),  # type: ignore[arg-type]
    ("rule", lambda: bymi.WarmUp("ios:share=7")),  # type: ignore[arg-type]
    ("rule", lambda: bymi.WarmUp(None)),  # type: ignore[arg-type]
    ("rule", lambda: bymi.WarmUp(attacks.Zero())),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.WarmUp(step_size="0.1")),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.WarmUp(step_size=True)),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.WarmUp(step_size=-0.1)),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.WarmUp(step_size=NAN)),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.WarmUp(step_size=bymi.StepSize)),  # type: ignore[arg-type]
    ("batch", lambda: bymi.WarmUp(batch=0)),
    ("batch", lambda: bymi.WarmUp(batch=8.0)),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.Optimisation(step_size=None)),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.Optimisation(step_size=INF)),  # type: ignore[arg-type]
    ("batch", lambda: bymi.Optimisation(batch=True)),
    ("max_local_step", lambda: bymi.Optimisation(max_local_step=NAN)),
    ("min_weight", lambda: bymi.Optimisation(min_weight="0.1")),  # type: ignore[arg-type]
    ("premix_rounds", lambda: bymi.Optimisation(premix_rounds=-1)),
    ("order", lambda: bymi.Optimisation(order="adapt")),  # type: ignore[arg-type]
    ("convention", lambda: bymi.Optimisation(convention=1)),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.StepSize("0.1")),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.StepSize(torch.tensor([0.1, 0.2]))),  # type: ignore[arg-type]
    ("step_size", lambda: bymi.StepSize(10**400)),
    ("schedule", lambda: bymi.StepSize(0.1, "cosine")),  # type: ignore[arg-type]
    ("steps", lambda: bymi.Plan(0, 0, detector=None)),
    ("steps", lambda: bymi.Plan("10", 2, detector=bymi.Detector())),  # type: ignore[arg-type]
    ("warm_up_steps", lambda: bymi.Plan(10, 10, detector=bymi.Detector())),
    ("warm_up_steps", lambda: bymi.Plan(10, 2.5, detector=bymi.Detector())),  # type: ignore[arg-type]
    ("warm_up", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), warm_up="balance")),  # type: ignore[arg-type]
    ("warm_up", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), warm_up=bymi.WarmUp)),  # type: ignore[arg-type]
    ("detector", lambda: bymi.Plan(10, 2, detector="hardened")),  # type: ignore[arg-type]
    ("detector", lambda: bymi.Plan(10, 2, detector=bymi.Detector)),  # type: ignore[arg-type]
    ("optimisation", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), optimisation=0.1)),  # type: ignore[arg-type]
    ("watch", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), watch=True)),  # type: ignore[arg-type]
    ("identification", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), identification=1)),
    ("seed", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), seed=None)),  # type: ignore[arg-type]
    ("seed", lambda: bymi.Plan(10, 2, detector=bymi.Detector(), seed=-1)),
    # Detection.
    ("fdr_level", lambda: bymi.Detector(fdr_level=NAN)),
    ("fdr_level", lambda: bymi.Detector(fdr_level="0.2")),  # type: ignore[arg-type]
    ("offset", lambda: bymi.Detector(offset=True)),
    ("centre", lambda: bymi.Detector(centre="ios")),  # type: ignore[arg-type]
    ("centre", lambda: bymi.Detector(centre=bymi.Median)),  # type: ignore[arg-type]
    ("centre", lambda: bymi.Detector(centre=bymi.BALANCE())),  # type: ignore[arg-type]
    ("centre", lambda: bymi.Detector(centre="trimmed-mean:share=0.7")),  # type: ignore[arg-type]
    ("scale", lambda: bymi.Detector(scale="variance")),  # type: ignore[arg-type]
    ("scale", lambda: bymi.Detector(scale=0.95)),  # type: ignore[arg-type]
    ("panel", lambda: bymi.Detector(panel=bymi.Panel)),  # type: ignore[arg-type]
    ("point", lambda: bymi.Detector(point="middle")),  # type: ignore[arg-type]
    ("sample", lambda: bymi.Detector(sample=1)),
    ("sample", lambda: bymi.Detector(sample="half")),  # type: ignore[arg-type]
    ("cross_fit", lambda: bymi.Detector(cross_fit="yes")),  # type: ignore[arg-type]
    ("exile", lambda: bymi.Detector(exile=INF)),
    ("strong", lambda: bymi.Panel(strong=-1.0)),
    ("most", lambda: bymi.Panel(most=None)),  # type: ignore[arg-type]
    ("every", lambda: bymi.Watch(every=0.5)),  # type: ignore[arg-type]
    ("longest", lambda: bymi.Watch(longest=True)),
    ("variance", lambda: bymi.Principal("all")),  # type: ignore[arg-type]
    ("first", lambda: bymi.identify(None, HALVES)),
    ("first", lambda: bymi.identify("gradients.npy", HALVES)),
    ("first", lambda: bymi.identify(HALVES[0], HALVES[0])),
    ("second", lambda: bymi.identify(HALVES, HALVES[:, :2])),
    ("centre", lambda: bymi.identify(HALVES, HALVES, profile="published", centre="average")),  # type: ignore[arg-type]
    ("scale", lambda: bymi.identify(HALVES, HALVES, profile="published", scale=bymi.Identity)),  # type: ignore[arg-type]
    ("own", lambda: bymi.identify(HALVES, HALVES, own="first")),  # type: ignore[arg-type]
    ("own", lambda: bymi.identify(HALVES, HALVES, own=8)),
    ("fdr_level", lambda: bymi.identify(HALVES, HALVES, fdr_level=2)),
    ("offset", lambda: bymi.identify(HALVES, HALVES, profile="published", offset="0")),  # type: ignore[arg-type]
    # Graphs and networks.
    ("hears", lambda: bymi.MatrixGraph(GRAPH.hears.numpy(), GRAPH.mixing)),  # type: ignore[arg-type]
    ("hears", lambda: bymi.MatrixGraph(nx.cycle_graph(4), GRAPH.mixing)),  # type: ignore[arg-type]
    ("mixing", lambda: bymi.MatrixGraph(GRAPH.hears, GRAPH.mixing.float())),
    ("mixing", lambda: bymi.MatrixGraph(GRAPH.hears, GRAPH.mixing * NAN)),
    ("mixing", lambda: bymi.MatrixGraph(GRAPH.hears, None)),  # type: ignore[arg-type]
    ("square", lambda: bymi.MatrixGraph(GRAPH.hears[:3], GRAPH.mixing)),
    ("hears", lambda: bymi.Graph.from_hears(GRAPH.mixing)),
    ("adjacency", lambda: bymi.Graph.from_adjacency("graph.txt")),
    ("adjacency", lambda: bymi.Graph.from_adjacency([[0, 1], [1]])),
    ("adjacency", lambda: bymi.Graph.from_adjacency([[0, NAN], [1, 0]])),
    ("adjacency", lambda: bymi.Graph.from_adjacency(np.zeros((2, 3)))),
    ("graph", lambda: bymi.Graph.from_networkx(np.ones((3, 3)))),  # type: ignore[arg-type]
    ("path", lambda: bymi.Graph.read(7)),  # type: ignore[arg-type]
    ("lists", lambda: bymi.ListGraph(GRAPH.hears, GRAPH.hears, GRAPH.weight, GRAPH.self_weight)),  # type: ignore[arg-type]
    ("weight", lambda: bymi.ListGraph(NeighbourLists(GRAPH.hears.long(), GRAPH.hears), GRAPH.hears, None, GRAPH.self_weight)),  # type: ignore[arg-type]
    ("ends", lambda: bymi.ListGraph.of_edges([(0, 1), (1, 2)], 3)),  # type: ignore[arg-type]
    ("ends", lambda: bymi.ListGraph.of_edges(torch.tensor([[0, 3]]), 3)),
    ("ends", lambda: bymi.ListGraph.of_edges(torch.tensor([0, 1]), 3)),
    ("size", lambda: bymi.ListGraph.of_edges(torch.tensor([[0, 1]]), 2.0)),  # type: ignore[arg-type]
    ("p", lambda: bymi.ErdosRenyi("half")),  # type: ignore[arg-type]
    ("p", lambda: bymi.ErdosRenyi(0)),
    ("degree", lambda: bymi.Regular(2.5)),  # type: ignore[arg-type]
    ("path", lambda: bymi.EdgeFile(None)),  # type: ignore[arg-type]
    ("directed", lambda: bymi.EdgeFile("edges.txt", directed=1)),  # type: ignore[arg-type]
    ("nodes", lambda: bymi.ErdosRenyi().draw("10")),  # type: ignore[arg-type]
    ("nodes", lambda: bymi.Complete().draw(True)),
    ("nodes", lambda: bymi.Ring().draw(-5)),
    ("seed", lambda: bymi.Regular(2).draw(6, seed=0.5)),  # type: ignore[arg-type]
    ("must_connect", lambda: bymi.ErdosRenyi().draw(NODES, must_connect=[True] * NODES)),  # type: ignore[arg-type]
    ("graph", lambda: bymi.LocalNetwork("ring")),
    ("graph", lambda: bymi.LocalNetwork(None)),
    ("graph", lambda: bymi.LocalNetwork(bymi.Ring())),
    ("variants", lambda: bymi.LocalNetwork(GRAPH, variants=Adversary(MASK, "ipm"))),  # type: ignore[arg-type]
    # What a round is made of.
    ("seed", lambda: bymi.stream("seed", "batch")),  # type: ignore[arg-type]
    ("seed", lambda: bymi.stream(0.0, "batch")),  # type: ignore[arg-type]
    ("purpose", lambda: bymi.stream(0, 1)),  # type: ignore[arg-type]
    ("node", lambda: bymi.stream(0, "batch", node=1.5)),  # type: ignore[arg-type]
    ("step", lambda: bymi.stream(0, "batch", step=torch.tensor(0.5))),
    ("source", lambda: bymi.Stream(7)),  # type: ignore[arg-type]
    ("step", lambda: bymi.Round(step=-1)),
    ("steps", lambda: bymi.Round(0, 0)),
    ("losses", lambda: bymi.Round(0, 1, losses=0.3)),  # type: ignore[arg-type]
    ("step", lambda: bymi.State("1", "warm-up", VECTORS)),  # type: ignore[arg-type]
    ("theta", lambda: bymi.State(1, "warm-up", None)),  # type: ignore[arg-type]
    ("own", lambda: bymi.Mixture(torch.ones(3, 1), torch.zeros(3, 4))),
    ("weight", lambda: bymi.Mixture(torch.ones(3), torch.zeros(4, 4))),
    ("own", lambda: receive(own=VECTORS.numpy())),
    ("messages", lambda: receive(messages=VECTORS[:, :2])),
    ("messages", lambda: receive(messages=None)),
    ("expected", lambda: receive(expected=GRAPH.weight)),
    ("weight", lambda: receive(weight=GRAPH.weight[:3])),
    ("self_weight", lambda: receive(self_weight=1.0)),
    # Problems.
    ("rows", lambda: linear(rows=LINEAR.rows.numpy())),
    ("rows", lambda: linear(rows=LINEAR.rows[0])),
    ("start", lambda: linear(start=LINEAR.start * NAN)),
    ("parameter", lambda: linear(parameter=LINEAR.parameter + INF)),
    ("rows", lambda: linear(rows=LINEAR.rows[:, :, :1])),
    ("parameter", lambda: linear(parameter=LINEAR.parameter[:2])),
    ("start", lambda: linear(start=None)),
    ("numbers", lambda: linear(numbers=[0, 1, 2, 3, 4, 5])),
    ("numbers", lambda: linear(numbers=torch.tensor([0, 1, 2, 3, 4, 4]))),
    ("nodes", lambda: linear_shard(6, dim=3, samples=8, seed=0)),  # type: ignore[arg-type]
    ("dim", lambda: linear_shard(torch.arange(3), dim=0, samples=8, seed=0)),
    ("samples", lambda: linear_shard(torch.arange(3), dim=2, samples="8", seed=0)),  # type: ignore[arg-type]
    ("shard", lambda: linear_problem(SHARD.features, seed=0)),  # type: ignore[arg-type]
    ("features", lambda: linear_problem(SHARD._replace(features=SHARD.features * INF), seed=0)),
    ("targets", lambda: linear_problem(LinearShard(SHARD.features, SHARD.targets[:2], SHARD.parameter), seed=0)),
    ("model", lambda: module(model=nn.Linear)),
    ("model", lambda: module(model=lambda inputs: inputs)),
    ("model", lambda: module(model=nn.Linear(4, 2))),
    ("model", lambda: module(model=nn.ReLU())),
    ("loss", lambda: module(loss="cross_entropy")),
    ("loss", lambda: module(loss=nn.CrossEntropyLoss)),
    ("loss", lambda: module(loss=nn.MSELoss())),
    ("loss", lambda: module(loss=nn.CrossEntropyLoss(reduction="none"))),
    ("shards", lambda: module(shards=IMAGES.inputs)),
    ("shards", lambda: module(shards=(IMAGES.inputs.numpy(), IMAGES.targets.numpy()))),
    ("shards", lambda: module(shards=bymi.Shards(IMAGES.inputs[:, :3], IMAGES.targets))),
    ("shards", lambda: module(shards=bymi.Shards(IMAGES.inputs[:0], IMAGES.targets[:0]))),
    ("shards", lambda: module(shards=bymi.Shards(IMAGES.inputs * NAN, IMAGES.targets))),
    ("start", lambda: module(start=torch.zeros(7))),
    ("start", lambda: module(start=[0.0] * 8)),
    ("numbers", lambda: module(numbers=torch.arange(3))),
    ("gradients", lambda: module(gradients="fast")),
    ("threads", lambda: module(threads=0)),
    # A run: what does not fit together is refused before the first round.
    ("problem", lambda: bymi.simulate(bymi.LinearProblem, GRAPH, PLAN)),  # type: ignore[arg-type]
    ("problem", lambda: bymi.simulate(SHARD, GRAPH, PLAN)),  # type: ignore[arg-type]
    ("problem", lambda: bymi.simulate(LINEAR, bymi.Complete().draw(NODES + 1), PLAN)),
    ("problem", lambda: bymi.simulate(LINEAR, bymi.Complete().draw(NODES - 1), PLAN)),
    ("problem", lambda: bymi.simulate(module(), bymi.Complete().draw(NODES + 1), PLAN)),
    ("problem", lambda: bymi.simulate(linear(numbers=torch.arange(NODES) + 1), GRAPH, PLAN)),
    ("graph", lambda: bymi.simulate(LINEAR, bymi.Ring(), PLAN)),
    ("graph", lambda: bymi.simulate(LINEAR, "complete", PLAN)),
    ("graph", lambda: bymi.simulate(LINEAR, TWO_RINGS, PLAN)),
    ("graph", lambda: bymi.simulate(LINEAR, np.zeros((NODES, NODES)), PLAN)),
    ("adjacency", lambda: bymi.simulate(LINEAR, np.zeros(NODES), PLAN)),
    ("plan", lambda: bymi.simulate(LINEAR, GRAPH, 100)),  # type: ignore[arg-type]
    ("plan", lambda: bymi.simulate(LINEAR, GRAPH, bymi.Plan)),  # type: ignore[arg-type]
    ("adversary", lambda: bymi.simulate(LINEAR, GRAPH, PLAN, "ipm")),  # type: ignore[arg-type]
    ("adversary", lambda: bymi.simulate(LINEAR, GRAPH, PLAN, MASK)),  # type: ignore[arg-type]
    ("adversary", lambda: bymi.simulate(LINEAR, GRAPH, PLAN, Adversary(MASK[:3], "ipm"))),
    ("state", lambda: bymi.simulate(LINEAR, GRAPH, PLAN, None, 3)),  # type: ignore[arg-type]
    ("state", lambda: bymi.simulate(LINEAR, GRAPH, PLAN, None, bymi.State(1, "warm-up", VECTORS[:2]))),
    ("identification", lambda: bymi.simulate(LINEAR, GRAPH, bymi.Plan(4, 2, detector=bymi.Detector(), identification=8))),
    ("network", lambda: bymi.drsgd_bymi(LINEAR, GRAPH, PLAN)),  # type: ignore[arg-type]
    ("network", lambda: bymi.drsgd_bymi(LINEAR, bymi.LocalNetwork, PLAN)),  # type: ignore[arg-type]
    ("graph", lambda: bymi.drsgd_bymi(LINEAR, bymi.LocalNetwork(TWO_RINGS), PLAN)),
    ("problem", lambda: bymi.drsgd_bymi(LINEAR, bymi.LocalNetwork(nx.cycle_graph(9)), PLAN)),
    ("deviation", lambda: bymi.drsgd_bymi(LINEAR, bymi.LocalNetwork(GRAPH), PLAN, "ipm")),  # type: ignore[arg-type]
    # Experiments and what they leave behind.
    ("device", lambda: Host(device=0)),  # type: ignore[arg-type]
    ("gradients", lambda: Host(gradients="fast")),  # type: ignore[arg-type]
    ("threads", lambda: Host(threads=-1)),
    ("data", lambda: Host(data=3)),  # type: ignore[arg-type]
    ("checkpoint_every", lambda: Host(checkpoint_every=2.5)),  # type: ignore[arg-type]
    ("keep_models", lambda: Host(keep_models="some")),  # type: ignore[arg-type]
    ("again", lambda: Host(again=1)),  # type: ignore[arg-type]
    ("spec", lambda: experiment.run("scenario-a")),  # type: ignore[arg-type]
    ("out", lambda: experiment.run(SPEC, out=None)),  # type: ignore[arg-type]
    ("host", lambda: experiment.run(SPEC, host="cpu")),  # type: ignore[arg-type]
    ("again", lambda: experiment.run(SPEC, again="yes")),  # type: ignore[arg-type]
    ("method", lambda: experiment.run(experiment.load(None))),
    ("specs", lambda: experiment.run_all(SPEC, "runs")),  # type: ignore[arg-type]
    ("spec", lambda: experiment.run_all([SPEC, "dsgd"], "runs")),  # type: ignore[list-item]
    ("jobs", lambda: experiment.run_all([SPEC], "runs", jobs=0)),
    ("spec", lambda: experiment.read_spec("scenario-a")),  # type: ignore[arg-type]
    ("source", lambda: experiment.load(5)),  # type: ignore[arg-type]
    ("overrides", lambda: experiment.load(None, "nodes=50")),
    ("overrides", lambda: experiment.load(None, [50])),  # type: ignore[list-item]
    ("nodes", lambda: experiment.load(None, ["nodes=" + "9" * 5000])),
    ("folder", lambda: bymi.load_model(None)),  # type: ignore[arg-type]
    ("node", lambda: bymi.load_model("runs", node="first")),  # type: ignore[arg-type]
    ("no model.safetensors there", lambda: bymi.load_model("/nowhere")),
    ("nodes", lambda: power.Setting("150", 20)),  # type: ignore[arg-type]
    ("ratio", lambda: power.Setting(150, 20, NAN)),
    ("shards", lambda: datasets.LabelShards(2.0)),  # type: ignore[arg-type]
    ("dim", lambda: tasks.Linear(dim=True)),
    ("partition", lambda: tasks.MNIST(partition=3)),  # type: ignore[arg-type]
]


def line_of(call: Callable[[], object]) -> str:
    """The message of a call that must be refused."""
    with pytest.raises(BymiError) as problem:
        call()
    assert isinstance(problem.value, InputError)
    return str(problem.value)


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[f"{place}-{name}" for place, (name, _) in enumerate(CALLS)])
def test_a_wrong_call_is_one_line_that_names_the_argument(name: str, call: Callable[[], object]) -> None:
    line = line_of(call)
    assert name in line
    assert any(word in line for word in ("allowed", "must", "need", "cannot", "does not", "require", "neither", "no "))
    assert "\n" not in line
    assert len(line) < 700


def test_they_are_many() -> None:
    assert len(CALLS) >= 60


# Every field of every part, whatever is added to the tables later.

PARTS = [
    *(entry for table in (bymi.RULES, bymi.ATTACKS, bymi.TOPOLOGIES) for entry in table.values()),
    *(entry for table in (detection.SCALES, datasets.PARTITIONS) for entry in table.values()),
    *(tasks.Linear, bymi.Panel, bymi.Watch, bymi.Optimisation, bymi.StepSize, bymi.Detector, bymi.WarmUp, Host),
]
FIELDS = [(entry, field.name) for entry in PARTS for field in dataclasses.fields(entry)]
NEVER = {"a list": [1], "an object": object(), "a class": Adversary, "a tensor": torch.zeros(2, 2), "a function": len}


@pytest.mark.parametrize(("entry", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_no_field_takes_a_value_of_another_type(entry: Any, name: str) -> None:
    kind = get_type_hints(entry)[name]
    options = get_args(kind) or (kind,)
    wrong = dict(NEVER)
    if (entry, name) == (bymi.WarmUp, "rule"):
        del wrong["a function"]  # any function of vectors is a rule
    if float in options:
        wrong |= {"NaN": NAN, "inf": INF, "-inf": -INF, "a truth value": True, "a string": "a"}
    if int in options:
        wrong |= {"a fraction": 2.5, "a truth value": True, "a string": "a", "NaN": NAN}
    if type(None) not in options:
        wrong |= {"nothing": None}
    given = {bymi.EdgeFile: {"path": "edges.txt"}, bymi.StepSize: {"value": 0.1}}.get(entry, {})
    for value in wrong.values():
        line = line_of(lambda value=value: entry(**{**given, name: value}))  # type: ignore[misc]
        assert line.startswith(f"{'step_size' if entry is bymi.StepSize and name == 'value' else name}: got ")
        assert "\n" not in line


# What is taken.


def test_every_attack_on_vectors_or_messages_is_taken_by_its_name() -> None:
    for name, entry in bymi.ATTACKS.items():
        if not issubclass(entry, attacks.DataAttack):
            assert Adversary(MASK, name).attack == entry()
    assert Adversary(MASK, "ipm:a=2.0").attack == attacks.InnerProductManipulation(2.0)
    assert Adversary(MASK, "Empire").attack == attacks.InnerProductManipulation()
    assert Adversary(MASK.tolist(), None).members.equal(MASK)  # type: ignore[arg-type]
    assert Adversary(MASK.numpy(), None).members.equal(MASK)  # type: ignore[arg-type]


def test_a_named_attack_acts_as_the_object_does() -> None:
    ends = [
        [*bymi.simulate(LINEAR, GRAPH, PLAN, Adversary(MASK, how))][-1].theta for how in ("sign-flip", attacks.SignFlip(), None)
    ]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_rules_centres_and_scales_are_taken_by_name() -> None:
    for name, entry in bymi.RULES.items():
        assert bymi.WarmUp(name).rule == entry()  # type: ignore[arg-type]
    assert bymi.WarmUp("ios:share=0.3").rule == bymi.IOS(0.3)  # type: ignore[arg-type]
    assert bymi.WarmUp("mozi").rule == bymi.UBAR()  # type: ignore[arg-type]
    for name, centre in detection.CENTRES.items():
        assert bymi.Detector(centre=name).centre == centre()  # type: ignore[arg-type]
    assert bymi.Detector(scale="pca:variance=0.5").scale == bymi.Principal(0.5)  # type: ignore[arg-type]
    by_name, by_object = (
        bymi.identify(HALVES, HALVES.flip(0), profile="published", centre=centre) for centre in ("median", bymi.Median())
    )  # type: ignore[arg-type]
    assert torch.equal(by_name.scores, by_object.scores)


@pytest.mark.parametrize("number", [0.1, 1, np.float32(0.1), np.int64(1)])
def test_a_number_is_a_constant_step_size(number: Any) -> None:
    for settings in (bymi.WarmUp(step_size=number), bymi.Optimisation(step_size=number)):
        assert settings.step_size == bymi.StepSize(float(number), "constant")


@pytest.mark.parametrize("directed", [False, True])
def test_graphs_of_networkx_and_arrays_are_taken(directed: bool) -> None:
    drawn = nx.gnp_random_graph(NODES, 0.7, seed=3, directed=directed)
    graph = bymi.Graph.from_networkx(drawn)
    for given in (drawn, graph.hears.numpy(), graph.hears, graph.hears.int().tolist()):
        network = bymi.LocalNetwork(given)
        assert torch.equal(network.graph.hears, graph.hears)
        ends = [[*bymi.simulate(LINEAR, one, PLAN)][-1].theta for one in (given, graph)]
        assert torch.equal(*ends)


def test_a_large_graph_of_networkx_becomes_lists() -> None:
    drawn = nx.gnp_random_graph(1200, 0.01, seed=1, directed=True)
    taken = bymi.LocalNetwork(drawn).graph
    assert isinstance(taken, bymi.ListGraph)
    assert torch.equal(taken.dense().hears, bymi.Graph.from_networkx(drawn).hears)


def test_a_run_is_refused_when_it_is_called_not_in_its_first_round() -> None:
    """The calls in CALLS ask for no round; a graph that hangs together in one direction of its arcs is enough."""
    with pytest.raises(GraphError, match="6 nodes in 2 parts"):
        bymi.simulate(LINEAR, TWO_RINGS, PLAN)
    path = nx.DiGraph([(0, 1), (2, 1), (2, 3), (4, 3), (4, 5)])
    assert len([*bymi.simulate(LINEAR, path, PLAN)]) == 5
    for size in (1, 2, 7, 64):
        shuffled = nx.relabel_nodes(nx.path_graph(size), dict(enumerate(torch.randperm(size).tolist())))
        bymi.core.graph.check_connected(bymi.Graph.from_adjacency(nx.to_numpy_array(shuffled, nodelist=range(size))))


@pytest.mark.parametrize("seed", range(20))
def test_connected_means_what_networkx_means_by_it(seed: int) -> None:
    drawn = nx.gnp_random_graph(12, 0.12, seed=seed, directed=True)
    dense = bymi.Graph.from_networkx(drawn)
    for graph in (dense, bymi.ListGraph.of_graph(dense)):
        if nx.is_weakly_connected(drawn):
            bymi.core.graph.check_connected(graph)
        else:
            with pytest.raises(GraphError, match=f"in {nx.number_weakly_connected_components(drawn)} parts"):
                bymi.core.graph.check_connected(graph)


def test_mutual_pruning_on_a_one_way_graph_is_refused_at_the_start() -> None:
    detector = bymi.Detector(panel=bymi.Panel(), pruning="mutual")
    plan = bymi.Plan(4, 2, detector=detector, watch=bymi.Watch(), identification=4)
    with pytest.raises(GraphError, match="mutual"):
        bymi.simulate(LINEAR, nx.DiGraph([(node, (node + 1) % NODES) for node in range(NODES)]), plan)


# The checks themselves.


@pytest.mark.parametrize("value", [0, 1.5, -2, np.float32(1), np.int8(3), 10**30])
def test_numbers(value: Any) -> None:
    assert is_number(value)
    assert is_integer(value) == (not isinstance(value, (float, np.floating)))


@pytest.mark.parametrize("value", [True, np.bool_(True), NAN, INF, "1", None, 10**400, 1j, [1], torch.tensor(1.0)])
def test_no_numbers(value: Any) -> None:
    assert not is_number(value)
    assert is_integer(value) == (value is not True and isinstance(value, int))


def test_what_is_shown_of_a_value_is_one_short_line() -> None:
    assert shown(bymi.IOS) == "the class IOS"
    assert shown(torch.zeros(3, 2)) == "Tensor of shape [3, 2]"
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("a" * 10_000)) == 120
    assert shown(10**5000) == "a int that cannot be shown"
    assert "\n" not in shown(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))


def test_a_part_of_ones_own_is_checked_as_ours_are() -> None:
    @dataclasses.dataclass(frozen=True)
    class Nearest(bymi.WeightedRule):
        k: int = 3

        def weigh(self, inbox: bymi.Inbox, round: bymi.Round) -> bymi.Mixture:
            raise NotImplementedError

    assert Nearest(4).k == 4
    with pytest.raises(InputError, match=r"k: got 'four', allowed: an integer"):
        Nearest("four")  # type: ignore[arg-type]


def test_annotations_that_cannot_be_read_are_left_alone() -> None:
    namespace: dict[str, Any] = {"dataclass": dataclasses.dataclass, "Checked": Checked}
    exec("from __future__ import annotations\n@dataclass\nclass Odd(Checked):\n    x: Unknown = 1", namespace)
    assert namespace["Odd"]("anything").x == "anything"
    check_fields(namespace["Odd"]())


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000, "nonsense", "1 2"])
def test_text_that_is_no_value_is_a_string(text: str) -> None:
    assert read_value(text) == text


def test_paths_are_taken_for_strings_and_strings_for_paths() -> None:
    assert bymi.EdgeFile(Path("edges.txt")).path == "edges.txt"  # type: ignore[arg-type]
    assert Host(data="data").data == Path("data")  # type: ignore[arg-type]
