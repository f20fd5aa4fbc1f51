"""A second implementation of the wire, written from docs/protocol.md: numpy, gRPC, safetensors, and nothing of bymi.

It takes part in a run of the hardened profile with least squares. It averages all neighbours with Metropolis weights and judges
nobody: enough to be a node that others hear, question, and keep.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from safetensors.numpy import load, save

HALVES = ("first half", "second half")
START = tuple(f"{half} at the start" for half in HALVES)


class SecondNode:
    """One node. `inputs` [n, d], `targets` [n], least squares 1/2 (y - x'theta)^2 plus bias; `start` [D] is common to all."""

    def __init__(self, roster: bytes, key: bytes, certificate: bytes, inputs: Any, targets: Any, start: Any) -> None:
        self.roster = tomllib.loads(roster.decode())
        for node in self.roster["node"]:
            node.pop("fingerprint", None)
        text = json.dumps(self.roster, sort_keys=True, separators=(",", ":")).replace('"(none)"', "null")
        self.run = hashlib.sha256(text.encode()).hexdigest()
        ders = [base64.b64decode(node["certificate"]) for node in self.roster["node"]]
        self.prints = [hashlib.sha256(der).hexdigest() for der in ders]
        self.pems = [ssl.DER_cert_to_PEM_cert(der).encode() for der in ders]
        self.me = ders.index(ssl.PEM_cert_to_DER_cert(certificate.decode()))
        self.peers = sorted({end for edge in self.roster["edges"] if self.me in edge for end in edge} - {self.me})
        self.degree = [sum(number in edge for edge in self.roster["edges"]) for number in range(len(ders))]
        self.key, self.certificate = key, certificate
        self.rows = np.hstack([inputs, np.ones((len(inputs), 1))])
        self.targets, self.start, self.step = targets, np.array(start), 0
        self.messages: dict[tuple[str, int, int, int], bytes] = {}
        self.halves: dict[int, Any] = {}  # sample numbers of both halves, by round of a detection
        self.changed = threading.Condition()

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
        der = ssl.PEM_cert_to_DER_cert(context.auth_context()["x509_pem_cert"][0].decode())
        length = int.from_bytes(content[:2], "big")
        words = json.loads(content[2 : 2 + length])
        assert words["run"] == self.run
        return self.prints.index(hashlib.sha256(der).hexdigest()), words, content[2 + length :]

    def get(self, content: bytes, context: Any) -> bytes:
        peer, words, _ = self.caller(content, context)
        if words["kind"] == "status":
            return str(self.step).encode()
        name = (words["kind"], words["step"], words["number"], peer)
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.messages, context.time_remaining() * 0.9):
                context.abort(grpc.StatusCode.UNAVAILABLE, f"pending at {self.step}")
        return self.messages[name]

    def ask(self, content: bytes, context: Any) -> bytes:
        peer, words, body = self.caller(content, context)
        with self.changed:
            assert self.changed.wait_for(lambda: words["step"] in self.halves, context.time_remaining() * 0.9)
        rows = self.half_gradients(HALVES, load(body)["point"], words["step"])
        commitment, opening = self.seal("answer", words["step"], words["number"], rows)
        self.publish("answer", words["step"], words["number"], opening, peer)
        return commitment

    def publish(self, kind: str, step: int, number: int, body: bytes, peer: int | None = None) -> None:
        """Serve a message to one neighbour, or to all."""
        with self.changed:
            for one in self.peers if peer is None else [peer]:
                self.messages[kind, step, number, one] = body
                self.messages["reached " + kind, step, number, one] = b"1"
            self.changed.notify_all()

    def seal(self, kind: str, step: int, number: int, rows: dict[str, Any]) -> tuple[bytes, bytes]:
        """Commitment and opening of a message."""
        opening = os.urandom(32) + save(rows)
        before = f"bymi commitment\n{self.run}\n{kind}\n{step}\n{number}\n{self.prints[self.me]}\n"
        return hashlib.sha256(before.encode() + opening).digest(), opening

    def connect(self) -> None:
        options = [("grpc.ssl_target_name_override", "bymi-node")]
        self.calls = {}
        for number in self.peers:
            credentials = grpc.ssl_channel_credentials(self.pems[number], self.key, self.certificate)
            channel = grpc.secure_channel(self.roster["node"][number]["endpoint"], credentials, options)
            self.calls[number] = channel.unary_unary("/bymi-node-1/Get")

    def pull(self, kind: str, step: int, number: int = 0) -> dict[int, bytes]:
        words = json.dumps({"run": self.run, "kind": kind, "step": step, "number": number}).encode()
        request, wait = len(words).to_bytes(2, "big") + words, self.roster["limits"]["start_wait" if not step else "deadline"]
        futures = {peer: call.future(request, timeout=wait, wait_for_ready=True) for peer, call in self.calls.items()}
        return {peer: future.result() for peer, future in futures.items()}

    def gradient(self, theta: Any, chosen: Any) -> Any:
        rows, targets = self.rows[chosen], self.targets[chosen]
        return rows.T @ (rows @ theta - targets) * 2 / len(chosen)  # mean squared error

    def half_gradients(self, names: tuple[str, ...], theta: Any, step: int) -> dict[str, Any]:
        return {name: self.gradient(theta, chosen) for name, chosen in zip(names, self.halves[step], strict=True)}

    def detection(self, step: int, theta: Any) -> None:
        """Parameters, sealed halves at the start, answers to questions, flags, degree."""
        count = self.roster["settings"]["detection"]["sample"] // 2 * 2
        self.publish("parameters", step, 0, save({"parameters": theta}))
        self.pull("parameters", step)
        with self.changed:
            self.halves[step] = np.random.default_rng([self.me, step]).permutation(len(self.rows))[:count].reshape(2, -1)
            self.changed.notify_all()
        kind = "+".join(START)
        commitment, opening = self.seal(kind, step, 0, self.half_gradients(START, self.start, step))
        self.publish("commitment of " + kind, step, 0, commitment)
        self.pull("commitment of " + kind, step)
        self.publish(kind, step, 0, opening)
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
