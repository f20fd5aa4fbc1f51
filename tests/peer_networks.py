"""Real nodes in this process: one PeerNetwork per node, over mutual TLS on loopback."""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from bymi.core.graph import Graph, MatrixGraph
from bymi.node.event_loop_thread import LoopThread
from bymi.node.grpc_transport import NetworkConfig
from bymi.node.identity import Identity, certificate_der, new_identity
from bymi.node.peer_network import PeerNetwork
from bymi.node.roster import Limits, Member
from bymi.node.round_session import Session

LIMITS = Limits(deadline=20.0, start_wait=20.0)


@cache
def loop_thread() -> LoopThread:
    """One event loop for all nodes of the tests."""
    return LoopThread()


@cache
def identity_of(node: int) -> Identity:
    return new_identity()


def members(size: int) -> list[Member]:
    return [Member(f"node-{node}", "127.0.0.1:0", certificate_der(identity_of(node).certificate, "")) for node in range(size)]


class Nodes:
    """Sessions of some nodes of a graph, connected; `extra` endpoints stand for the others."""

    def __init__(
        self,
        graph: Graph,
        *,
        dim: int = 5,
        dtype: torch.dtype = torch.float64,
        limits: Limits = LIMITS,
        held: list[int] | None = None,
        extra: dict[int, str] | None = None,
        tell: Callable[..., None] | None = None,
        run_id: str = "0" * 64,
    ) -> None:
        assert isinstance(graph, MatrixGraph)
        self.events: list[dict[str, Any]] = []
        held = list(range(graph.size)) if held is None else held
        self.sessions = {
            node: Session(
                NetworkConfig(node, identity_of(node), members(graph.size), graph, run_id, limits, dim, dtype),
                loop_thread(),
                tell or self._teller(node),
            )
            for node in held
        }
        self.ports = {node: session.start("127.0.0.1:0") for node, session in self.sessions.items()}
        self.endpoints = {**{node: f"127.0.0.1:{port}" for node, port in self.ports.items()}, **(extra or {})}
        self.networks = [PeerNetwork.of(session) for session in self.sessions.values()]

    def connect(self) -> Nodes:
        for session in self.sessions.values():
            session.connect(self.endpoints)
        return self

    def _teller(self, node: int) -> Callable[..., None]:
        return lambda event, **fields: self.events.append({"node": node, "event": event, **fields})

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()

    def __enter__(self) -> Nodes:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()
