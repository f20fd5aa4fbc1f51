"""A caller's own model, loss, data and graph as parts of a run: `bymi.train` passes them as objects.

The resolved spec of such a run names `OwnData` and `OwnGraph` with a digest of their content, so that a changed model or data
set is another run; the objects themselves are not in it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from bymi.aggregation import Rule
from bymi.attacks import Attack, DataAttack
from bymi.core.errors import InputError, first_line, is_number, require
from bymi.core.graph import Core, Graph
from bymi.core.inbox import Inbox, Round
from bymi.core.random_streams import stream
from bymi.core.topology import Topology
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.distributed.shard_layout import ShardLayout
from bymi.problems import ModuleProblem, Problem, Shards
from bymi.problems.gradient_backends import Loss
from bymi.runs.evaluators import Evaluator, Measures, number
from bymi.runs.foreign_source_digests import globals_of, sources_of
from bymi.runs.run_folder import SUMMARY_KEYS
from bymi.runs.tasks import Task

Evaluate = Callable[[nn.Module], float | Mapping[str, float]]
"""Measures of a model: a number, named after the function, or several by name."""

_TAKEN = {*SUMMARY_KEYS, "step", "phase", "loss", "grad_norm_weighted", "distance_weighted"}


@dataclass(frozen=True)
class OwnData(Task):
    """Model, loss and samples that were passed to `bymi.train`, by the digest of their content; `byzantine`: node numbers."""

    gains: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype] = torch.float32
    kind: ClassVar[type] = Shards
    content: str
    byzantine: str | None = None
    identification: int | None = None

    def build(
        self, byzantine: Tensor, attack: Attack, host: Host, seed: int, blocks: Sequence[Tensor] | None = None
    ) -> tuple[Problem, Evaluator]:
        raise InputError(
            "data: got the digest of what bymi.train was given, allowed: a call of bymi.train with the same objects"
        )


@dataclass(frozen=True)
class OwnGraph(Topology):
    """A graph that was passed to `bymi.train`, by the digest of its arcs and weights."""

    content: str

    def draw(self, nodes: int, *, seed: int = 0, must_connect: Tensor | None = None) -> Graph:
        raise InputError(
            "graph: got the digest of what bymi.train was given, allowed: a call of bymi.train with the same graph"
        )


@dataclass(frozen=True)
class OwnRule(Rule):
    """A callable that was passed to `bymi.train` as a rule, by the digest of its content; `label`: its name."""

    content: str
    label: str

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        raise InputError("rule: got the digest of what bymi.train was given, allowed: a call of bymi.train with the same rule")


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnTask(OwnData):
    """The objects behind an OwnData. `shards`: a pair of tensors [n, ...] per node; without `ground_truth` they are real."""

    model: nn.Module
    loss: Loss
    shards: list[Shards]
    evaluate: Evaluate | None
    ground_truth: bool = True

    def build(
        self, byzantine: Tensor, attack: Attack, host: Host, seed: int, blocks: Sequence[Tensor] | None = None
    ) -> tuple[Problem, Evaluator]:
        device = host.place(gains=self.gains)
        numbers = None if blocks is None else torch.cat(list(blocks))
        nodes = range(len(self.shards)) if numbers is None else numbers.tolist()
        shards = [Shards(*(part.to(device) for part in self.shards[node])) for node in nodes]
        if isinstance(attack, DataAttack):
            attack.require_kind(Shards)
            for place, node in enumerate(nodes):
                if bool(byzantine[node]):
                    shards[place] = _corrupt(attack, shards[place], node, seed)
        problem = ModuleProblem(self.model, self.loss, shards, numbers=numbers, gradients=host.gradients, threads=host.threads)
        known = self.ground_truth
        return problem, OwnEvaluator(problem, self.model, self.evaluate, byzantine.to(device), ground_truth=known)


def _corrupt(attack: DataAttack, shard: Shards, node: int, seed: int) -> Shards:
    """The samples of one node under a data attack."""
    device = shard.inputs.device
    fresh = stream(seed, "attack data", node=torch.tensor([node], device=device), device=device)
    wrong = attack(Shards(*(part[None] for part in shard)), stream(seed, "attack", device=device), fresh)
    return Shards(*(part[0] for part in wrong))


class OwnEvaluator(Evaluator):
    """Loss and gradient over the samples of all honest nodes, and the values of `evaluate`, at averaged models.

    Without `ground_truth` the samples are those of the core after a detection: what was cut off may be anything.
    """

    def __init__(
        self,
        problem: ModuleProblem,
        model: nn.Module,
        evaluate: Evaluate | None,
        byzantine: Tensor,
        *,
        ground_truth: bool = True,
    ) -> None:
        super().__init__(byzantine)
        self._ground_truth = ground_truth
        self._problem, self._evaluate, self.extra = problem, evaluate, ("loss",)
        self._model = copy.deepcopy(model).to(byzantine.device)

    def measure(self, averages: Sequence[Tensor], core: Core | None = None) -> Measures:
        among = ~self._byzantine if self._ground_truth or core is None else core.members
        nodes = among.nonzero().flatten()
        norms = [torch.linalg.vector_norm(self._problem.pooled_gradient(theta, nodes)) for theta in averages]
        measures: Measures = {
            "loss": number(self._problem.pooled_loss(averages[0], nodes)),
            "grad_norm": number(norms[0]),
            "grad_norm_weighted": number(norms[1]) if len(norms) > 1 else None,
            **self._evaluation(averages[0]),
        }
        self.extra = tuple(key for key in measures if key not in SUMMARY_KEYS)
        return measures

    def shared(self, group: Group, layout: ShardLayout) -> OwnEvaluator:
        raise InputError("train: got several ranks, allowed: one process")

    def _evaluation(self, theta: Tensor) -> Measures:
        if self._evaluate is None:
            return {}
        self._model.load_state_dict(self._problem.state_dict(theta))
        name = getattr(self._evaluate, "__name__", "evaluation").strip("<>")
        try:
            with torch.no_grad():
                given = self._evaluate(self._model.eval())
        except Exception as problem:  # code of others may raise anything
            said = f"{type(problem).__name__}: {first_line(problem)}"
            raise InputError(f"evaluate: {name} raised {said}, allowed: a function of a trained module") from problem
        values = given if isinstance(given, Mapping) else {name: given}
        for key, value in values.items():
            require(isinstance(key, str) and key not in _TAKEN, "evaluate", key, "names that bymi does not use itself")
            single = is_number(value) or isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1)
            require(single, "evaluate", value, "a number, or a dict of numbers by name")
        return {key: number(torch.as_tensor(value, dtype=torch.float64)) for key, value in values.items()}


def digest_of(*things: object) -> str:
    """Digest of the content of tensors, modules and functions, with the source of code that is not bymi's, torch's or Python's.

    Of a function also its defaults, its closure, the object whose method it is, and the global variables that it and the
    functions that it calls name. Data that it reaches in another way are not covered: through an imported module, a file, or an
    object that is no tensor, array, module, number, text, or list or dict of these.
    """
    digest = hashlib.sha256()
    for piece in _pieces(things, ()):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:16]


def _pieces(thing: Any, within: tuple[int, ...]) -> Iterator[bytes]:
    """The content of a thing `within` others, by their ids: a function may refer to itself."""
    if id(thing) in within:
        return
    inner = partial(_pieces, within=(*within, id(thing)))
    if isinstance(thing, Tensor):
        yield f"{thing.dtype} {list(thing.shape)}".encode()
        yield thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
        yield f"{thing.dtype} {list(thing.shape)}".encode()
        yield thing.tobytes()
    elif isinstance(thing, nn.Module):
        kinds: set[Any] = {type(part) for part in thing.modules()}
        yield repr(thing).encode()
        yield from inner(dict(thing.state_dict()))
        yield from (text.encode() for text in sorted({text for part in kinds for text in sources_of(part)}))
    elif isinstance(thing, TensorDataset):
        yield from inner(thing.tensors)
    elif isinstance(thing, Mapping):
        yield from (piece for key, value in thing.items() for piece in (str(key).encode(), *inner(value)))
    elif isinstance(thing, (list, tuple)):
        yield str(len(thing)).encode()
        yield from (piece for value in thing for piece in inner(value))
    elif isinstance(thing, partial):
        yield from inner((thing.func, thing.args, thing.keywords))
    elif callable(thing):
        kind: Any = thing if hasattr(thing, "__qualname__") else type(thing)
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        yield from (text.encode() for text in sorted(sources_of(kind)))
        cells = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
        yield from inner([*cells, *(getattr(thing, "__defaults__", None) or ())])
        yield from inner(globals_of(kind))
        owner = thing if kind is not thing else getattr(thing, "__self__", None)
        if not isinstance(owner, (type, ModuleType)):  # functions in C have a module there
            yield from inner([owner, getattr(owner, "__dict__", None)])
    else:
        plain = thing is None or isinstance(thing, (bool, int, float, complex, str, bytes))
        yield (repr(thing) if plain else type(thing).__qualname__).encode()
