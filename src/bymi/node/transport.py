"""gRPC over mutual TLS: a server that answers neighbours only, and one channel to each of them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from bymi.core.errors import InputError
from bymi.node.identity import HOST_NAME, Identity, certificate_der, fingerprint_of, pem_of
from bymi.node.outbox import GoneError, Outbox
from bymi.node.roster import Member
from bymi.node.wire import ASK, GET, SERVICE, STATUS, Refused, Request, Tag, frame, read_frame

T = TypeVar("T")
Tell = Callable[..., None]
"""Reports an event: its name, then fields."""

_AT_ONCE = 8  # calls of one neighbour that wait at a time
_HANDSHAKE = 5000  # milliseconds for a TLS handshake: silent connections are dropped after these
_SHARE, _LEAST = 0.1, 0.05  # of the time left, and seconds, by which a server answers before the caller's deadline
_RETRY = 0.05  # seconds between attempts while a neighbour cannot be reached
_METADATA = 4096  # bytes of metadata of a call
_AT = re.compile(r"(pending|gone) at (\d{1,10})")
_TARGET = "grpc.ssl_target_name_override"


class LoopThread:
    """A thread with an event loop, for any number of nodes in this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.waiting = False  # a caller of `wait` has nothing to lose by an interruption
        self._thread = threading.Thread(target=self._run, name="bymi node loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the loop."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            self.waiting = True
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self.waiting = False

    def call(self, work: Callable[..., Any], *given: Any) -> None:
        """Call a function in the loop, soon."""
        self.loop.call_soon_threadsafe(work, *given)

    def close(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


@dataclass(frozen=True)
class Sizes:
    """Bytes of the largest body that is sent to a neighbour, and of the largest question."""

    body: int
    question: int


@dataclass(frozen=True)
class Miss:
    """Why there is no message. `step`: the round in which the neighbour says it is; `late`: a deadline has passed."""

    reason: str
    step: int | None = None
    late: bool = False


Answerer = Callable[[int, Request], Awaitable[bytes]]


class Transport:
    """Server and channels of one node. All methods but the constructor run in the event loop."""

    def __init__(
        self,
        identity: Identity,
        members: Mapping[int, Member],
        run_id: str,
        sizes: Sizes,
        tell: Tell,
        answer: Answerer,
        *,
        hold: float,
        budget: int,
    ) -> None:
        """`members`: neighbours by number. `hold`: longest time for which a call waits here.

        `budget`: bytes that a neighbour may pull between two messages of this node.
        """
        self.outbox = Outbox()
        self.banned: set[int] = set()
        self.refusals: Counter[str] = Counter()
        self._identity, self._run_id, self._sizes, self._tell, self._answer = identity, run_id, sizes, tell, answer
        self._hold, self._budget = hold, budget
        self._members = dict(members)
        self._by_fingerprint = {member.fingerprint: number for number, member in members.items()}
        self._by_certificate: dict[bytes, int] = {}
        self._waiting: Counter[int] = Counter()
        self._served: Counter[int] = Counter()
        self._served_since = -1
        self.pulled: dict[int, Tag] = {}  # what each neighbour has pulled last
        self._server: Any = None
        self._channels: dict[int, Any] = {}
        self._calls: dict[tuple[int, str], Any] = {}

    async def start(self, listen: str) -> int:
        """Listen at HOST:PORT; returns the port."""
        roots = b"".join(pem_of(member.certificate) for member in self._members.values())
        credentials = grpc.ssl_server_credentials(
            [(self._identity.key, self._identity.certificate)], root_certificates=roots, require_client_auth=True
        )
        options = [
            ("grpc.max_receive_message_length", self._sizes.question),
            ("grpc.max_concurrent_streams", 2 * _AT_ONCE),
            ("grpc.max_metadata_size", _METADATA),
            ("grpc.absolute_max_metadata_size", _METADATA),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options)
        methods = {
            GET: grpc.unary_unary_rpc_method_handler(self._on_get),
            ASK: grpc.unary_unary_rpc_method_handler(self._on_ask),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            port = int(self._server.add_secure_port(listen, credentials))
        except RuntimeError:
            port = 0
        if not port:
            raise InputError(f"listen: got {listen}, allowed: a free HOST:PORT of this machine")
        await self._server.start()
        return port

    def connect(self, number: int, endpoint: str) -> None:
        """Open the channel to a neighbour. Its certificate is the only one that the channel trusts."""
        credentials = grpc.ssl_channel_credentials(
            pem_of(self._members[number].certificate), self._identity.key, self._identity.certificate
        )
        options = [
            (_TARGET, HOST_NAME),
            ("grpc.max_receive_message_length", self._sizes.body),
            ("grpc.max_metadata_size", _METADATA),
            ("grpc.absolute_max_metadata_size", _METADATA),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_http_proxy", 0),
        ]
        channel = grpc.aio.secure_channel(endpoint, credentials, options=options)
        self._channels[number] = channel
        for method in (GET, ASK):
            self._calls[number, method] = channel.unary_unary(f"/{SERVICE}/{method}")

    async def close(self) -> None:
        """Close all channels and the server."""
        for channel in self._channels.values():
            await channel.close()
        if self._server is not None:
            await self._server.stop(0)

    # What this node asks of others.

    async def fetch(self, number: int, method: str, tag: Tag, seconds: float, body: bytes = b"") -> bytes | Miss:
        """Bytes of a neighbour's message, waited for up to a deadline; a Miss if it does not come."""
        request = frame(self._run_id, tag, body)
        call, loop = self._calls[number, method], asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            try:
                answer: bytes = await call(request, timeout=left, wait_for_ready=True)
                return answer
            except grpc.aio.AioRpcError as problem:
                miss = _miss_of(problem)
                if miss is not None:
                    return miss
            await asyncio.sleep(min(_RETRY, left))
        return Miss("silent", late=True)

    # What others ask of this node.

    async def _on_get(self, content: bytes, context: Any) -> bytes:
        number, request = await self._admit(content, context)
        if request.tag.kind == STATUS:
            return str(self.outbox.step).encode()
        try:
            self._waiting[number] += 1
            body = await self.outbox.wait_for(request.tag, number, self._patience(context))
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"pending at {self.outbox.step}")
        except GoneError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"gone at {self.outbox.step}")
        finally:
            self._waiting[number] -= 1
        if self._served_since != self.outbox.published:
            self._served, self._served_since = Counter(), self.outbox.published
        self._served[number] += len(body)
        if self._served[number] > self._budget:
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "over its byte budget", number)
        self.pulled[number] = request.tag
        return body

    async def _on_ask(self, content: bytes, context: Any) -> bytes:
        number, request = await self._admit(content, context)
        try:
            self._waiting[number] += 1
            async with asyncio.timeout(self._patience(context)):
                return await self._answer(number, request)
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"pending at {self.outbox.step}")
        except GoneError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"gone at {self.outbox.step}")
        except Refused as refused:
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, refused.reason, number)
        finally:
            self._waiting[number] -= 1
        raise AssertionError("abort raises")

    def _patience(self, context: Any) -> float:
        """Seconds for which a call may wait here: so much less than the caller waits that it gets an answer."""
        left = context.time_remaining()
        left = self._hold if left is None else min(left, self._hold)
        return float(max(0.0, left - max(_LEAST, _SHARE * left)))

    async def _admit(self, content: bytes, context: Any) -> tuple[int, Request]:
        """Number of the caller and its request; aborts the call of anyone else, and any call that is not as it should be."""
        status = grpc.StatusCode
        number = self._caller(context)
        if number is None or number in self.banned:
            await self._refuse(context, status.PERMISSION_DENIED, "not a neighbour" if number is None else "banned", number)
        assert number is not None
        if self._waiting[number] >= _AT_ONCE:
            await self._refuse(context, status.RESOURCE_EXHAUSTED, "too many calls at a time", number)
        try:
            request = read_frame(content)
        except Refused as refused:
            await self._refuse(context, status.INVALID_ARGUMENT, refused.reason, number)
        if request.run != self._run_id:
            ids = f"another run id, {request.run[:64]!r}, not {self._run_id}"
            await self._refuse(context, status.FAILED_PRECONDITION, "another run id", number, ids)
        return number, request

    def _caller(self, context: Any) -> int | None:
        """Number of the neighbour with the certificate of the connection: its fingerprint counts, no name in it."""
        (certificate,) = context.auth_context().get("x509_pem_cert") or (b"",)
        number = self._by_certificate.get(certificate)
        if number is None:
            try:
                print_of = fingerprint_of(certificate_der(certificate, "peer"))
            except InputError:
                return None
            number = self._by_fingerprint.get(print_of)
            if number is not None:
                self._by_certificate[certificate] = number
        return number

    async def _refuse(self, context: Any, code: Any, reason: str, number: int | None, text: str | None = None) -> None:
        self.refusals[reason] += 1
        self._tell("refused call", peer=number, reason=reason, detail=text, address=str(context.peer())[:80])
        await context.abort(code, text or reason)


def _miss_of(problem: Any) -> Miss | None:
    """The Miss for a failed call; None: try again."""
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
        return Miss("too large")
    return Miss(f"refused us: {code.name.lower().replace('_', ' ')}")
