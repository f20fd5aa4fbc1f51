"""What peers and strangers may do to a node, and that it goes on: with the numbers of a run in which that peer is not heard."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bymi import Adversary, Graph, LocalNetwork, Plan, Snapshot, drsgd_bymi
from bymi.attacks import SimulatedAdversary
from bymi.node import tls_proxy, wire
from bymi.node.identity import HOST_NAME, fingerprint_of, new_identity
from bymi.node.roster import Limits
from bymi.node.round_session import COMMIT
from bymi.node.tls_proxy import TLSProxy
from bymi.node.wire import ASK, GET, NONCE, PIECE, SERVICE, Refused, Tag, commitment, encode, join_pieces
from bymi.problems import LinearProblem, linear_problem, linear_shard
from bymi.training.plan import Optimisation, WarmUp
from tests.hostile_peer import HostilePeer, _answer, call, channel_to, words
from tests.node_fixtures import wait_until
from tests.peer_networks import Nodes, identity_of, loop_thread
from tests.test_node_same_numbers import side_by_side as run_all

NODES, HOSTILE, DIM, RUN = 4, 3, 5, "0" * 64
GRAPH = Graph.from_hears(~torch.eye(NODES, dtype=torch.bool))
QUICK = Limits(deadline=1.0, start_wait=1.0)  # no shorter: an honest node on a busy machine must not miss it
PATIENT = Limits(deadline=20.0, start_wait=20.0)
ROUNDS = Plan(6, 6, WarmUp("average", batch=4), None)  # type: ignore[arg-type]
DETECTION = Plan.paper(6, 3, identification=12, optimisation=Optimisation(premix_rounds=3))
BODY = encode({"parameters": torch.arange(DIM, dtype=torch.float64)})
HALVES = "first half+second half"


def problem() -> LinearProblem:
    return linear_problem(linear_shard(torch.arange(NODES), samples=24, dim=DIM, seed=0), seed=0)


def play(network: Any, plan: Plan) -> list[Snapshot]:
    return list(drsgd_bymi(problem(), network, plan))


@pytest.fixture
def peers() -> Iterator[list[HostilePeer]]:
    """Hostile peers of a test, closed at its end."""
    made: list[HostilePeer] = []
    yield made
    for one in made:
        one.close()


def without_hostile(plan: Plan) -> torch.Tensor:
    """Parameters [3, D] of the honest nodes in a simulation in which the hostile one is never heard."""
    mask = torch.zeros(NODES, dtype=torch.bool)
    mask[HOSTILE] = True
    network = SimulatedAdversary(LocalNetwork(GRAPH), Adversary(mask, "silent"))
    return list(drsgd_bymi(problem(), network, plan, network.deviation))[-1].theta[:HOSTILE]


def with_hostile(peer: HostilePeer, plan: Plan, limits: Limits = PATIENT) -> tuple[list[list[Snapshot]], Nodes]:
    """Snapshots of the three honest nodes, and the nodes."""
    with Nodes(GRAPH, held=[0, 1, 2], extra={HOSTILE: peer.endpoint}, limits=limits) as nodes:
        return run_all(nodes.networks, plan, play), nodes


def node_alone(limits: Limits = PATIENT) -> Nodes:
    """Node 0, whose neighbours do not run."""
    return Nodes(GRAPH, held=[0], extra=dict.fromkeys((1, 2, 3), "127.0.0.1:9"), limits=limits)


def access(number: int) -> dict[str, Any]:
    """What a call of node 0 needs to be one of node `number`."""
    identity = identity_of(number)
    return {"server": 0, "key": identity.key, "certificate": identity.certificate}


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Fails if the process grows by 300 MB within the block."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def header(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + data


def tensors(count: int) -> str:
    return json.dumps({f"t{number}": {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]} for number in range(count)})


BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cut short"),
    "garbage": (bytes(range(256)) * 4, "header too long"),
    "truncated": (BODY[:-3], "cut short"),
    "a byte too much": (BODY + b"\0", "too large"),
    "oversize": (bytes(8 << 20), "too large"),
    "50,000 tensors": (header(tensors(50_000)), "too large"),
    "a header beyond the cap": (header(" " * 1001), "header too long"),
    "no JSON": (header("x" * 72, bytes(40)), "not safetensors"),
    "another name": (encode({"tracker": torch.zeros(DIM, dtype=torch.float64)}), "wrong tensors"),
    "two vectors": (encode({"parameters": torch.zeros(2), "b": torch.zeros(8)}), "wrong tensors"),
    "another type": (encode({"parameters": torch.zeros(2 * DIM)}), "wrong type"),
    "another shape": (header('{"parameters":{"dtype":"F64","shape":[1,5],"data_offsets":[0,40]}}', bytes(40)), "wrong shape"),
    "NaN": (encode({"parameters": torch.full((DIM,), torch.nan, dtype=torch.float64)}), "not finite"),
    "infinity": (encode({"parameters": torch.full((DIM,), torch.inf, dtype=torch.float64)}), "not finite"),
}


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return without_hostile(ROUNDS)


def check(rows: list[list[Snapshot]], expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.cat([row[-1].theta for row in rows]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_used(name: str, peers: list[HostilePeer], expected: torch.Tensor) -> None:
    body, reason = BODIES[name]
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: body))
    with bounded_memory():
        rows, nodes = with_hostile(peers[0], ROUNDS)
    check(rows, expected)
    told = {(event["event"], event["peer"], event["reason"]) for event in nodes.events}
    assert told == {("refused message", HOSTILE, reason)}
    assert all(session.peers[HOSTILE].counts[f"refused: {reason}"] == 6 for session in nodes.sessions.values())


def test_an_endless_stream(peers: list[HostilePeer], expected: torch.Tensor) -> None:
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: b"", stream=True))
    with bounded_memory():
        rows, nodes = with_hostile(peers[0], ROUNDS, QUICK)
    check(rows, expected)
    assert {event["peer"] for event in nodes.events} == {HOSTILE}


PIECES: dict[str, tuple[list[int], str]] = {
    "none": ([], "0"),
    "one": ([7], "7"),
    "two": ([PIECE, 3], str(PIECE + 3)),
    "a short one before the last": ([PIECE - 1, 1], "pieces of other lengths"),
    "an empty one": ([PIECE, 0], "pieces of other lengths"),
    "one byte at a time": ([1] * 10**6, "pieces of other lengths"),
    "without end": ([PIECE] * 10**6, "too large"),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_are_counted_while_they_come(name: str) -> None:
    lengths, outcome = PIECES[name]
    taken = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal taken
        for length in lengths:
            taken += 1
            yield bytes(length)

    try:
        said = str(len(asyncio.run(join_pieces(parts(), 3 * PIECE))))
    except Refused as refused:
        said = refused.reason
    assert said == outcome
    assert taken <= 4


def test_a_staller_costs_two_deadlines(peers: list[HostilePeer], expected: torch.Tensor) -> None:
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: None))
    rows, nodes = with_hostile(peers[0], ROUNDS, QUICK)
    check(rows, expected)
    for session in nodes.sessions.values():
        counts = session.peers[HOSTILE].counts
        assert (counts["deadlines missed"], counts["suspicions"], counts["missing"]) == (2, 1, 6)
    assert "suspected" in {event["event"] for event in nodes.events}


def test_one_that_stalls_and_answers_in_turn_costs_ever_less(peers: list[HostilePeer]) -> None:
    """In 40 rounds it is waited for in a few: probes come after 0, 1, 3, 7, ... rounds."""
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: None if tag.step % 2 else BODY))
    limits = Limits(deadline=0.5, start_wait=2.0, reuse=0)
    plan = Plan(40, 40, WarmUp("average", batch=4), None)  # type: ignore[arg-type]
    rows, nodes = with_hostile(peers[0], plan, limits)
    assert {row[-1].step for row in rows} == {40}
    for session in nodes.sessions.values():
        counts = session.peers[HOSTILE].counts
        assert 2 <= counts["suspicions"] <= 6
        assert counts["deadlines missed"] <= 2 * counts["suspicions"] + 1


def test_a_false_round_number_moves_nobody(peers: list[HostilePeer], expected: torch.Tensor) -> None:
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: (grpc.StatusCode.NOT_FOUND, "gone at 1000000")))
    rows, nodes = with_hostile(peers[0], ROUNDS)
    check(rows, expected)
    assert {event["reason"] for event in nodes.events} == {"gone"}


def test_a_late_message_is_replaced_by_the_last_one_and_counted(peers: list[HostilePeer]) -> None:
    """All messages of a constant sender but one: the missing one is reused, so that the numbers stay."""
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: None if tag.step == 3 else BODY))
    rows, nodes = with_hostile(peers[0], ROUNDS, Limits(deadline=1.0, start_wait=2.0))
    peers.append(HostilePeer(HOSTILE, NODES, lambda tag, _: BODY))
    undisturbed, _ = with_hostile(peers[1], ROUNDS)
    check(rows, torch.cat([row[-1].theta for row in undisturbed]))
    assert [event["event"] for event in nodes.events] == ["reused message"] * 3


# Detection: commitments and questions.


def sealed(tag: Tag, body: bytes, sender: str) -> tuple[bytes, bytes]:
    """Commitment and opening of a body."""
    opening = bytes(NONCE) + body
    return commitment(RUN, tag, sender, opening), opening


def detection_reply(change: Callable[[Tag], bytes | None]) -> Callable[[Tag, bytes], Any]:
    """A peer that is honest outside of detection, where `change` gives commitments and openings."""

    def reply(tag: Tag, _: bytes) -> Any:
        if HALVES in tag.kind and not tag.kind.startswith("reached"):
            return change(tag)
        if tag.kind.startswith("reached"):
            return b"1"
        names = tag.kind.split("+")
        uniform = torch.full((NODES,), 1 / NODES, dtype=torch.float64)
        return encode({name: torch.zeros(DIM, dtype=torch.float64) if name == "parameters" else uniform for name in names})

    return reply


HALF_BODY = encode({name: torch.ones(DIM, dtype=torch.float64) for name in HALVES.split("+")})


def good(tag: Tag, sender: str, *, step: int | None = None) -> tuple[bytes, bytes]:
    tag = Tag(HALVES, tag.step if step is None else step, tag.number)
    return sealed(tag, HALF_BODY, sender)


OWN = identity_of(HOSTILE).fingerprint
LIES: dict[str, tuple[Callable[[Tag], bytes | None], str]] = {
    "an opening that differs": (lambda tag: good(tag, OWN)[not tag.kind.startswith(COMMIT)][:-1] + b"\1", "differs"),
    "another sender in the commitment": (
        lambda tag: good(tag, identity_of(0).fingerprint)[not tag.kind.startswith(COMMIT)],
        "differs",
    ),
    "the commitment of an earlier round": (lambda tag: good(tag, OWN, step=2)[not tag.kind.startswith(COMMIT)], "differs"),
    "no opening": (lambda tag: good(tag, OWN)[0] if tag.kind.startswith(COMMIT) else None, "silent"),
    "no commitment": (lambda tag: None if tag.kind.startswith(COMMIT) else good(tag, OWN)[1], "silent"),
    "an opening without a nonce": (lambda tag: good(tag, OWN)[0] if tag.kind.startswith(COMMIT) else b"1", "cut short"),
}


@pytest.fixture(scope="module")
def cut_in_detection() -> torch.Tensor:
    """Parameters [3, D] of the honest nodes where the hostile one says nothing in the detection."""
    peer = HostilePeer(HOSTILE, NODES, detection_reply(lambda tag: b""))
    rows, _ = with_hostile(peer, DETECTION, Limits(deadline=5.0, start_wait=5.0))
    peer.close()
    return torch.cat([row[-1].theta for row in rows])


@pytest.mark.parametrize("name", LIES)
def test_a_commitment_that_does_not_hold_cuts_the_arc(
    name: str, peers: list[HostilePeer], cut_in_detection: torch.Tensor
) -> None:
    change, reason = LIES[name]
    peers.append(HostilePeer(HOSTILE, NODES, detection_reply(change)))
    rows, nodes = with_hostile(peers[0], DETECTION, Limits(deadline=1.0, start_wait=5.0))
    told = {event["reason"] for event in nodes.events if event["event"] in ("refused message", "missing message")}
    assert any(text.startswith(reason) for text in told)
    for row in rows:
        verdict = next(snapshot.verdict for snapshot in row if snapshot.verdict is not None)
        assert bool(verdict.flagged[0, HOSTILE])
        assert row[-1].step == 6
    check(rows, cut_in_detection)


def test_a_commitment_that_holds_is_heard(peers: list[HostilePeer]) -> None:
    """The same peer without a lie: so it is the lie that the last test finds."""
    peers.append(HostilePeer(HOSTILE, NODES, detection_reply(lambda tag: good(tag, OWN)[not tag.kind.startswith(COMMIT)])))
    _, nodes = with_hostile(peers[0], DETECTION, Limits(deadline=5.0, start_wait=5.0))
    assert nodes.events == []


def test_a_copied_commitment_is_useless(peers: list[HostilePeer]) -> None:
    """The hostile node forwards the commitment and the opening of node 0 as its own."""
    nodes_here: list[Nodes] = []

    async def forward(tag: Tag) -> bytes:
        outbox = nodes_here[0].sessions[0].transport.outbox
        return await outbox.wait_for(tag, HOSTILE, 5.0)

    def change(tag: Tag) -> Any:
        return forward(tag)

    peers.append(HostilePeer(HOSTILE, NODES, detection_reply(change)))
    with Nodes(GRAPH, held=[0, 1, 2], extra={HOSTILE: peers[0].endpoint}) as nodes:
        nodes_here.append(nodes)
        rows = run_all(nodes.networks, DETECTION, play)
        assert {event["reason"] for event in nodes.events} == {"differs from its commitment"}
    assert all(bool(snapshot.verdict.flagged[0, HOSTILE]) for row in rows for snapshot in row if snapshot.verdict is not None)


def ask(nodes: Nodes, point: torch.Tensor, asker: int = HOSTILE, timeout: float = 2.0) -> Any:
    content = wire.frame(RUN, Tag("question", 0, 0)) + encode({"point": point})
    return call(nodes.endpoints[0], ASK, content, **access(asker), timeout=timeout)


def test_a_flood_of_questions_gets_one_answer() -> None:
    with node_alone() as nodes:
        session, computed = nodes.sessions[0], []

        def answer(asker: int, point: torch.Tensor) -> bytes:
            computed.append(asker)
            return encode({"first half": point})

        session.open_questions(Tag("question", 0, 0), answer)
        point = torch.ones(DIM, dtype=torch.float64)
        first = ask(nodes, point)
        assert isinstance(first, bytes)
        assert ask(nodes, point) == first  # the same question again, say after a lost answer
        for number in range(20):
            assert ask(nodes, point + number + 1).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        bad = ask(nodes, torch.full((DIM,), torch.nan, dtype=torch.float64), asker=2)
        assert bad.details() == "not finite"
        assert ask(nodes, torch.ones(DIM + 1, dtype=torch.float64), asker=1).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert computed == [HOSTILE]
        assert session.transport.refusals["asked twice"] == 20


def test_a_question_at_a_point_that_was_not_announced_is_refused() -> None:
    with node_alone() as nodes:
        session = nodes.sessions[0]
        session.peers[HOSTILE].keep("parameters", 1, {"parameters": torch.zeros(DIM, dtype=torch.float64)})
        session.peers[HOSTILE].heard_at = 0
        session.open_questions(Tag("question", 0, 0), lambda asker, point: encode({"first half": point}))
        assert ask(nodes, torch.ones(DIM, dtype=torch.float64)).details() == "a point other than its parameters"


# Strangers and callers.


def minted(issuer_key: bytes, issuer: bytes) -> tuple[bytes, bytes]:
    """A key with a certificate in the name of node 0, signed by another node of the roster."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer: Any = serialization.load_pem_private_key(issuer_key, None)
    target, parent = (x509.load_pem_x509_certificate(pem) for pem in (identity_of(0).certificate, issuer))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(target.subject)
        .issuer_name(parent.subject)
        .public_key(key.public_key())
        .serial_number(target.serial_number)
        .not_valid_before(target.not_valid_before_utc)
        .not_valid_after(target.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST_NAME)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return secret, certificate.public_bytes(serialization.Encoding.PEM)


def refused_connections(nodes: Nodes, count: int) -> list[tuple[Any, str]]:
    """Neighbour and reason of the first `count` connections that were refused; each has an address, and is counted."""
    wait_until(lambda: nodes.sessions[0].transport.refused_connections.total() >= count, 10)
    told = [event for event in nodes.events if event["event"] == "refused connection"]
    assert all(event["address"].startswith("127.0.0.1:") for event in told)
    assert nodes.sessions[0].transport.refused_connections == Counter(event["reason"] for event in told)
    return [(event["peer"], event["reason"]) for event in told]


def test_strangers_are_refused() -> None:
    """Another key, no certificate, a certificate in another's name that a neighbour signed, no TLS, a server with another key.

    None gets an answer, and each connection is in the log, with a reason and an address.
    """
    stranger, known = new_identity(), identity_of(1)
    forged = minted(identity_of(HOSTILE).key, identity_of(HOSTILE).certificate)
    status = words(kind="status")
    with node_alone() as nodes:
        there, session = nodes.endpoints[0], nodes.sessions[0]
        for (key, certificate), reason in (
            ((stranger.key, stranger.certificate), "unknown certificate"),
            ((None, None), "no certificate"),
            (forged, "unknown certificate"),
            ((known.key, identity_of(2).certificate), "hung up"),  # another's fingerprint, without the key
        ):
            nodes.events.clear()
            session.transport.refused_connections.clear()
            refused = call(there, GET, status, server=0, key=key, certificate=certificate)
            assert refused.code() == grpc.StatusCode.UNAVAILABLE
            assert set(refused_connections(nodes, 1)) == {(None, reason)}
        for plain, server, reason in ((True, 0, "no TLS"), (False, 1, "hung up")):
            nodes.events.clear()
            session.transport.refused_connections.clear()
            refused = call(there, GET, status, server=server, key=known.key, certificate=known.certificate, plain=plain)
            assert refused.code() == grpc.StatusCode.UNAVAILABLE
            assert set(refused_connections(nodes, 1)) == {(None, reason)}
        assert session.transport.refusals == Counter()  # no call of any of them came so far
        assert call(there, GET, status, **access(1)) == b"0"


def test_a_certificate_authority_among_the_neighbours_is_one_neighbour() -> None:
    """A neighbour whose certificate may sign others is one identity: what it signs passes TLS, and not the fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    own = x509.load_pem_x509_certificate(identity_of(1).certificate)
    authority = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, own.not_valid_before_utc, own.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    signed = minted(key.private_bytes(pem, encoding, serialization.NoEncryption()), authority.public_bytes(pem))
    refused: list[tuple[str, str, int | None, str | None]] = []
    der = authority.public_bytes(serialization.Encoding.DER)
    proxy = TLSProxy(identity_of(0), {fingerprint_of(der): 1}, der, lambda *given: refused.append(given))
    port = loop_thread().wait(_listen(proxy))
    answer = call(f"127.0.0.1:{port}", GET, words(), server=0, key=signed[0], certificate=signed[1])
    loop_thread().wait(proxy.close())
    assert answer.code() == grpc.StatusCode.UNAVAILABLE
    assert refused[0][0] == "unknown certificate"
    assert str(refused[0][3]).startswith("fingerprint ")


async def _listen(proxy: TLSProxy) -> int:
    return proxy.listen("127.0.0.1:0", 9)


def test_the_port_behind_the_proxy_answers_nobody_else() -> None:
    """Another program of this machine that finds the gRPC server on loopback is refused, and that is counted."""
    with node_alone() as nodes:
        transport = nodes.sessions[0].transport
        answer = call(f"127.0.0.1:{transport._proxy._server_port}", GET, words(kind="status"), server=0, plain=True)
        assert answer.code() == grpc.StatusCode.PERMISSION_DENIED
        assert transport.refusals == {"no TLS connection": 1}


REQUESTS: dict[str, tuple[bytes, grpc.StatusCode]] = {
    "another run id": (words(run="1" * 64), grpc.StatusCode.FAILED_PRECONDITION),
    "nothing": (b"", grpc.StatusCode.INVALID_ARGUMENT),
    "no JSON": (b"\0\3abc", grpc.StatusCode.INVALID_ARGUMENT),
    "a round below zero": (words(step=-1), grpc.StatusCode.INVALID_ARGUMENT),
    "a round beyond all": (words(step=2**40), grpc.StatusCode.INVALID_ARGUMENT),
    "a text for a round": (words(step="1"), grpc.StatusCode.INVALID_ARGUMENT),
    "another word": (words(more=1), grpc.StatusCode.INVALID_ARGUMENT),
    "a long kind": (words(kind="x" * 65), grpc.StatusCode.INVALID_ARGUMENT),
    "a long request": (b"\xff\xff" + bytes(70_000), grpc.StatusCode.INVALID_ARGUMENT),
    "a request longer than a piece": (bytes(PIECE + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
    "a message of the future": (words(step=5), grpc.StatusCode.UNAVAILABLE),
}


def test_requests_that_are_not_as_they_should_be() -> None:
    with node_alone(QUICK) as nodes:
        given = {**access(1), "timeout": 1.0}
        for name, (content, code) in REQUESTS.items():
            assert call(nodes.endpoints[0], GET, content, **given).code() == code, name
        assert call(nodes.endpoints[0], ASK, words(), **given).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(nodes.endpoints[0], "Put", words(), **given).code() == grpc.StatusCode.UNIMPLEMENTED
        # All are counted but the last of the list, which may come true.
        assert nodes.sessions[0].transport.refusals.total() == len(REQUESTS) - 1 + 2
        assert f"{'1' * 64}" in next(event["detail"] for event in nodes.events if event["reason"] == "another run id")


def test_a_neighbour_cannot_pull_without_end() -> None:
    """Calls that wait are limited in number, and so are bytes between two messages of the node."""
    with node_alone(QUICK) as nodes:
        session = nodes.sessions[0]
        session.loop.wait(_publish(session.transport.outbox, bytes(1000)))
        codes = [call(nodes.endpoints[0], GET, words(), **access(1)) for _ in range(40)]
        served = [answer for answer in codes if isinstance(answer, bytes)]
        assert 0 < len(served) < 40
        assert session.transport.refusals["over its byte budget"] == 40 - len(served)

        answers = call(nodes.endpoints[0], GET, words(step=1), **access(1), timeout=1.0, times=12)
        assert sum(answer.details() == "too many calls at a time" for answer in answers) == 12 - 8


async def _publish(outbox: Any, body: bytes) -> None:
    outbox.publish(Tag("parameters", 0, 0), body)


# The network between honest nodes.


def test_silent_connections_and_a_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 connections that say nothing, and a wall clock a year ahead: the numbers of a quiet run."""
    reference = list(drsgd_bymi(problem(), LocalNetwork(GRAPH), ROUNDS))[-1].theta
    silent: list[socket.socket] = []
    with Nodes(GRAPH) as nodes, bounded_memory():
        try:
            silent += [socket.create_connection(("127.0.0.1", nodes.ports[0])) for _ in range(200)]
            now = time.time
            monkeypatch.setattr(time, "time", lambda: now() + 3e7)
            rows = run_all(nodes.networks, ROUNDS, play)
        finally:
            for one in silent:
                one.close()
        assert set(refused_connections(nodes, 200)) == {(None, "hung up")}
        assert {event["event"] for event in nodes.events} == {"refused connection"}
    check(rows, reference)


def test_connections_beyond_the_limits_displace_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent connection is dropped after a while, or for a later one; so is the oldest of a neighbour that has too many."""
    monkeypatch.setattr(tls_proxy, "HANDSHAKE", 1.0)
    monkeypatch.setattr(tls_proxy, "_HANDSHAKES", 4)
    with ExitStack() as ends, node_alone() as nodes:
        for _ in range(6):
            ends.enter_context(socket.create_connection(("127.0.0.1", nodes.ports[0])))
        assert set(refused_connections(nodes, 2)) == {(None, "silent")}  # two were dropped at once
        assert call(nodes.endpoints[0], GET, words(kind="status"), timeout=5.0, **access(1)) == b"0"
        assert set(refused_connections(nodes, 6)) == {(None, "silent")}
        channels = [channel_to(nodes.endpoints[0], **access(1)) for _ in range(6)]
        method = f"/{SERVICE}/{GET}"
        for channel in channels:
            ends.callback(lambda channel=channel: loop_thread().wait(channel.close()))  # type: ignore[misc]
            assert loop_thread().wait(_answer(channel.unary_unary(method), words(kind="status"), 5.0)) == b"0"
        assert refused_connections(nodes, 8)[6:] == [(1, "too many connections")] * 2


class Proxy:
    """A TCP proxy that delays what it forwards and drops the connection now and then."""

    def __init__(self, port: int, *, delay: float, drop_after: int) -> None:
        self._target, self._delay, self._drop_after, self.dropped = port, delay, drop_after, 0
        self.port = loop_thread().wait(self._start())

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        both = [self._forward(reader, there_writer), self._forward(there_reader, writer)]
        _, rest = await asyncio.wait([asyncio.ensure_future(one) for one in both], return_when=asyncio.FIRST_COMPLETED)
        for one in rest:
            one.cancel()
        for end in (writer, there_writer):
            end.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        while block := await reader.read(1 << 16):
            count += len(block)
            if count > self._drop_after:
                self.dropped += 1
                return
            await asyncio.sleep(self._delay)
            writer.write(block)
            await writer.drain()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()

        loop_thread().wait(end())


def test_delayed_packets_and_dropped_connections() -> None:
    """Connections to one node are slow and break every 4 kB: within the deadline nothing is lost and no number changes."""
    plan = Plan(16, 16, WarmUp("average", batch=4), None)  # type: ignore[arg-type]
    reference = list(drsgd_bymi(problem(), LocalNetwork(GRAPH), plan))[-1].theta
    nodes = Nodes(GRAPH)
    proxy = Proxy(nodes.ports[HOSTILE], delay=0.005, drop_after=4096)
    nodes.endpoints[HOSTILE] = f"127.0.0.1:{proxy.port}"
    with nodes:
        rows = run_all(nodes.networks, plan, play)
        events = {(event["event"], event["reason"] if event["event"] == "refused call" else None) for event in nodes.events}
        # A connection that broke in its handshake, or after a call and before it was read.
        assert events <= {("refused connection", None), ("refused call", "no TLS connection")}
    proxy.close()
    assert proxy.dropped >= 2
    check(rows, reference)


def test_a_forged_tracker_moves_nobody_far(peers: list[HostilePeer]) -> None:
    """Tracker messages that are no distribution are not heard; others stay finite, with all mass on a victim, too."""
    for forged in ([-1.0, 2.0, 0.0, 0.0], [1e6] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]):
        tracker = torch.tensor(forged, dtype=torch.float64)

        def reply(tag: Tag, _: bytes, tracker: torch.Tensor = tracker) -> bytes:
            if "commitment" in tag.kind or "half" in tag.kind:
                return good(tag, OWN)[not tag.kind.startswith(COMMIT)]
            names = tag.kind.split("+")
            zeros = torch.zeros(DIM, dtype=torch.float64)
            return encode({name: zeros if name == "parameters" else tracker for name in names})

        peers.append(HostilePeer(HOSTILE, NODES, reply))
        rows, _ = with_hostile(peers[-1], DETECTION, Limits(deadline=5.0, start_wait=5.0))
        assert all(float(row[-1].theta.abs().max()) < 100 for row in rows)
