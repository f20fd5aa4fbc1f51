"""The TLS end of a node: connections of neighbours are passed on to its gRPC server, all others are refused and reported.

gRPC does the handshake itself, but for Python it neither reports a connection that it refuses nor accepts a certificate that is
not signed by a root. Here every connection has an outcome, and not a byte of a stranger reaches the gRPC server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from bymi.core.errors import InputError
from bymi.node.identity import Identity, fingerprint_of

HANDSHAKE = 5.0
"""Seconds for a TLS handshake: silent connections are dropped after these."""

_HANDSHAKES = 256  # at a time; with one more, the oldest is dropped: an honest one takes milliseconds
_CONNECTIONS = 4  # of one neighbour; with one more, its oldest is dropped: it may be one that a crash has left behind
_BUFFER = 1 << 18  # bytes read from one end of a connection before they are written to the other
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


class Caller(NamedTuple):
    """Which neighbour a connection is from, and its address."""

    number: int
    address: str


class TLSProxy:
    """Listens for neighbours, and connects each of their connections to a server on loopback. Used within the event loop only.

    `neighbours`: numbers by fingerprint. `certificates`: theirs, in DER.
    """

    def __init__(self, identity: Identity, neighbours: Mapping[str, int], certificates: bytes, refuse: Refuse) -> None:
        self._neighbours, self._refuse = dict(neighbours), refuse
        self._context = _server_context(identity, certificates)
        self._callers: dict[int, Caller] = {}  # by port of the connection on loopback
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._connections: dict[int, list[asyncio.Task[None]]] = defaultdict(list)  # by neighbour, oldest first
        self._listener: socket.socket | None = None
        self._server_port, self._closed = 0, False

    def listen(self, listen: str, server_port: int) -> int:
        """Listen at HOST:PORT for a server at a port of loopback; returns the port."""
        self._listener, self._server_port = _listening(listen), server_port
        self._start(self._accept(self._listener))
        return int(self._listener.getsockname()[1])

    def caller(self, port: int) -> Caller | None:
        """Whose connection comes to the server from a port of loopback; None: not through this proxy."""
        return self._callers.get(port)

    async def close(self) -> None:
        """Close all connections and stop listening."""
        self._closed = True
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as problem:
                self._refuse("cannot be accepted", "unknown", None, problem.strerror)
                await asyncio.sleep(_PAUSE)
                continue
            if len(self._handshakes) >= _HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            self._handshakes[self._start(self._serve(connection, f"{address[0]}:{address[1]}"))] = None
            # Let it begin: cancelled before, it would neither close its connection nor count it.
            await asyncio.sleep(0)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        """Do the handshake of a connection and pass it on until one end closes it, or refuse it."""
        task = asyncio.current_task()
        assert task is not None
        try:
            reader, writer = await self._shake_hands(connection)
        except OSError as problem:
            self._refuse(_reason_of(problem), address, None, None)
            return
        except asyncio.CancelledError:
            if not self._closed:
                self._refuse("silent", address, None, "dropped for a later connection")
            raise
        finally:
            self._handshakes.pop(task, None)
        fingerprint = fingerprint_of(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        number = self._neighbours.get(fingerprint)
        if number is None:
            writer.transport.abort()
            self._refuse("unknown certificate", address, None, f"fingerprint {fingerprint}")
            return
        connections = self._connections[number]
        connections.append(task)
        if len(connections) > _CONNECTIONS:
            self._refuse("too many connections", address, number, "its oldest one was closed")
            connections.pop(0).cancel()
        try:
            with contextlib.closing(writer):
                await self._pass_on(reader, writer, Caller(number, address))
        except OSError as problem:  # no connection to the server: no descriptor is free
            self._refuse("cannot be accepted", address, number, problem.strerror)
        finally:
            if task in connections:
                connections.remove(task)

    async def _shake_hands(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The two directions of an accepted connection, once its TLS handshake is done."""
        loop, times = asyncio.get_running_loop(), {"ssl_handshake_timeout": HANDSHAKE, "ssl_shutdown_timeout": HANDSHAKE}
        reader = asyncio.StreamReader(_BUFFER, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._context, **times)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        """Copy bytes between a neighbour and the server until one of them closes its end."""
        server_reader, server_writer = await asyncio.open_connection(_LOOPBACK, self._server_port, limit=_BUFFER)
        port = int(server_writer.get_extra_info("sockname")[1])
        self._callers[port] = caller
        copies = [self._start(_copy(reader, server_writer)), self._start(_copy(server_reader, writer))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            del self._callers[port]  # before it is closed: until then nobody else can have the port
            server_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write what is read, and read no faster than it can be written, until an end is closed."""
    with contextlib.suppress(OSError):
        while block := await reader.read(_BUFFER):
            writer.write(block)
            await writer.drain()


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


def _reason_of(problem: OSError) -> str:
    """Why a handshake failed, in a few words that can be counted."""
    if isinstance(problem, ssl.SSLError):
        said = problem.reason or ""
        return _REASONS.get(said, "TLS: " + said.lower().replace("_", " "))
    return "silent" if isinstance(problem, TimeoutError | ConnectionAbortedError) else "hung up"
