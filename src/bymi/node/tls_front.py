"""The TLS end of a node: connections of neighbours are passed on to its gRPC server, all others are refused and reported.

gRPC does the handshake itself, but for Python it neither reports a connection that it refuses nor accepts a certificate that is
not signed by a root. Here every connection has an outcome, and not a byte of a stranger reaches the gRPC server.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bymi.core.errors import InputError
from bymi.node.identity import Identity, fingerprint_of

HANDSHAKE = 5.0
"""Seconds for a TLS handshake: silent connections are dropped after these."""

_HANDSHAKES = 256  # at a time; with one more, the oldest is dropped: an honest one takes milliseconds
_CONNECTIONS = 4  # of one neighbour; with one more, its oldest is dropped: it may be one that a crash has left behind
_BUFFER = 1 << 20  # bytes that wait to be written to one end of a connection, until the other end is read no more
_PAUSE = 0.1  # seconds, after a connection could not be accepted: no descriptor is free
_LOOPBACK = "127.0.0.1"
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "CERTIFICATE_VERIFY_FAILED": "unknown certificate",
    "HTTP_REQUEST": "no TLS",
    "HTTPS_PROXY_REQUEST": "no TLS",
    "WRONG_VERSION_NUMBER": "no TLS",
    "UNSUPPORTED_PROTOCOL": "no TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "does not know this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "does not know this node's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "does not know this node's certificate",
}

Refuse = Callable[[str, str, int | None, str | None], None]
"""Called for every refused connection with a reason, the remote address, the neighbour if it is one, and details."""


@dataclass(frozen=True)
class Caller:
    """Which neighbour a connection is from, and its address."""

    number: int
    address: str


class _End(asyncio.Protocol):
    """One end of a pipe: what arrives is written to the other end, and is read no faster than it can be written."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self.transport: Any = None
        self.other: Any = None  # transport of the other end

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(_BUFFER)
        transport.pause_reading()  # until the other end is there

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        self.other.pause_reading()

    def resume_writing(self) -> None:
        self.other.resume_reading()

    def connection_lost(self, problem: Exception | None) -> None:
        self._close()


class _Pipe:
    """A connection of a neighbour (outer) and the one to the server that it is passed on to (inner)."""

    def __init__(self) -> None:
        self.outer, self.inner = _End(self.close), _End(self.close)
        self.at_end: Callable[[], None] = lambda: None
        self._closed = False

    def open(self) -> None:
        """Let bytes flow; closes the pipe if one end has gone."""
        self.outer.other, self.inner.other = self.inner.transport, self.outer.transport
        if self._closed:
            self._close_ends()
            return
        for end in (self.outer, self.inner):
            end.transport.resume_reading()

    def close(self) -> None:
        """Close both ends, once what is written has been sent."""
        if not self._closed:
            self._closed = True
            self.at_end()
            self._close_ends()

    def _close_ends(self) -> None:
        for end in (self.inner, self.outer):
            if end.transport is not None:
                end.transport.close()


class TLSFront:
    """Listens for neighbours, and connects each of their connections to a server on loopback. Used within the event loop only.

    `neighbours`: numbers by fingerprint. `certificates`: theirs, in DER.
    """

    def __init__(self, identity: Identity, neighbours: Mapping[str, int], certificates: bytes, refuse: Refuse) -> None:
        self._neighbours, self._refuse = dict(neighbours), refuse
        self._context = _server_context(identity, certificates)
        self._callers: dict[int, Caller] = {}  # by port of the connection on loopback
        self._pipes: dict[int, list[_Pipe]] = {}  # by neighbour, oldest first
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._behind, self._closed = 0, False

    def listen(self, listen: str, behind: int) -> int:
        """Listen at HOST:PORT for a server at a port of loopback; returns the port."""
        self._listener, self._behind = _listening(listen), behind
        self._start(self._accept(self._listener))
        return int(self._listener.getsockname()[1])

    def caller(self, port: int) -> Caller | None:
        """Whose connection comes to the server from a port of loopback; None: not through this front."""
        return self._callers.get(port)

    async def close(self) -> None:
        """Close all connections and stop listening."""
        self._closed = True
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pipe in [pipe for pipes in self._pipes.values() for pipe in pipes]:
            pipe.close()
        if self._listener is not None:
            self._listener.close()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as problem:
                self._refuse("cannot be accepted", "unknown", None, problem.strerror)
                await asyncio.sleep(_PAUSE)
                continue
            if len(self._handshakes) >= _HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = self._start(self._serve(connection, f"{address[0]}:{address[1]}"))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            # Let it begin: cancelled before, it would neither close its connection nor count it.
            await asyncio.sleep(0)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        """Do the handshake of a connection and pass it on, or refuse it."""
        loop = asyncio.get_running_loop()
        pipe = _Pipe()
        try:
            await loop.connect_accepted_socket(
                lambda: pipe.outer,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE,
                ssl_shutdown_timeout=HANDSHAKE,
            )
        except OSError as problem:
            self._refuse(_reason_of(problem), address, None, None)
            return
        except asyncio.CancelledError:
            if not self._closed:
                self._refuse("silent", address, None, "dropped for a later connection")
            raise
        found = fingerprint_of(pipe.outer.transport.get_extra_info("ssl_object").getpeercert(binary_form=True))
        number = self._neighbours.get(found)
        if number is None:
            pipe.outer.transport.abort()
            self._refuse("unknown certificate", address, None, f"fingerprint {found}")
            return
        bridge = socket.socket()
        bridge.setblocking(False)
        bridge.bind((_LOOPBACK, 0))
        port, pipes = int(bridge.getsockname()[1]), self._pipes.setdefault(number, [])

        def forget() -> None:
            """Before the bridge is closed: until then nobody else can have its port."""
            self._callers.pop(port, None)
            pipes.remove(pipe)

        self._callers[port] = Caller(number, address)
        pipes.append(pipe)
        pipe.at_end = forget
        if len(pipes) > _CONNECTIONS:
            self._refuse("too many connections", address, number, "its oldest one was closed")
            pipes[0].close()
        try:
            await loop.sock_connect(bridge, (_LOOPBACK, self._behind))
            await loop.create_connection(lambda: pipe.inner, sock=bridge)
        except BaseException:
            pipe.close()
            bridge.close()
            raise
        pipe.open()


def _server_context(identity: Identity, certificates: bytes) -> ssl.SSLContext:
    """TLS 1.3 with the certificates of neighbours as the only roots. No tickets: a session always begins with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=certificates)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # readable by the owner only; ssl takes files alone
        file.write(identity.key + b"\n" + identity.certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _listening(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address[:2], family=family, backlog=_HANDSHAKES, dualstack_ipv6=both)
    except (OSError, ValueError, OverflowError):
        raise InputError(f"listen: got {listen}, allowed: a free HOST:PORT of this machine") from None
    listener.setblocking(False)
    return listener


def _reason_of(problem: Exception) -> str:
    """Why a handshake failed, in a few words that can be counted."""
    if isinstance(problem, ssl.SSLError):
        said = problem.reason or ""
        return _REASONS.get(said, "TLS: " + said.lower().replace("_", " "))
    if isinstance(problem, TimeoutError | ConnectionAbortedError):
        return "silent"
    return "hung up"
