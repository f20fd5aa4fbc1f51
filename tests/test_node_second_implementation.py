"""An implementation of the wire that shares no code with bymi takes part in a run, and is kept by the others."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bymi.node.identity import CERTIFICATE, KEY
from bymi.node.roster import read_roster
from tests.node_fixtures import Running, entries, write_nodes
from tests.second_node import SecondNode


def test_it_joins_and_is_kept(tmp_path: Path) -> None:
    words = ("steps=40", "warm_up.steps=12", "watch.every=16", "warm_up.step_size=0.02", "warm_up.schedule=constant")
    paths = write_nodes(tmp_path, 5, *words, "optimisation.step_size=0.02", "optimisation.schedule=constant")
    folder, roster = paths[-1].parent, read_roster(tmp_path / "roster.toml")
    others = [Running(path) for path in paths[:-1]]
    data, problem = np.load(folder / "data.npz"), others[0].run.problem
    start = problem.initial(problem.node_numbers)[0].numpy()
    identity = [(folder / "identity" / name).read_bytes() for name in (KEY, CERTIFICATE)]
    node = SecondNode((tmp_path / "roster.toml").read_bytes(), *identity, data["inputs"], data["targets"][:, 0], start)
    assert node.run == roster.run_id
    server = node.serve()
    node.connect()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(node.train(40, roster.plan.detections, 8, 0.02)), daemon=True)
    thread.start()
    runs = [one.end() for one in others]
    thread.join(30)
    server.stop(0)
    for path, run in zip(paths, runs, strict=False):
        peer = run.session.peers[4]
        assert (peer.counts["missing"], peer.counts["refused messages"], peer.counts["suspicions"]) == (0, 0, 0)
        verdicts = [line for line in entries(path.parent / "state" / "audit.jsonl") if line["event"] == "verdict"]
        assert {line["flagged"] for line in verdicts if line["name"] == "node-4"} == {False}
        assert len({line["step"] for line in verdicts}) == len(roster.plan.detections)
    model = load_file(paths[0].parent / "state" / "model.safetensors")
    both = np.hstack([model["1.weight"][0], model["1.bias"]])
    np.testing.assert_allclose(found[0], both, atol=0.1)  # trained together: both are still about 1 away from the solution
    assert np.linalg.norm(found[0] - start) > 2


def test_it_shares_no_code() -> None:
    text = (Path(__file__).parent / "second_node.py").read_text()
    assert "bymi" not in {name.split(".")[0] for node in ast.walk(ast.parse(text)) for name in _imported(node)}
    assert len(text.splitlines()) <= 150


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
