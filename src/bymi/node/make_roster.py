"""A roster from the parts that owners agree on: members, a spec, a model, and how many samples each node has at least."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from bymi.core import topology
from bymi.core.errors import InputError, require
from bymi.core.files import decode, read_bytes
from bymi.core.graph import read_edges
from bymi.core.named_parts import build_part
from bymi.node.identity import certificate_der
from bymi.node.roster import Limits, Member, Model, Roster, checked, is_endpoint, settings_of
from bymi.runs.resolved_spec import ResolvedSpec

_LIMIT = 1 << 20  # bytes of a list of members
_PREMIX = 10  # rounds of premixing per node, the most that a simulation takes


def read_members(path: Path) -> list[Member]:
    """Members from a text file: a name, an endpoint and a certificate file per line; # starts a comment."""
    try:
        lines = decode(read_bytes(path, limit=_LIMIT)).splitlines()
    except ValueError as problem:
        raise InputError(f"{path}: not a text ({problem})") from None
    members = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        require(len(words) == 3, where, line.strip(), "NAME HOST:PORT CERTIFICATE-FILE")
        name, endpoint, certificate = words
        require(is_endpoint(endpoint), where, endpoint, "HOST:PORT")
        content = read_bytes(path.parent / certificate, limit=_LIMIT)
        members.append(Member(name, endpoint, certificate_der(content, f"{where}: {certificate}")))
    return members


def make_roster(
    members: Sequence[Member],
    spec: ResolvedSpec,
    model: Model,
    *,
    samples: int,
    limits: Limits | None = None,
    edges: Path | None = None,
) -> Roster:
    """The roster of a run with the method, graph and rounds of a spec; what the spec says of attackers and data is not used.

    `samples`: the smallest number that any node has. `edges`: an edge file in place of the spec's graph. Where the spec leaves
    the rounds of premixing to the nodes, they get a number, since real nodes cannot agree on an end.
    """
    settings, size = copy.deepcopy(settings_of(spec)), len(members)
    require(samples >= 4, "samples", samples, "4 or more")
    identification = spec["data"].get("identification") or samples // 2
    require(identification < samples, "data.identification", identification, f"below the {samples} samples of a node")
    if settings["detection"]["sample"] == "all":
        settings["detection"]["sample"] = samples
    if settings["optimisation"]["premix_rounds"] is None:
        settings["optimisation"]["premix_rounds"] = _PREMIX * size
    settings["method"], settings["stop"] = spec.method, None
    return checked(Roster(tuple(members), _edges(spec, size, edges), model, limits or Limits(), settings, identification))


def _edges(spec: ResolvedSpec, size: int, edges: Path | None) -> tuple[tuple[int, int], ...]:
    """Undirected edges, ascending."""
    require("redraw_every" not in spec.values, "redraw_every", spec.values.get("redraw_every"), "off with real nodes")
    if edges is not None:
        arcs, count = read_edges(edges)
        require(count == size, "--edges", f"{count} nodes", f"{size}, one for each member")
        pairs = arcs.tolist()
    else:
        graph = build_part(topology.TOPOLOGIES, spec["graph"]).draw(size, seed=spec["seed"])
        require(graph.symmetric, "graph", spec["graph"], "a graph without directions")
        receivers, senders = graph.arcs()
        pairs = list(zip(receivers.tolist(), senders.tolist(), strict=True))
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
