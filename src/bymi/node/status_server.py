"""Metrics, health, status and a small live page of one node, on a loopback port of this machine."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bymi.core.errors import InputError
from bymi.node.identity import write_secret
from bymi.node.node_file import LOOPBACK

if TYPE_CHECKING:
    from bymi.node.run_node import NodeRun

_PAGE = Path(__file__).with_name("status_page.html")
TOKEN = "control-token"
"""File in the state folder with the word that orders need: readable by the owner only."""

_ORDERS = ("ban", "pardon")
_SECONDS = 5.0  # for a client to send its request
_BODY = 4096  # bytes of an order
_LOOK_EVERY = 0.05  # seconds between looks whether the node has ended, which waits for that
_POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class StatusServer:
    """Answers GET / (live page), /status.json, /metrics, /healthz and /model.safetensors, and POST /ban and /pardon."""

    def __init__(self, run: NodeRun, address: str) -> None:
        host, _, port = address.rpartition(":")
        token = secrets.token_hex(16).encode()
        (run.state_folder / TOKEN).unlink(missing_ok=True)
        write_secret(run.state_folder / TOKEN, token)
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(run, token))
        except OSError as problem:
            raise InputError(f"status: got {address}, allowed: a free port of this machine ({problem.strerror})") from None
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(_LOOK_EVERY,), name="bymi status", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def status_of(run: NodeRun) -> dict[str, Any]:
    """The state of a node as plain values."""
    progress, session = run.progress, run.session
    peers = [
        {
            "name": peer.name,
            "state": peer.state,
            "last_round": peer.heard_at,
            "flagged": progress.flagged.get(peer.name),
            "counts": dict(peer.counts),
        }
        for peer in session.peers.values()
    ]
    return {
        "name": run.name,
        "run": run.roster.run_id,
        "round": progress.step,
        "rounds": run.plan.steps,
        "phase": progress.phase,
        "loss": None,
        **progress.evaluation,
        "done": progress.done,
        "seconds": round(time.monotonic() - progress.started, 1),
        "refused_calls": dict(session.transport.refusals),
        "refused_connections": dict(session.transport.refused_connections),
        "log_failures": run.journal.failures,
        "peers": peers,
    }


def metrics_of(status: dict[str, Any]) -> str:
    """The same as Prometheus text."""
    lines = []

    def add(name: str, kind: str, text: str, rows: list[tuple[dict[str, str], float]]) -> None:
        lines.extend([f"# HELP bymi_{name} {text}", f"# TYPE bymi_{name} {kind}"])
        for labels, value in rows:
            inside = ",".join(f"{key}={json.dumps(label)}" for key, label in labels.items())
            lines.append(f"bymi_{name}{{{inside}}} {value:.17g}" if inside else f"bymi_{name} {value:.17g}")

    add("round", "gauge", "Rounds done.", [({}, status["round"])])
    add("rounds", "gauge", "Rounds of the run.", [({}, status["rounds"])])
    add("done", "gauge", "1 if the run has ended.", [({}, float(status["done"]))])
    for key in ("loss", "held_out_loss", "held_out_accuracy"):
        if status.get(key) is not None:
            add(key, "gauge", "On the node's own samples.", [({}, status[key])])
    peers = [({"peer": peer["name"]}, peer) for peer in status["peers"]]
    add("peer_flagged", "gauge", "1 if flagged.", [(one, float(peer["flagged"] is not None)) for one, peer in peers])
    add("peer_suspected", "gauge", "1 if not waited for.", [(one, float(peer["state"] == "suspected")) for one, peer in peers])
    rows = [({**one, "event": event}, float(count)) for one, peer in peers for event, count in peer["counts"].items()]
    add("peer_events_total", "counter", "Messages heard, missing, reused, refused; deadlines missed.", rows)
    for what in ("calls", "connections"):
        refused = [({"reason": reason}, float(count)) for reason, count in status[f"refused_{what}"].items()]
        add(f"refused_{what}_total", "counter", f"{what.capitalize()} of others that were refused.", refused)
    return "\n".join(lines) + "\n"


def _handler(run: NodeRun, token: bytes) -> type[BaseHTTPRequestHandler]:
    pages: dict[str, tuple[str, Callable[[], bytes]]] = {
        "/": ("text/html; charset=utf-8", _PAGE.read_bytes),
        "/status.json": ("application/json", lambda: json.dumps(status_of(run)).encode()),
        "/metrics": ("text/plain; version=0.0.4", lambda: metrics_of(status_of(run)).encode()),
        "/healthz": ("text/plain", lambda: b"ok\n"),
        "/model.safetensors": ("application/octet-stream", run.model_bytes),
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS
        server_version, sys_version = "bymi", ""

        def do_GET(self) -> None:
            page = pages.get(urlsplit(self.path).path)
            # A web page can point a name of its own at this address.
            if self.headers.get("Host", "").rpartition(":")[0] not in LOOPBACK:
                self._send(403, b"not under this name\n")
            elif page is None:
                self._send(404, b"not found\n")
            else:
                self._send(200, page[1](), page[0])

        def do_POST(self) -> None:
            what, length = urlsplit(self.path).path.strip("/"), self.headers.get("Content-Length", "")
            if what not in _ORDERS or not length.isdigit() or int(length) > _BODY:
                self._send(404, b"not found\n")
            elif not hmac.compare_digest(self.headers.get("X-Bymi-Token", "").encode(), token):
                self._send(403, b"the word in control-token is needed\n")
            else:
                try:
                    run.order(what, self.rfile.read(int(length)).decode("utf-8", "replace"))
                    self._send(200, b"from the next round on\n")
                except InputError as problem:
                    self._send(400, f"{problem}\n".encode())

        def _send(self, code: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Security-Policy", _POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests of the owner are not logged."""

    return Handler


def read_token(folder: Path) -> str:
    """The word that orders need, from the state folder."""
    try:
        return (folder / TOKEN).read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise InputError(f"{folder / TOKEN}: {problem.strerror}; allowed: the state folder of a node that runs") from None
