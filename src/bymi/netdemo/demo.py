"""`bymi net demo`: nodes with keys, a roster and data of their own, each a process, over mutual TLS on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bymi.core.errors import BymiError, require
from bymi.datasets import load_images
from bymi.datasets.partition import Stratified
from bymi.detection.verdict import SUSPENDED
from bymi.experiment import load
from bymi.node.event_log import AUDIT, LOG
from bymi.node.identity import certificate_der, write_identity
from bymi.node.own_data import load_model, signature_of
from bymi.node.roster import Limits, Member, make_roster, roster_toml

LIMITS = Limits(deadline=10.0, start_wait=60.0)
SETTINGS = (
    *("data=digits", "data.identification=100", "graph=complete", "attack=ipm", "method=drsgd-bymi", "byzantine_ratio=0"),
    *("warm_up.rule=balance", "warm_up.step_size=0.05", "warm_up.schedule=constant", "warm_up.batch=64"),
    *("detection.sample=identification", "optimisation.step_size=0.1", "optimisation.schedule=linear"),
    *("optimisation.batch=64", "optimisation.max_local_step=0.3", "optimisation.order=adapt-then-combine"),
)
_PORTS = range(20_000, 32_000)
MODEL = "linear:inputs=784,outputs=10"
"""Softmax regression. It has converged after 60 rounds, so that accuracies with and without an attack can be compared."""


@dataclass(frozen=True)
class Demo:
    """A prepared network: the folder of each node, and how many of them, the last ones, are Byzantine."""

    folders: list[Path]
    byzantine: int
    steps: int

    @property
    def honest(self) -> list[Path]:
        return self.folders[: len(self.folders) - self.byzantine]


def prepare(folder: Path, *, nodes: int, byzantine: int, steps: int, seed: int = 0, limits: Limits = LIMITS) -> Demo:
    """Keys, roster, data and node files of all nodes, in a folder each. Data: scikit-learn's digits, dealt to the nodes."""
    require(3 <= nodes <= 20, "--nodes", nodes, "3 to 20")
    require(0 <= 2 * byzantine < nodes, "--byzantine", byzantine, "less than half of the nodes")
    require(20 <= steps <= 10_000, "--steps", steps, "20 to 10000")
    words = [*SETTINGS, f"steps={steps}", f"warm_up.steps={steps // 6}", f"watch.every={max(5, steps // 3)}"]
    samples = _write_data([folder / f"node-{number}" for number in range(nodes)], seed)
    given = {"model": MODEL, "held_out": "../held-out.npz"}
    return Demo(write_nodes(folder, nodes, words, given, samples=samples, seed=seed, limits=limits), byzantine, steps)


def write_nodes(
    folder: Path, count: int, words: list[str], given: dict[str, Any], *, samples: int, seed: int = 0, limits: Limits
) -> list[Path]:
    """Folders node-0, node-1, ... with a key and a node file each, beside the roster of a spec; data.npz is to be there, too.

    `words`: the spec, as for `bymi run`. `given`: entries of all node files, of which `model` is one.
    """
    folders = [folder / f"node-{number}" for number in range(count)]
    members = [
        Member(one.name, f"127.0.0.1:{port}", certificate_der(write_identity(one / "identity").certificate, one.name))
        for one, port in zip(folders, free_ports(count), strict=True)
    ]
    (spec,) = load(None, [*words, f"nodes={count}"], seed).expand()
    roster = make_roster(members, spec.resolved, signature_of(load_model(given["model"])), samples=samples, limits=limits)
    (folder / "roster.toml").write_text(roster_toml(roster), encoding="utf-8")
    for one, member in zip(folders, members, strict=True):
        entries = {"roster": "../roster.toml", "key": "identity", "data": "data.npz", **given}
        entries |= {"listen": member.endpoint, "status": "127.0.0.1:0"}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in entries.items()]
        (one / "node.toml").write_text("".join(lines), encoding="utf-8")
    return folders


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free at the moment, below those that systems give to outgoing connections."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def _write_data(folders: list[Path], seed: int) -> int:
    """A file of samples per node, and the common test images; returns the number of samples per node."""
    images = load_images("digits")
    places = Stratified().split(images.train_labels, len(folders), samples=None, seed=seed)
    pixels = images.train_images.float()
    centre, spread = float(pixels.mean()), float(pixels.std())
    for one, rows in zip(folders, places, strict=True):
        one.mkdir(parents=True, exist_ok=True)
        inputs = ((pixels[rows] - centre) / spread).numpy().astype(np.float32)
        np.savez(one / "data.npz", inputs=inputs, targets=images.train_labels[rows].numpy())
    test = ((images.test_images.float() - centre) / spread).numpy().astype(np.float32)
    np.savez(folders[0].parent / "held-out.npz", inputs=test, targets=images.test_labels.numpy())
    return int(places.shape[1])


def run_demo(demo: Demo, *, timeout: float = 600.0) -> dict[str, Any]:
    """Start all nodes, wait for the honest ones, and sum up what their logs say."""
    start = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}
    processes = []
    for one in demo.folders:
        program = ["-m", "bymi", "node", "run"] if one in demo.honest else ["-m", "bymi.netdemo.byzantine_node"]
        with (one / "stderr.txt").open("w", encoding="utf-8") as errors:
            command = [sys.executable, *program, str(one / "node.toml")]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment))
    try:
        for one, process in zip(demo.honest, processes, strict=False):
            code = process.wait(max(1.0, timeout - (time.monotonic() - start)))
            if code:
                said = (one / "stderr.txt").read_text(encoding="utf-8").strip().splitlines()[-1:]
                raise BymiError(f"net demo: {one.name} ended with code {code} ({''.join(said)})")
    except subprocess.TimeoutExpired:
        raise BymiError(f"net demo: not at its end after {timeout:g} seconds; logs are in {demo.folders[0].parent}") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    return summary(demo, time.monotonic() - start)


def summary(demo: Demo, seconds: float) -> dict[str, Any]:
    """Per honest node: whom it flags after the last detection and for which reason, and its accuracy on the test images."""
    byzantine = [one.name for one in demo.folders if one not in demo.honest]
    rows: list[dict[str, Any]] = []
    for one in demo.honest:
        verdicts = [entry for entry in _entries(one / "state" / AUDIT) if entry["event"] == "verdict"]
        last = max((entry["step"] for entry in verdicts), default=-1)
        reasons = {entry["name"]: entry["reason"] for entry in verdicts if entry["flagged"] and entry["reason"] != SUSPENDED}
        flagged = {
            entry["name"]: reasons.get(entry["name"], SUSPENDED)
            for entry in verdicts
            if entry["step"] == last and entry["flagged"]
        }
        end = next((entry for entry in _entries(one / "state" / LOG) if entry["event"] == "end"), {})
        rows.append(
            {
                "node": one.name,
                "flagged": flagged,
                "found_all": set(byzantine) <= set(flagged),
                "false": sorted(set(flagged) - set(byzantine)),
                "accuracy": end.get("held_out_accuracy"),
            }
        )
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    return {
        "nodes": len(demo.folders),
        "byzantine": byzantine,
        "steps": demo.steps,
        "seconds": round(seconds, 1),
        "found_by_all": all(row["found_all"] for row in rows),
        "accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
        "rows": rows,
    }


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
