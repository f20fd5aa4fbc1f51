"""The roster: what the owners of all nodes agree on before a run. Its hash is the run id that every call carries."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from bymi.core.errors import BymiError, InputError, did_you_mean, require
from bymi.core.files import decode, parse_toml, read_bytes
from bymi.core.graph import Graph, MatrixGraph, check_connected, read_edges
from bymi.core.named_parts import Checked, bounded, build_part
from bymi.core.topology import TOPOLOGIES
from bymi.node.identity import certificate_der, fingerprint_of
from bymi.runs.foreign_source_digests import refuse_imports
from bymi.runs.resolved_spec import ResolvedSpec
from bymi.runs.run_setup import make_plan
from bymi.training.plan import Plan

PROTOCOL = 1
LARGEST_DIM = 1 << 26
"""Most parameters of a model: a message is held in memory."""

_LIMIT = 1 << 24  # bytes of a file
_MOST_NODES, _MOST_STEPS = 4096, 10**7
_PREMIX = 10  # rounds of premixing per node, the most that a simulation takes
_NAME, _ENDPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"), re.compile(r"[A-Za-z0-9._:\[\]-]+:\d{1,5}")
_NONE = "(none)"  # TOML has no null
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_SETTINGS = ("method", "seed", "steps", "warm_up", "detection", "panel", "watch", "optimisation", "alone", "stop")
_KEYS = ("protocol", "identification", "edges", "model", "limits", "settings", "node")

Part = TypeVar("Part")


@dataclass(frozen=True)
class Limits(Checked):
    """Times and counts that all nodes agree on; times in seconds.

    `deadline`: longest wait for a message of a round. `start_wait`: longest wait for all neighbours before the first round.
    `reuse`: rounds for which a missing neighbour's last valid message is used. `strikes`: deadlines missed until a neighbour is
    suspected, so not waited for.
    """

    deadline: float = bounded(10.0, gt=0, le=3600)
    start_wait: float = bounded(600.0, gt=0, le=86400)
    reuse: int = bounded(3, ge=0, le=100)
    strikes: int = bounded(2, ge=1, le=10)


@dataclass(frozen=True)
class Member(Checked):
    """One node of the roster."""

    name: str
    endpoint: str
    certificate: bytes  # DER

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(_NAME.fullmatch(self.name)), "name", self.name, "letters, digits, dot, dash")
        require_endpoint("endpoint", self.endpoint)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.certificate)


@dataclass(frozen=True)
class ModelSignature(Checked):
    """What all nodes train: number and type of the parameters, and a hash of their names and shapes."""

    dim: int
    dtype: str
    layout: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.dim <= LARGEST_DIM, "dim", self.dim, f"1 to {LARGEST_DIM}")
        require(self.dtype in _DTYPES, "dtype", self.dtype, ", ".join(_DTYPES))

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]


@dataclass(frozen=True, eq=False)
class Roster:
    """Nodes, edges, model, settings and limits of a run; an InputError if they cannot be those of a run of real nodes."""

    members: tuple[Member, ...]
    edges: tuple[tuple[int, int], ...]  # undirected
    model: ModelSignature
    limits: Limits
    settings: Mapping[str, Any]  # of the method, resolved: plain values
    identification: int  # samples per node that detection uses

    def __post_init__(self) -> None:
        require(2 <= self.size <= _MOST_NODES, "node", f"{self.size} nodes", f"2 to {_MOST_NODES}")
        for key in ("name", "endpoint", "fingerprint"):
            seen = [getattr(member, key) for member in self.members]
            doubled = next((one for one in seen if seen.count(one) > 1), None)
            require(doubled is None, f"node.{key}", doubled, "a different one for each node")
        for first, second in self.edges:
            ascending = 0 <= first < second < self.size
            require(ascending, "edges", [first, second], f"two node numbers, ascending, below {self.size}")
        require(len(set(self.edges)) == len(self.edges), "edges", "an edge twice", "each edge once")
        check_connected(self.graph)
        require(1 < self.identification <= 10**9, "identification", self.identification, "2 or more")
        _check_settings(self)

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
            "model": asdict(self.model),
            "limits": asdict(self.limits),
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

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run."""
        count = self.settings["detection"]["sample"]
        most = max(4, 2 * self.identification, count if isinstance(count, int) else 0)
        return make_plan(ResolvedSpec({**self.settings, "nodes": self.size}), self.identification, most)

    def find(self, fingerprint: str) -> int:
        """Number of the node with a fingerprint."""
        for number, member in enumerate(self.members):
            if member.fingerprint == fingerprint:
                return number
        raise InputError(f"key: got the fingerprint {fingerprint}, allowed: one of the roster's {self.size} nodes")


def _check_settings(roster: Roster) -> None:
    """Raise an InputError for settings of a method that real nodes cannot run, or that name a part as module:Name."""
    try:
        refuse_imports(dict(roster.settings), "settings")
    except InputError as problem:
        got = str(problem).partition(", allowed")[0]
        raise InputError(f"{got}, allowed: names that bymi or an installed package has; a roster runs no code") from None
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


def require_endpoint(key: str, value: str) -> None:
    """Raise an InputError unless a text is HOST:PORT."""
    fits = bool(_ENDPOINT.fullmatch(value)) and int(value.rpartition(":")[2]) < 65536
    require(fits, key, value, "HOST:PORT")


# A roster from the parts that owners agree on.


def make_roster(
    members: Sequence[Member],
    spec: ResolvedSpec,
    model: ModelSignature,
    *,
    samples: int,
    limits: Limits | None = None,
    edges: Path | None = None,
) -> Roster:
    """The roster of a run with the method, graph and rounds of a spec; what the spec says of attackers and data is not used.

    `samples`: the smallest number that any node has. `edges`: an edge file in place of the spec's graph. Where the spec leaves
    the rounds of premixing to the nodes, they get a number, since real nodes cannot agree on an end.
    """
    settings, size = copy.deepcopy({key: spec[key] for key in _SETTINGS}), len(members)
    require(samples >= 4, "samples", samples, "4 or more")
    identification = spec["data"].get("identification") or samples // 2
    require(identification < samples, "data.identification", identification, f"below the {samples} samples of a node")
    if settings["detection"]["sample"] == "all":
        settings["detection"]["sample"] = samples
    if settings["optimisation"]["premix_rounds"] is None:
        settings["optimisation"]["premix_rounds"] = _PREMIX * size
    settings["method"], settings["stop"] = spec.method, None
    return Roster(tuple(members), edges_of(spec, size, edges), model, limits or Limits(), settings, identification)


def edges_of(spec: ResolvedSpec, size: int, file: Path | None) -> tuple[tuple[int, int], ...]:
    """Undirected edges, ascending, of an edge file or of the spec's graph."""
    require("redraw_every" not in spec.values, "redraw_every", spec.values.get("redraw_every"), "off with real nodes")
    if file is not None:
        arcs, count = read_edges(file)
        require(count == size, "--edges", f"{count} nodes", f"{size}, one for each member")
    else:
        graph = build_part(TOPOLOGIES, spec["graph"]).draw(size, seed=spec["seed"])
        require(graph.symmetric, "graph", spec["graph"], "a graph without directions")
        arcs = torch.stack(graph.arcs(), 1)
    return tuple(sorted({(min(pair), max(pair)) for pair in arcs.tolist()}))


def read_members(path: Path) -> list[Member]:
    """Members from a text file: a name, an endpoint and a certificate file per line; # starts a comment."""
    try:
        lines = decode(read_bytes(path, limit=_LIMIT)).splitlines()
    except ValueError as problem:
        raise InputError(f"{path}: not a text ({problem})") from None
    members = []
    for number, line in enumerate(lines, start=1):
        if not (words := line.split("#")[0].split()):
            continue
        where = f"{path}, line {number}"
        require(len(words) == 3, where, line.strip(), "NAME HOST:PORT CERTIFICATE-FILE")
        certificate = certificate_der(read_bytes(path.parent / words[2], limit=_LIMIT), f"{where}: {words[2]}")
        members.append(from_table(Member, f"{where}: ", {"name": words[0], "endpoint": words[1], "certificate": certificate}))
    return members


# The file.


def read_roster(path: Path) -> Roster:
    """A roster file, checked; a one-line InputError for anything else."""
    return parse_file(path, parse_roster)


def parse_file(path: Path, parse: Callable[[bytes], Part]) -> Part:
    """What `parse` makes of the bytes of a file; its InputErrors begin with the path."""
    content = read_bytes(path, limit=_LIMIT)
    try:
        return parse(content)
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None


def parse_roster(content: bytes) -> Roster:
    """The roster in the bytes of a file, checked."""
    values = toml_table(content)
    for key in sorted(values.keys() ^ set(_KEYS)):
        require(False, "roster", f"the key {key}" if key in values else f"no {key}", ", ".join(_KEYS))
    require(values["protocol"] == PROTOCOL, "protocol", values["protocol"], f"{PROTOCOL}, which this version speaks")
    edges, nodes, settings = values["edges"], values["node"], _from_toml(values["settings"])
    pairs = isinstance(edges, list) and all(
        isinstance(edge, list) and len(edge) == 2 and all(type(end) is int for end in edge) for edge in edges
    )
    require(pairs, "edges", edges, "a list of pairs of node numbers")
    require(isinstance(nodes, list) and len(nodes) <= _MOST_NODES, "node", nodes, f"a list of 2 to {_MOST_NODES} tables")
    fits = isinstance(settings, dict) and settings.keys() == set(_SETTINGS)
    require(fits, "settings", settings, f"a table of {', '.join(_SETTINGS)}")
    require(type(values["identification"]) is int, "identification", values["identification"], "an integer")
    return Roster(
        tuple(_member(f"node {number}", one) for number, one in enumerate(nodes)),
        tuple((edge[0], edge[1]) for edge in edges),
        from_table(ModelSignature, "model.", values["model"], whole=True),
        from_table(Limits, "limits.", values["limits"], whole=True),
        settings,
        values["identification"],
    )


def _member(where: str, given: object) -> Member:
    require(isinstance(given, dict), where, given, "a table")
    table: dict[str, Any] = dict(given)  # type: ignore[call-overload]
    said = table.pop("fingerprint", None)
    try:
        der = base64.b64decode(table.get("certificate", b""), validate=True)
    except (ValueError, TypeError):
        raise InputError(f"{where}.certificate: not base64") from None
    member = from_table(Member, f"{where}.", {**table, "certificate": certificate_der(der, f"{where}.certificate")})
    fits = said in (None, member.fingerprint)
    require(fits, f"{where}.fingerprint", said, f"{member.fingerprint}, that of the certificate")
    return member


def toml_table(content: bytes) -> dict[str, Any]:
    """The values of a TOML file; a one-line InputError for anything else."""
    try:
        return parse_toml(content)
    except ValueError as problem:
        raise InputError(f"not valid TOML: {problem}") from None


def from_table(kind: type[Part], where: str, given: object, *, whole: bool = False) -> Part:
    """A checked dataclass from a table with its fields; an InputError for anything else. `where` begins the keys in messages.

    `whole`: fields with a default must be there, too.
    """
    known = fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in known]
    require(isinstance(given, dict), where.rstrip(".: "), given, f"a table of {', '.join(names)}")
    table: dict[str, Any] = dict(given)  # type: ignore[call-overload]
    for key in table:
        require(key in names, f"{where}{key}", "an unknown key", f"{', '.join(names)}{did_you_mean(key, names)}")
    for field in known:
        there = field.name in table or (field.default is not MISSING and not whole)
        require(there, f"{where}{field.name}", "nothing", f"{field.name} = ...")
    try:
        return kind(**table)
    except InputError as problem:
        raise InputError(f"{where}{problem}") from None


def roster_toml(roster: Roster) -> str:
    """The roster as the text of its file."""
    values = roster.values()
    lines = [f"# Run {roster.run_id}", *(f"{key} = {_toml(values[key])}" for key in ("protocol", "identification", "edges"))]
    for key in ("model", "limits", "settings"):
        lines += ["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in values[key].items())]
    for member, node in zip(roster.members, values["node"], strict=True):
        table = {**node, "fingerprint": member.fingerprint}
        lines += ["", "[[node]]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
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
