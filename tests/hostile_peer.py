"""A hostile peer: a raw gRPC server and client with a valid certificate, which may answer and send anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from bymi.node.identity import HOST_NAME, pem_of
from bymi.node.wire import ASK, GET, SERVICE, Tag, read_frame
from tests.peer_networks import identity_of, loop_thread, members

Reply = Callable[[Tag, bytes], Any]
"""From a tag and a request's body to bytes, to None for silence, or to an exception (a status code and a text)."""


class HostilePeer:
    """Node `number` of `size`. `reply` decides what it answers; `stream`: an endless answer in place of one."""

    def __init__(self, number: int, size: int, reply: Reply, *, stream: bool = False) -> None:
        self._number, self._size, self._reply, self._stream = number, size, reply, stream
        self.asked: list[Tag] = []
        self.port = loop_thread().wait(self._start())
        self.endpoint = f"127.0.0.1:{self.port}"

    async def _start(self) -> int:
        self._server = grpc.aio.server()
        kind = grpc.unary_stream_rpc_method_handler if self._stream else grpc.unary_unary_rpc_method_handler
        handler = self._endless if self._stream else self._on_call
        methods = {name: kind(handler) for name in (GET, ASK)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        identity = identity_of(self._number)
        roots = b"".join(pem_of(member.certificate) for member in members(self._size))
        credentials = grpc.ssl_server_credentials([(identity.key, identity.certificate)], roots, require_client_auth=True)
        port = int(self._server.add_secure_port("127.0.0.1:0", credentials))
        await self._server.start()
        return port

    async def _on_call(self, content: bytes, context: Any) -> bytes:
        request = read_frame(content)
        self.asked.append(request.tag)
        answer = self._reply(request.tag, request.body)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is None:
            await asyncio.sleep(3600)
        if isinstance(answer, tuple):
            await context.abort(*answer)
        return bytes(answer)

    async def _endless(self, content: bytes, context: Any) -> Any:
        while True:
            yield bytes(1 << 16)

    def close(self) -> None:
        loop_thread().wait(self._server.stop(0))


def channel_to(
    endpoint: str, *, server: int, key: bytes | None = None, certificate: bytes | None = None, plain: bool = False
) -> Any:
    """A channel of its own to a node, with any certificate or none."""

    async def make() -> Any:
        options = [("grpc.ssl_target_name_override", HOST_NAME), ("grpc.use_local_subchannel_pool", 1)]
        if plain:
            return grpc.aio.insecure_channel(endpoint, options=options)
        credentials = grpc.ssl_channel_credentials(identity_of(server).certificate, key, certificate)
        return grpc.aio.secure_channel(endpoint, credentials, options=options)

    return loop_thread().wait(make())


def call(endpoint: str, method: str, content: bytes, *, timeout: float = 2.0, times: int | None = None, **access: Any) -> Any:
    """The answer to a call over a channel of its own, or the gRPC error; with `times`, of so many calls at once."""
    channel = channel_to(endpoint, **access)

    async def make() -> Any:
        try:
            answers = [_answer(channel.unary_unary(f"/{SERVICE}/{method}"), content, timeout) for _ in range(times or 1)]
            found = await asyncio.gather(*answers)
            return found[0] if times is None else found
        finally:
            await channel.close()

    return loop_thread().wait(make())


async def _answer(method: Any, content: bytes, timeout: float) -> Any:
    try:
        return await method(content, timeout=timeout)
    except grpc.aio.AioRpcError as problem:
        return problem


def words(**changes: Any) -> bytes:
    """A request with words of its own."""
    text = json.dumps({"run": "0" * 64, "kind": "parameters", "step": 0, "number": 0, **changes}).encode()
    return len(text).to_bytes(2, "big") + text
