"""The roster: what the owners of all nodes agree on before a run. Its hash is the run id that every call carries."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bymi.core.errors import BymiError, InputError, require
from bymi.core.files import parse_toml, read_bytes
from bymi.core.graph import Graph, MatrixGraph
from bymi.core.list_graph import check_connected
from bymi.core.named_parts import bounded, check_fields
from bymi.node.identity import certificate_der, fingerprint_of
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import make_plan
from bymi.runs.user_code import refuse_imports
from bymi.training.plan import Plan

PROTOCOL = 1
LARGEST_DIM = 1 << 26
"""Most parameters of a model: a message is held in memory."""

_LIMIT = 1 << 24  # bytes of a roster file
_MOST_NODES, _MOST_STEPS = 4096, 10**7
_NAME, _ENDPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"), re.compile(r"[A-Za-z0-9._:\[\]-]+:\d{1,5}")
_NONE = "(none)"  # TOML has no null
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_SETTINGS = ("method", "seed", "steps", "warm_up", "detection", "panel", "watch", "optimisation", "alone", "stop")


@dataclass(frozen=True)
class Limits:
    """Times and counts that all nodes agree on; times in seconds.

    `deadline`: longest wait for a message of a round. `start_wait`: longest wait for all neighbours before the first round.
    `reuse`: rounds for which a missing neighbour's last valid message is used. `strikes`: deadlines missed until a neighbour is
    suspected, so not waited for.
    """

    deadline: float = bounded(10.0, gt=0, le=3600)
    start_wait: float = bounded(600.0, gt=0, le=86400)
    reuse: int = bounded(3, ge=0, le=100)
    strikes: int = bounded(2, ge=1, le=10)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Member:
    """One node of the roster."""

    name: str
    endpoint: str
    certificate: bytes  # DER

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.certificate)


@dataclass(frozen=True)
class Model:
    """What all nodes train: number and type of the parameters, and a hash of their names and shapes."""

    dim: int
    dtype: str
    layout: str

    def __post_init__(self) -> None:
        check_fields(self)
        require(1 <= self.dim <= LARGEST_DIM, "model.dim", self.dim, f"1 to {LARGEST_DIM}")
        require(self.dtype in _DTYPES, "model.dtype", self.dtype, ", ".join(_DTYPES))

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]


@dataclass(frozen=True, eq=False)
class Roster:
    """Nodes, edges, model, settings and limits of a run."""

    members: tuple[Member, ...]
    edges: tuple[tuple[int, int], ...]  # undirected
    model: Model
    limits: Limits
    settings: Mapping[str, Any]  # of the method, resolved: plain values
    identification: int  # samples per node that detection uses

    @property
    def size(self) -> int:
        return len(self.members)

    @cached_property
    def run_id(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        text = json.dumps(self.values(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def values(self) -> dict[str, Any]:
        """The roster as plain values, in the form that is hashed."""
        nodes = [
            {"name": one.name, "endpoint": one.endpoint, "certificate": base64.b64encode(one.certificate).decode()}
            for one in self.members
        ]
        return {
            "protocol": PROTOCOL,
            "identification": self.identification,
            "edges": [list(edge) for edge in self.edges],
            "model": {field.name: getattr(self.model, field.name) for field in fields(self.model)},
            "limits": {field.name: getattr(self.limits, field.name) for field in fields(self.limits)},
            "settings": dict(self.settings),
            "node": nodes,
        }

    @cached_property
    def graph(self) -> MatrixGraph:
        """The graph with Metropolis weights."""
        hears = torch.zeros(self.size, self.size, dtype=torch.bool)
        for first, second in self.edges:
            hears[first, second] = hears[second, first] = True
        return Graph.from_hears(hears)

    def neighbours(self, node: int) -> list[int]:
        """Numbers of a node's neighbours, ascending."""
        found: list[int] = self.graph.hears[node].nonzero().flatten().tolist()
        return found

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run."""
        nodes = {"nodes": self.size}
        count = self.settings["detection"]["sample"]
        most = max(4, 2 * self.identification, count if isinstance(count, int) else 0)
        return make_plan(ResolvedSpec({**self.settings, **nodes}), self.identification, most)

    def find(self, fingerprint: str) -> int:
        """Number of the node with a fingerprint."""
        for number, member in enumerate(self.members):
            if member.fingerprint == fingerprint:
                return number
        raise InputError(f"key: got the fingerprint {fingerprint}, allowed: one of the roster's {self.size} nodes")


def settings_of(spec: ResolvedSpec) -> dict[str, Any]:
    """The settings of the method from a resolved spec; what describes a simulation only is left out."""
    return {key: spec[key] for key in _SETTINGS}


def checked(roster: Roster) -> Roster:
    """The roster itself; raises an InputError if nodes, edges or settings cannot be those of a run of real nodes."""
    require(2 <= roster.size <= _MOST_NODES, "node", f"{roster.size} nodes", f"2 to {_MOST_NODES}")
    for key in ("name", "endpoint", "fingerprint"):
        seen = [getattr(member, key) for member in roster.members]
        doubled = next((one for one in seen if seen.count(one) > 1), None)
        require(doubled is None, f"node.{key}", doubled, "a different one for each node")
    for first, second in roster.edges:
        require(
            0 <= first < second < roster.size, "edges", [first, second], f"two node numbers, ascending, below {roster.size}"
        )
    require(len(set(roster.edges)) == len(roster.edges), "edges", "an edge twice", "each edge once")
    check_connected(roster.graph)
    require(1 < roster.identification <= 10**9, "identification", roster.identification, "2 or more")
    _refuse_code(roster.settings)
    steps = roster.settings["steps"]
    require(type(steps) is int and 2 <= steps <= _MOST_STEPS, "settings.steps", steps, f"2 to {_MOST_STEPS}")
    try:
        plan = roster.plan
    except BymiError as problem:
        raise InputError(f"settings: {problem}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise InputError(f"settings: {type(problem).__name__} {problem}") from None
    # Nodes that trust nobody cannot find out together when to stop: one of them could keep the others apart.
    require(plan.stop is None, "settings.stop", "a criterion", "none: real nodes run all rounds")
    method = type(plan.optimisation.method).__name__
    require(method == "DRSGD", "settings.optimisation.method", method, "DRSGD: others are not made for nodes that come and go")
    directed = plan.detector is not None and plan.detector.pruning == "directed"
    fits = not directed or plan.optimisation.premix_rounds is not None
    require(fits, "settings.optimisation.premix_rounds", None, "a number, such as 10 per node: nodes cannot agree on an end")
    return roster


def _refuse_code(settings: Mapping[str, Any]) -> None:
    """Raise an InputError if the settings name a part as module:Name: to read a roster must not run anybody's code."""
    try:
        refuse_imports(dict(settings), "settings")
    except InputError as problem:
        got = str(problem).partition(", allowed")[0]
        raise InputError(f"{got}, allowed: names that bymi or an installed package has; a roster runs no code") from None


def read_roster(path: Path) -> Roster:
    """A roster file, checked; a one-line InputError for anything else."""
    try:
        return parse_roster(read_bytes(path, limit=_LIMIT))
    except InputError as problem:
        raise InputError(f"{path}: {str(problem).removeprefix(f'{path}: ')}") from None


def parse_roster(content: bytes) -> Roster:
    """The roster in the bytes of a file, checked."""
    try:
        values = parse_toml(content)
    except ValueError as problem:
        raise InputError(f"not valid TOML: {problem}") from None
    keys = {"protocol", "identification", "edges", "model", "limits", "settings", "node"}
    for key in sorted(keys ^ values.keys()):
        require(False, "roster", f"the key {key}" if key in values else f"no {key}", ", ".join(sorted(keys)))
    require(values["protocol"] == PROTOCOL, "protocol", values["protocol"], f"{PROTOCOL}, which this version speaks")
    edges, nodes, settings = values["edges"], values["node"], values["settings"]
    pairs = isinstance(edges, list) and all(
        isinstance(edge, list) and len(edge) == 2 and all(type(end) is int for end in edge) for edge in edges
    )
    require(pairs, "edges", edges, "a list of pairs of node numbers")
    require(isinstance(nodes, list) and all(isinstance(one, dict) for one in nodes), "node", nodes, "a list of tables")
    require(len(nodes) <= _MOST_NODES, "node", f"{len(nodes)} nodes", f"2 to {_MOST_NODES}")
    require(isinstance(settings, dict), "settings", settings, "a table")
    identification = values["identification"]
    require(type(identification) is int, "identification", identification, "an integer")
    members = tuple(_member(number, one) for number, one in enumerate(nodes))
    model, limits = _part(Model, "model", values["model"]), _part(Limits, "limits", values["limits"])
    given = _from_toml(settings)
    require(given.keys() == set(_SETTINGS), "settings", sorted(given), ", ".join(_SETTINGS))
    return checked(Roster(members, tuple((edge[0], edge[1]) for edge in edges), model, limits, given, identification))


def _member(number: int, given: dict[str, Any]) -> Member:
    where = f"node {number}"
    keys = {"name", "endpoint", "certificate"}
    require(given.keys() - {"fingerprint"} == keys, where, sorted(given), ", ".join(sorted(keys)))
    name, endpoint, certificate = (given[key] for key in ("name", "endpoint", "certificate"))
    require(isinstance(name, str) and bool(_NAME.fullmatch(name)), f"{where}.name", name, "letters, digits, dot, dash")
    require(is_endpoint(endpoint), f"{where}.endpoint", endpoint, "HOST:PORT")
    try:
        der = certificate_der(base64.b64decode(certificate, validate=True), f"{where}.certificate")
    except (ValueError, TypeError):
        raise InputError(f"{where}.certificate: not base64") from None
    member = Member(name, endpoint, der)
    said = given.get("fingerprint", member.fingerprint)
    require(said == member.fingerprint, f"{where}.fingerprint", said, f"{member.fingerprint}, that of the certificate")
    return member


def is_endpoint(endpoint: object) -> bool:
    """Whether a value is HOST:PORT."""
    return isinstance(endpoint, str) and bool(_ENDPOINT.fullmatch(endpoint)) and int(endpoint.rpartition(":")[2]) < 65536


def _part(kind: Any, key: str, given: object) -> Any:
    names = [field.name for field in fields(kind)]
    require(isinstance(given, dict) and set(given) == set(names), key, given, f"a table of {', '.join(names)}")
    assert isinstance(given, dict)
    try:
        return kind(**given)
    except InputError as problem:
        raise InputError(f"{key}.{str(problem).removeprefix(f'{key}.')}") from None


def roster_toml(roster: Roster) -> str:
    """The roster as the text of its file."""
    values = roster.values()
    lines = [f"# Run {roster.run_id}", *(f"{key} = {_toml(values[key])}" for key in ("protocol", "identification", "edges"))]
    for key in ("model", "limits", "settings"):
        lines += ["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in values[key].items())]
    for member, node in zip(roster.members, values["node"], strict=True):
        lines += ["", "[[node]]", *(f"{name} = {_toml(value)}" for name, value in node.items())]
        lines.append(f"fingerprint = {_toml(member.fingerprint)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A plain value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"settings: got {value}, allowed: finite numbers")
    return json.dumps(_NONE if value is None else value)


def _from_toml(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_toml(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_from_toml(one) for one in value]
    return None if value == _NONE else value
