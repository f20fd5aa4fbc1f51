"""A second implementation of the wire, written from docs/protocol.md: numpy, gRPC, safetensors, and nothing of bymi.

It takes part in a run of the hardened profile with least squares. It averages all neighbours with Metropolis weights and judges
nobody: enough to be a node that others hear, question, and keep.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from safetensors.numpy import load, save

HALVES = ("first half", "second half")
START = tuple(f"{half} at the start" for half in HALVES)


def null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: null(one) for key, one in value.items()}
    return [null(one) for one in value] if isinstance(value, list) else None if value == "(none)" else value


class SecondNode:
    """One node. `inputs` [n, d], `targets` [n], least squares 1/2 (y - x'theta)^2 plus bias; `start` [D] is common to all."""

    def __init__(self, roster: bytes, key: bytes, certificate: bytes, inputs: Any, targets: Any, start: Any) -> None:
        self.roster = tomllib.loads(roster.decode())
        for node in self.roster["node"]:
            node.pop("fingerprint", None)
        text = json.dumps(null(self.roster), sort_keys=True, separators=(",", ":"))
        self.run = hashlib.sha256(text.encode()).hexdigest()
        ders = [base64.b64decode(node["certificate"]) for node in self.roster["node"]]
        self.prints = [hashlib.sha256(der).hexdigest() for der in ders]
        self.pems = [x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in ders]
        self.me = self.pems.index(certificate)
        ends = [edge for edge in self.roster["edges"] if self.me in edge]
        self.peers = sorted({end for edge in ends for end in edge} - {self.me})
        self.degree = [sum(number in edge for edge in self.roster["edges"]) for number in range(len(ders))]
        self.key, self.certificate, self.deadline = key, certificate, self.roster["limits"]["deadline"]
        self.rows = np.hstack([inputs, np.ones((len(inputs), 1))])
        self.targets, self.start, self.step = targets, np.array(start), 0
        self.messages: dict[tuple[str, int, int, int | None], bytes] = {}
        self.answers: dict[int, tuple[int, Any]] = {}  # round: its halves
        self.changed = threading.Condition()

    # Serving.

    def serve(self) -> grpc.Server:
        handlers = {name: grpc.unary_unary_rpc_method_handler(work) for name, work in (("Get", self.get), ("Ask", self.ask))}
        server = grpc.server(ThreadPoolExecutor(32))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bymi-node-1", handlers),))
        roots = b"".join(self.pems[number] for number in self.peers)
        credentials = grpc.ssl_server_credentials([(self.key, self.certificate)], roots, require_client_auth=True)
        server.add_secure_port(self.roster["node"][self.me]["endpoint"], credentials)
        server.start()
        return server

    def caller(self, content: bytes, context: Any) -> tuple[int, dict[str, Any], bytes]:
        der = x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0]).public_bytes(Encoding.DER)
        (length,) = struct.unpack_from(">H", content)
        words = json.loads(content[2 : 2 + length])
        assert words["run"] == self.run
        return self.prints.index(hashlib.sha256(der).hexdigest()), words, content[2 + length :]

    def get(self, content: bytes, context: Any) -> bytes:
        peer, words, _ = self.caller(content, context)
        if words["kind"] == "status":
            return str(self.step).encode()
        name = (words["kind"], words["step"], words["number"])
        with self.changed:
            if self.changed.wait_for(lambda: self.found(name, peer) is not None, context.time_remaining() * 0.9):
                return self.found(name, peer) or b""
        context.abort(grpc.StatusCode.UNAVAILABLE, f"pending at {self.step}")
        raise AssertionError("abort raises")

    def found(self, name: tuple[str, int, int], peer: int) -> bytes | None:
        return self.messages.get((*name, None)) or self.messages.get((*name, peer))

    def ask(self, content: bytes, context: Any) -> bytes:
        peer, words, body = self.caller(content, context)
        with self.changed:
            assert self.changed.wait_for(lambda: words["step"] in self.answers, context.time_remaining() * 0.9)
        rows = dict(zip(HALVES, self.half_gradients(load(body)["point"], words["step"]), strict=True))
        return self.seal("answer", words["step"], words["number"], rows, peer)

    def publish(self, kind: str, step: int, number: int, body: bytes, peer: int | None = None) -> None:
        with self.changed:
            self.messages[kind, step, number, peer] = body
            if peer is None:
                self.messages["reached " + kind, step, number, None] = b"1"
            self.changed.notify_all()

    def seal(self, kind: str, step: int, number: int, rows: dict[str, Any], peer: int | None = None) -> bytes:
        """Publish an opening; returns its commitment."""
        opening = os.urandom(32) + save(rows)
        before = f"bymi commitment\n{self.run}\n{kind}\n{step}\n{number}\n{self.prints[self.me]}\n"
        self.publish(kind, step, number, opening, peer)
        return hashlib.sha256(before.encode() + opening).digest()

    # Calling.

    def connect(self) -> None:
        options = [("grpc.ssl_target_name_override", "bymi-node")]
        self.calls = {}
        for number in self.peers:
            credentials = grpc.ssl_channel_credentials(self.pems[number], self.key, self.certificate)
            channel = grpc.secure_channel(self.roster["node"][number]["endpoint"], credentials, options)
            self.calls[number] = channel.unary_unary("/bymi-node-1/Get")

    def pull(self, kind: str, step: int, number: int = 0) -> dict[int, bytes]:
        words = json.dumps({"run": self.run, "kind": kind, "step": step, "number": number}).encode()
        request, wait = struct.pack(">H", len(words)) + words, self.roster["limits"]["start_wait" if not step else "deadline"]
        futures = {peer: call.future(request, timeout=wait, wait_for_ready=True) for peer, call in self.calls.items()}
        return {peer: future.result() for peer, future in futures.items()}

    # Training.

    def gradient(self, theta: Any, chosen: Any) -> Any:
        rows, targets = self.rows[chosen], self.targets[chosen]
        return rows.T @ (rows @ theta - targets) * 2 / len(chosen)  # mean squared error

    def half_gradients(self, theta: Any, step: int) -> list[Any]:
        return [self.gradient(theta, chosen) for chosen in self.answers[step][1]]

    def detection(self, step: int, theta: Any) -> None:
        """Parameters, sealed halves at the start, answers to questions, flags, degree."""
        order = np.random.default_rng([self.me, step]).permutation(len(self.rows))[: len(self.rows) // 2 * 2]
        count = self.roster["settings"]["detection"]["sample"]
        halves = order[:count].reshape(2, -1)
        self.publish("parameters", step, 0, save({"parameters": theta}))
        self.pull("parameters", step)
        kind, gradients = "+".join(START), [self.gradient(self.start, chosen) for chosen in halves]
        sealed = self.seal(kind, step, 0, dict(zip(START, gradients, strict=True)))
        self.publish("commitment of " + kind, step, 0, sealed)
        with self.changed:
            self.answers[step] = step, halves
            self.changed.notify_all()
        self.publish("flags", step, 0, save({"flag": np.zeros(1)}))
        self.publish("degree", step, 0, save({"degree": np.array([float(len(self.peers))])}))
        self.pull("degree", step)

    def train(self, steps: int, detections: list[int], batch: int, rate: float) -> Any:
        theta, draws = self.start.copy(), np.random.default_rng(self.me)
        for self.step in range(steps):
            if self.step in detections:
                self.detection(self.step, theta)
            number = int(self.step in detections)
            self.publish("parameters", self.step, number, save({"parameters": theta}))
            mixed = theta.copy()
            for peer, body in self.pull("parameters", self.step, number).items():
                weight = 1 / (1 + max(self.degree[self.me], self.degree[peer]))
                mixed += weight * (load(body)["parameters"] - theta)
            theta = mixed - rate * self.gradient(theta, draws.integers(len(self.rows), size=batch))
        self.publish("done", steps, 0, save({}))
        return theta
