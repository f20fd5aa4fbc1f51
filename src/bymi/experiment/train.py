"""`bymi.train`: any torch module, loss, data and graph through the runner of `bymi run`, with run folder and resume."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from bymi import aggregation, attacks, datasets, runs
from bymi.attacks import Attack
from bymi.core.errors import InputError, is_integer, is_number, require, shown
from bymi.core.graph import Graph
from bymi.core.list_graph import GraphLike, as_graph
from bymi.core.named_parts import Table, part_by_name
from bymi.core.topology import TOPOLOGIES, Topology
from bymi.datasets import Partition
from bymi.detection.verdict import SUSPENDED
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment.spec import read_spec
from bymi.problems import Shards
from bymi.problems.gradient_backends import Loss
from bymi.runs import run_folder as store
from bymi.runs.given_objects import Evaluate, OwnTask, digest_of
from bymi.runs.results_table import RowTable
from bymi.runs.run_setup import Given
from bymi.runs.trained_models import load_model

Arrays = Tensor | np.ndarray[Any, Any]
Data = Shards | tuple[Arrays, Arrays] | Sequence[tuple[Arrays, Arrays]] | Dataset[Any]

_PROFILES = {"published": "paper"}  # its name in bymi.identify
_RULE = "balance:gamma=1.0"
_OWN_RULE = "bymi.runs.given_objects:OwnRule"


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The results of a run."""

    folder: Path
    """Its run folder: spec, metrics, verdict, summary, trained models, checksums."""
    summary: dict[str, Any]
    """How it ended: outcome, loss, evaluation, error rates of the detection."""
    metrics: RowTable
    """A row per recorded round."""
    verdict: RowTable | None
    """A row per flag of the last detection: `receiver`, `sender`, `reason`, `score`, `threshold`; None without a detection.

    `statistic` and `bound`: of the test that gave the reason; `round`: of the detection. "suspended, for: deed": an earlier
    detection flagged the sender for its deeds, and that flag still lasts: the numbers are those of that detection.
    """
    model: nn.Module
    """The trained module: the mean over the core, or over all honest nodes without a detection."""

    @property
    def flagged(self) -> dict[int, int]:
        """How many neighbours flag each node at the last detection, most first; nodes that nobody flags are left out."""
        return dict(Counter(row["sender"] for row in self.verdict or ()).most_common())

    def __repr__(self) -> str:
        core = self.summary["core_size"]
        parts = [self.summary["outcome"], *([] if core is None else [f"core of {core} nodes", f"flagged {self.flagged}"])]
        return f"TrainedRun({', '.join(parts)}, folder={str(self.folder)!r})"


def train(
    model: nn.Module,
    loss: Loss,
    shards: Data,
    *,
    graph: GraphLike | Topology | str,
    steps: int,
    rule: aggregation.Rule | str | Callable[..., Any] = _RULE,
    profile: str = "hardened",
    attack: Attack | str | None = None,
    byzantine: Iterable[int] | Tensor | float = (),
    evaluate: Evaluate | None = None,
    out: str | Path = "runs",
    partition: Partition | str | None = None,
    nodes: int | None = None,
    samples: int | None = None,
    identification: int | None = None,
    seed: int = 0,
    host: Host | None = None,
    **settings: Any,
) -> TrainedRun:
    """Train a module on the nodes of a graph, some of which may be Byzantine; returns metrics, verdict and the trained module.

    `shards`: (inputs, targets) stacked as [M, n, ...] each, or a list of (inputs, targets) per node, of any sizes, tensors or
    numpy arrays; or a torch Dataset with a `partition` ("stratified", "dirichlet:dirichlet_alpha=0.5", an instance) and, where
    the graph does not say, the number of `nodes`; `samples` per node. `graph`: networkx, an adjacency matrix, a Graph, or a
    topology, by name ("erdos-renyi:p=0.5") or an instance. `rule`, `attack`: an instance, a name with parameters, or
    "module:Name"; as a rule also any aggregator of another library, or a function of the vectors of a neighbourhood.
    `byzantine`: the attackers by number or as a mask, or their share; without an attack the data are real, and nothing in the
    summary says who was flagged rightly. `evaluate(module)`: a number, or a dict of numbers, for each row of the metrics.
    `identification`: samples per node for the published detection. `settings`: any other spec key, such as `warm_up={"batch":
    16}`, `optimisation={"step_size": 0.1}` or `record_every=10`. `host`: device and checkpoints.

    Each call has a folder in `out`, named by a digest of its settings and of the content of model, loss, data and graph: the
    same call reads it, or continues from its checkpoint if it was interrupted. It computes what `bymi run` computes.
    """
    require(isinstance(model, nn.Module), "model", model, "an instance of torch.nn.Module")
    require(isinstance(out, (str, Path)), "out", out, "the path of a folder")
    rule = aggregation.as_rule(rule)
    require(evaluate is None or callable(evaluate), "evaluate", evaluate, "a function of a module")
    warm_up = settings.get("warm_up", {})
    require(isinstance(warm_up, Mapping), "warm_up", warm_up, "a dict of its keys, such as {'batch': 16}")
    twice = "rule" in warm_up and rule != _RULE
    require(not twice, "warm_up.rule", warm_up.get("rule"), f"no rule here beside rule = {shown(rule)}")
    own = None if isinstance(graph, (str, Topology)) else as_graph(graph)
    count = nodes if own is None else own.size
    pairs = _pairs(shards, model, partition, count, samples, seed)
    require(count in (None, len(pairs)), "shards", f"those of {len(pairs)} nodes", f"those of {count} nodes, as the graph has")
    share, members = _byzantine(byzantine, len(pairs))
    require(attack is not None or not share, "attack", attack, "an attack by name or an instance, with byzantine nodes")
    acts = attack is None or share > 0 or is_number(byzantine)
    require(acts, "byzantine", byzantine, "node numbers, a mask or a share, with an attack; 0.0 for an attack on no node")
    numbers = None if members is None else ",".join(map(str, members.nonzero().flatten().tolist()))
    content = {"content": digest_of(model, loss, pairs, evaluate), "byzantine": numbers, "identification": identification}
    values = {
        "method": "drsgd-bymi",
        **settings,
        "profile": _PROFILES.get(profile, profile),
        "nodes": len(pairs),
        "byzantine_ratio": share,
        "steps": steps,
        "seed": seed,
        "graph": _named("graph", graph, TOPOLOGIES)
        if own is None
        else {"name": "bymi.runs.given_objects:OwnGraph", "content": _digest_of_graph(own)},
        "data": {"name": "bymi.runs.given_objects:OwnData", **content},
        "attack": "silent" if attack is None else _named("attack", attack, attacks.ATTACKS),
        "warm_up": {"rule": (named := _named("rule", rule, aggregation.RULES)), **warm_up},
    }
    spec = read_spec(values)
    require(len(spec.methods) == 1, "method", spec.methods, "one method per call")
    known = attack is not None
    task = OwnTask(**content, model=model, loss=loss, shards=pairs, evaluate=evaluate, ground_truth=known)  # type: ignore[arg-type]
    own_rule = cast(aggregation.Rule, rule) if isinstance(named, dict) and named["name"] == _OWN_RULE else None
    given = Given(task, own, members, own_rule, ground_truth=known)
    resolved = spec.resolved
    if resolved.remark is not None:
        warnings.warn(resolved.remark, stacklevel=2)
    host = replace(host or Host(), keep_models="mean" if host is None or host.keep_models == "none" else host.keep_models)
    summary = runs.run(resolved, out, None, host, given=given)
    return _read(store.folder_of(Path(out), resolved), summary, model)


def _read(folder: Path, summary: dict[str, Any], model: nn.Module) -> TrainedRun:
    trained = copy.deepcopy(model)
    trained.load_state_dict(load_model(folder))
    path, metrics = folder / store.VERDICT, RowTable(store.read_rows(folder / store.METRICS))
    verdict = None
    if path.exists():
        last = next(row["step"] for row in reversed(metrics) if row["phase"] == "detection")
        verdict = RowTable(row for one in store.read_json(path)["receivers"] for row in _flags(one, last))
    return TrainedRun(folder, summary, metrics, verdict, trained)


def _flags(one: dict[str, Any], last: int) -> Iterator[dict[str, Any]]:
    """A row per flag of one receiver at round `last`; of a suspended neighbour that of the detection that flagged it."""
    threshold, scores = one["threshold"], one["scores"]
    statistics, bounds = one.get("statistics", scores), one.get("bounds", [threshold] * len(scores))
    earlier = {flag["neighbour"]: flag for flag in one.get("earlier", ())}
    for sender, reason, score, statistic, bound in zip(
        one["neighbours"], one["reasons"], scores, statistics, bounds, strict=True
    ):
        if sender not in one["flagged"]:
            continue
        row = {"receiver": one["node"], "sender": sender, "reason": reason, "score": score, "threshold": threshold}
        row |= {"statistic": statistic, "bound": bound, "round": last}
        if sender in earlier:
            row |= {key: value for key, value in earlier[sender].items() if key != "neighbour"}
            row["reason"] = f"{SUSPENDED}, for: {row['reason']}"
        yield row


def _named(key: str, part: Any, table: Table[Any]) -> Any:
    """A part as a spec writes it: a name as it is, an instance by its class and fields."""
    if isinstance(part, str):
        return part
    part_by_name(key, part, table.kind, table, {})
    if isinstance(part, aggregation.CallableRule):
        return {"name": _OWN_RULE, "content": digest_of(*_inside(part)), "label": part.name}
    if isinstance(part, aggregation.Chain):
        try:
            name, fields = part.named()
            return {"name": name, **fields}
        except InputError:  # a callable, or parts that share a parameter and have different values of it
            label = "+".join(getattr(one, "name", type(one).__name__) for one in part.parts)
            return {"name": _OWN_RULE, "content": digest_of(*map(_inside, part.parts)), "label": label}
    kind = type(part)
    name = next((name for name, entry in table.items() if entry is kind), f"{kind.__module__}:{kind.__qualname__}")
    try:
        known = name in table and table[name] is kind
    except InputError:
        known = False
    require(known, key, part, "an instance of a dataclass at the top level of a module, which can be imported by its name")
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
    for field, value in fields.items():
        plain = value is None or isinstance(value, (bool, int, float, str))
        require(plain, f"{key}.{field}", value, "a number, a string, True, False or None")
    return {"name": name, **fields}


def _inside(part: Any) -> tuple[object, object]:
    """What decides the results of a rule or wrapper: itself, or the callable in it, and its fields."""
    target = part.target if isinstance(part, aggregation.CallableRule) else part
    return target, getattr(target, "__dict__", {})


def _byzantine(given: Any, nodes: int) -> tuple[float, Tensor | None]:
    """The share of Byzantine nodes, and their mask [M]; None if the spec is to draw them."""
    if is_number(given) and not is_integer(given):
        return float(given), None
    mask = torch.zeros(nodes, dtype=torch.bool)
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, bool) for one in given):
        given = torch.tensor(given)
    if isinstance(given, (Tensor, np.ndarray)) and given.dtype in (torch.bool, np.dtype(bool)):
        require(tuple(given.shape) == (nodes,), "byzantine", given, f"a mask of the {nodes} nodes")
        mask = torch.as_tensor(given).cpu().clone()
    else:
        require(isinstance(given, Iterable), "byzantine", given, "node numbers, a mask of all nodes, or a share such as 0.2")
        for node in given:
            node = node.item() if isinstance(node, Tensor) else node
            require(is_integer(node) and 0 <= node < nodes, "byzantine", node, f"node numbers 0 to {nodes - 1}")
            mask[int(node)] = True
    count = int(mask.sum())
    require(2 * count < nodes, "byzantine", f"{count} of {nodes} nodes", "fewer than half of them")
    return count / nodes, mask


def _pairs(
    shards: Any, model: nn.Module, partition: Partition | str | None, nodes: int | None, samples: int | None, seed: int
) -> list[Shards]:
    """The samples of each node, floats in the dtype of the model's parameters."""
    dtype = next((value.dtype for value in model.parameters()), torch.float32)
    if isinstance(shards, Dataset):
        require(
            partition is not None, "partition", partition, f"{', '.join(datasets.PARTITIONS)} or an instance, with a Dataset"
        )
        inputs, targets = _samples(shards)
        require(nodes is not None, "nodes", nodes, "the number of nodes, with a Dataset and the name of a topology")
        split = cast(Partition, part_by_name("partition", partition, Partition, datasets.PARTITIONS, datasets.ALIASES))
        rows = split.split(targets, cast(int, nodes), samples=samples, seed=seed)
        shards = [(inputs[chosen], targets[chosen]) for chosen in rows]
    else:
        require(partition is None, "partition", partition, "with a torch Dataset only")
    if isinstance(shards, tuple) and len(shards) == 2 and all(isinstance(part, (Tensor, np.ndarray)) for part in shards):
        first, second = len(shards[0]), len(shards[1])
        require(first == second, "shards", f"inputs of {first} nodes, targets of {second}", "as many of both")
        shards = list(zip(*shards, strict=True))
    allowed = "(inputs, targets) of all nodes, a list of (inputs, targets) per node, or a torch Dataset"
    require(isinstance(shards, (list, tuple)) and len(shards) > 0, "shards", shards, allowed)
    return [_pair(node, pair, dtype) for node, pair in enumerate(shards)]


def _pair(node: int, pair: Any, dtype: torch.dtype) -> Shards:
    fits = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(part, (Tensor, np.ndarray)) for part in pair)
    require(fits, f"shards[{node}]", pair, "(inputs, targets), tensors or numpy arrays with a row per sample")
    parts = [part.detach() if isinstance(part, Tensor) else torch.from_numpy(np.ascontiguousarray(part)) for part in pair]
    return Shards(*(part.to(dtype) if part.is_floating_point() else part for part in parts))


def _samples(dataset: Any) -> tuple[Tensor, Tensor]:
    """Inputs [N, ...] and targets [N, ...] of a Dataset with a length."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    require(hasattr(dataset, "__len__"), "shards", dataset, "a Dataset with a length")
    try:
        rows = [dataset[index] for index in range(len(dataset))]
        inputs, targets = (torch.stack([torch.as_tensor(row[part]) for row in rows]) for part in (0, 1))
    except (TypeError, ValueError, RuntimeError, IndexError) as problem:
        raise InputError(
            f"shards: got a Dataset, allowed: one of (input, target) pairs of one shape ({shown(problem)})"
        ) from None
    return inputs, targets


def _digest_of_graph(graph: Graph) -> str:
    """Digest of arcs and weights, the same for matrix and list graphs."""
    arcs = graph.hears
    senders = graph.at_places(torch.arange(graph.size, device=arcs.device)).expand_as(arcs)
    return digest_of(arcs.nonzero()[:, 0], senders[arcs], graph.weight[arcs], graph.self_weight)
