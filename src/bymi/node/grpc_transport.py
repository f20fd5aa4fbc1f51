"""gRPC over mutual TLS: a server that answers neighbours only, and one channel to each of them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import torch

from bymi.core.graph import MatrixGraph
from bymi.node import wire
from bymi.node.identity import HOST_NAME, Identity, pem_of
from bymi.node.peer_record import Peer
from bymi.node.recent_messages import GoneError, Outbox
from bymi.node.roster import Limits, Member
from bymi.node.tls_proxy import HANDSHAKE, TLSProxy
from bymi.node.wire import ASK, GET, PIECE, SERVICE, Body, Refused, Request, Tag, join_pieces, pieces

Tell = Callable[..., None]
"""Reports an event: its name, then fields."""

_AT_ONCE = 8  # calls of one neighbour at a time
_BUDGET = 16  # largest bodies that a neighbour may pull between two messages of this node
_SHARE, _LEAST = 0.1, 0.05  # of the time left, and seconds, by which a server answers before the caller's deadline
_RETRY = 0.05  # seconds between attempts while a neighbour cannot be reached
_METADATA = 4096  # bytes of metadata of a call
_SIZES = [
    ("grpc.max_receive_message_length", PIECE),
    ("grpc.max_metadata_size", _METADATA),
    ("grpc.absolute_max_metadata_size", _METADATA),
]
_AT = re.compile(r"(pending|gone) at (\d{1,10})")
_PORT = re.compile(r"ipv4:127\.0\.0\.1:(\d{1,5})")
_LONG = "Get in pieces"


@dataclass(frozen=True)
class Miss:
    """Why no message came. `step`: the round in which the neighbour says it is. `late`: a deadline has passed."""

    reason: str
    step: int | None = None
    late: bool = False


Answer = Body | Miss | Refused
"""What a call brings: bytes, nothing, or something that cannot be a message."""

Answerer = Callable[[int, Request], Awaitable[bytes]]


@dataclass(frozen=True, eq=False)
class NetworkConfig:
    """What one node has to know of its network to communicate. `dim`, `dtype`: of the parameters."""

    node: int
    identity: Identity
    members: Sequence[Member]
    graph: MatrixGraph
    run_id: str
    limits: Limits
    dim: int
    dtype: torch.dtype


class Transport:
    """Server and channels of one node. All methods but the constructor run in the event loop."""

    def __init__(self, config: NetworkConfig, peers: Mapping[int, Peer], tell: Tell, answer: Answerer) -> None:
        """`peers`: neighbours by number. `answer`: answers the questions of neighbours."""
        own = config.dtype, config.dim
        self._hold = 2 * config.limits.deadline  # seconds for which a call may wait here
        self._question = wire.body_limit({"point": own}) + wire.WORDS_LIMIT + 2  # bytes of the longest question
        self._budget = _BUDGET * (wire.body_limit({"a": own, "b": own, "c": (torch.float64, config.graph.size)}) + wire.NONCE)
        self.outbox = Outbox()
        self.refusals: Counter[str] = Counter()  # of calls, by reason
        self.refused_connections: Counter[str] = Counter()
        self._identity, self._run_id = config.identity, config.run_id
        self._peers, self._tell, self._answer = peers, tell, answer
        prints = {peer.member.fingerprint: number for number, peer in peers.items()}
        certificates = b"".join(peer.member.certificate for peer in peers.values())
        self._proxy = TLSProxy(config.identity, prints, certificates, self._on_refused_connection)
        self._running: Counter[int] = Counter()  # calls of each neighbour
        self._served: Counter[int] = Counter()
        self._served_since = -1
        self._server: Any = None
        self._channels: list[Any] = []
        self._calls: dict[tuple[int, str], Any] = {}

    async def start(self, listen: str) -> int:
        """Listen at HOST:PORT; returns the port."""
        options = [*_SIZES, ("grpc.max_concurrent_streams", 2 * _AT_ONCE), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Methods(self),))
        port = int(self._server.add_insecure_port("127.0.0.1:0"))  # whose callers the proxy has let in
        await self._server.start()
        return self._proxy.listen(listen, port)

    async def connect(self, endpoints: Mapping[int, str]) -> None:
        """Open a channel to each of some neighbours. Its certificate is the only one that the channel trusts."""
        options = [
            ("grpc.ssl_target_name_override", HOST_NAME),
            *_SIZES,
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", int(1000 * HANDSHAKE)),  # the time that an attempt has
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_http_proxy", 0),
        ]
        for number, endpoint in endpoints.items():
            root = pem_of(self._peers[number].member.certificate)
            credentials = grpc.ssl_channel_credentials(root, self._identity.key, self._identity.certificate)
            channel = grpc.aio.secure_channel(endpoint, credentials, options=options)
            self._channels.append(channel)
            # An answer of one piece is read as one message, which costs less than a stream of one.
            self._calls[number, GET] = channel.unary_unary(f"/{SERVICE}/{GET}")
            self._calls[number, _LONG] = channel.unary_stream(f"/{SERVICE}/{GET}")
            self._calls[number, ASK] = channel.stream_unary(f"/{SERVICE}/{ASK}")

    async def close(self) -> None:
        """Close all channels and the server."""
        for channel in self._channels:
            await channel.close()
        await self._proxy.close()
        if self._server is not None:
            await self._server.stop(0)

    # What this node asks of others.

    async def fetch(self, number: int, method: str, tag: Tag, seconds: float, limit: int, body: bytes = b"") -> Answer:
        """Bytes of a neighbour's message, `limit` at most, waited for up to a deadline, or why there are none."""
        head, long = wire.frame(self._run_id, tag), limit > PIECE
        start, loop = self._calls[number, _LONG if long else method], asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            call = start(head if method == GET else _question(head, body), timeout=left, wait_for_ready=True)
            try:
                return await (join_pieces(call, limit) if long else _one_piece(call, limit))
            except Refused as refused:
                call.cancel()
                return refused
            except grpc.aio.AioRpcError as problem:
                answer = _outcome_of(problem)
                if answer is not None:
                    return answer
            await asyncio.sleep(min(_RETRY, left))
        return Miss("silent", late=True)

    # What others ask of this node. Requests are read as streams: a call is admitted before its first byte is read.

    async def on_get(self, content: AsyncIterable[bytes], context: Any) -> None:
        """Answer a `Get`."""
        async with self._admitted(context) as number:
            async for piece in content:
                request = self._read(piece)
                break
            else:  # gRPC has refused a piece that is too long
                raise _CallRefused("too large", grpc.StatusCode.INVALID_ARGUMENT)
            if request.tag.kind == wire.STATUS:
                body = str(self.outbox.step).encode()
            else:
                body = await self.outbox.wait_for(request.tag, number, self._patience(context))
            if self._served_since != self.outbox.published:
                self._served, self._served_since = Counter(), self.outbox.published
            self._served[number] += len(body)
            if self._served[number] > self._budget:
                raise Refused("over its byte budget")
            async with asyncio.timeout(self._hold):
                for piece in pieces(body):
                    await context.write(piece)
            self._peers[number].pulled = request.tag

    async def on_ask(self, content: AsyncIterable[bytes], context: Any) -> bytes:
        """The answer to an `Ask`."""
        async with self._admitted(context) as number, asyncio.timeout(self._patience(context)):
            return await self._answer(number, self._read(await join_pieces(content, self._question)))
        raise AssertionError("a call that is not answered is aborted")

    async def on_other(self, content: AsyncIterable[bytes], context: Any) -> bytes:
        """Refuse a call of any other method."""
        async with self._admitted(context):
            raise _CallRefused("no such method", grpc.StatusCode.UNIMPLEMENTED)

    @asynccontextmanager
    async def _admitted(self, context: Any) -> AsyncIterator[int]:
        """Number of the neighbour that calls. Aborts, with its reason, a call that is refused here or within the block."""
        status = grpc.StatusCode
        port = _PORT.fullmatch(context.peer())
        caller = None if port is None else self._proxy.caller(int(port[1]))
        number = None if caller is None else caller.number
        try:
            if number is None:  # another program on this machine, or a neighbour whose connection broke after it had called
                raise _CallRefused("no TLS connection", status.PERMISSION_DENIED)
            if self._peers[number].banned:
                raise _CallRefused("banned", status.PERMISSION_DENIED)
            if self._running[number] >= _AT_ONCE:
                raise Refused("too many calls at a time")
            self._running[number] += 1
            try:
                yield number
            finally:
                self._running[number] -= 1
        except TimeoutError:
            await context.abort(status.UNAVAILABLE, f"pending at {self.outbox.step}")
        except GoneError:
            await context.abort(status.NOT_FOUND, f"gone at {self.outbox.step}")
        except Refused as refused:
            self.refusals[refused.reason] += 1
            code, detail = (
                (refused.code, refused.detail) if isinstance(refused, _CallRefused) else (status.RESOURCE_EXHAUSTED, None)
            )
            address = str(context.peer())[:80] if caller is None else caller.address
            self._tell("refused call", peer=number, reason=refused.reason, detail=detail, address=address)
            await context.abort(code, detail or refused.reason)

    def _read(self, content: Body) -> Request:
        """The request in a call; raises _CallRefused if it is not as it should be, or of another run."""
        try:
            request = wire.read_frame(content)
        except Refused as refused:
            raise _CallRefused(refused.reason, grpc.StatusCode.INVALID_ARGUMENT) from None
        if request.run != self._run_id:
            ids = f"another run id, {request.run[:64]!r}, not {self._run_id}"
            raise _CallRefused("another run id", grpc.StatusCode.FAILED_PRECONDITION, ids)
        return request

    def _patience(self, context: Any) -> float:
        """Seconds for which a call may wait here: so much less than the caller waits that it gets an answer."""
        left = context.time_remaining()
        left = self._hold if left is None else min(left, self._hold)
        return float(max(0.0, left - max(_LEAST, _SHARE * left)))

    def _on_refused_connection(self, reason: str, address: str, number: int | None, detail: str | None) -> None:
        self.refused_connections[reason] += 1
        self._tell("refused connection", peer=number, reason=reason, detail=detail, address=address)


class _CallRefused(Refused):
    """A refused call with a status other than RESOURCE_EXHAUSTED; `detail`: what the caller is told beyond the reason."""

    def __init__(self, reason: str, code: grpc.StatusCode, detail: str | None = None) -> None:
        super().__init__(reason)
        self.code, self.detail = code, detail


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of the service, and a refusal for all others."""

    def __init__(self, transport: Transport) -> None:
        self._methods = {
            f"/{SERVICE}/{GET}": grpc.stream_stream_rpc_method_handler(transport.on_get),
            f"/{SERVICE}/{ASK}": grpc.stream_unary_rpc_method_handler(transport.on_ask),
        }
        self._other = grpc.stream_unary_rpc_method_handler(transport.on_other)

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method, self._other)


async def _one_piece(call: Awaitable[bytes], limit: int) -> bytes:
    """The answer to a call; raises Refused beyond `limit` bytes."""
    answer = await call
    if len(answer) > limit:
        raise Refused("too large")
    return answer


async def _question(head: bytes, body: bytes) -> AsyncIterator[bytes]:
    for piece in pieces(body, head):
        yield piece


def _outcome_of(problem: Any) -> Miss | Refused | None:
    """What a failed call means; None: try again."""
    code, status = problem.code(), grpc.StatusCode
    said = _AT.fullmatch(str(problem.details() or "")[:100])
    step = int(said[2]) if said else None
    if code == status.UNAVAILABLE:
        return Miss("pending", step, late=True) if said else None
    if code == status.DEADLINE_EXCEEDED:
        return Miss("silent", late=True)
    if code == status.NOT_FOUND and said:
        return Miss("gone", step)
    if code == status.RESOURCE_EXHAUSTED and "larger than max" in str(problem.details()):
        return Refused("too large")
    return Miss(f"refused us: {code.name.lower().replace('_', ' ')}")
