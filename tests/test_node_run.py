"""Nodes from their files to a trained model: commands, logs, checkpoints, restarts, orders by hand."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bymi.core.errors import InputError
from bymi.node import node_checkpoints, run_node
from bymi.node.event_log import AUDIT, LOG, Journal, verify_audit
from bymi.node.own_data import LOSSES, OwnProblem, load_model, load_samples
from bymi.node.roster import Limits, read_roster
from bymi.node.run_node import NodeRun, StopError
from bymi.problems import Shards
from bymi.training.state import Snapshot
from tests.browser import browser, needs_browser, requests_of
from tests.commands import bymi
from tests.full_disk import FullDisk
from tests.idx_files import write_idx
from tests.node_fixtures import INPUTS, MODEL, PACED, HoldInDetection, Running, entries, in_process, wait_until, write_nodes
from tests.peer_networks import loop_thread


def status_url(run: NodeRun) -> str:
    """Address of a node's status page, once it is there."""
    file = run.state_folder / "status-url"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return file.read_text().strip()


def get(run: NodeRun, path: str, **headers: str) -> bytes:
    request = urllib.request.Request(status_url(run) + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def test_a_run_with_orders_by_hand(tmp_path: Path) -> None:
    """Four nodes, one with wrong data: it is found; the model, both logs, metrics and the page say what happened."""
    paths = write_nodes(tmp_path, 4, "steps=40", "warm_up.steps=10", "watch.every=10", wrong=3)
    early = [Running(path) for path in paths[:3]]  # they wait for the last one before their first round
    first = early[0].run
    url = status_url(first)
    assert get(first, "/healthz") == b"ok\n"
    assert json.loads(bymi("node", "status", paths[0], "--json").out)["round"] == 0
    assert "node-1: not yet, kept" in bymi("node", "status", paths[0]).out
    assert bymi("node", "status", "--url", url).out == bymi("node", "status", paths[0]).out
    assert b"fetch(" in get(first, "/")
    with pytest.raises(urllib.error.HTTPError, match="403"):  # a web page that points its own name at loopback
        get(first, "/status.json", Host="evil.example:80")
    with pytest.raises(urllib.error.HTTPError, match="403"):  # no token
        urllib.request.urlopen(urllib.request.Request(f"{url}/ban", b"node-1"), timeout=10)
    assert "node-2: from the next round on" in bymi("node", "ban", paths[0], "node-2").out
    assert "node-2: from the next round on" in bymi("node", "pardon", paths[0], "node-2").out
    assert "allowed: node-1, node-2, node-3" in bymi("node", "ban", paths[0], "nobody").err
    bymi("node", "export", paths[0], "--out", tmp_path / "early.safetensors")
    runs = [one.end() for one in (*early, Running(paths[3]))]

    models = []
    for path, run in zip(paths[:3], runs, strict=False):
        state = path.parent / "state"
        assert run.progress.flagged.keys() == {"node-3"}
        audit = entries(state / AUDIT)
        found = [line for line in audit if line["event"] == "verdict" and line["flagged"] and line["name"] == "node-3"]
        assert found[0]["reason"] != "kept"
        assert found[0]["statistic"] is not None
        assert verify_audit(state / AUDIT) == (len(audit), None)
        models.append(load_file(state / "model.safetensors"))
        assert {line["event"] for line in entries(state / LOG)} >= {"start", "round", "verdict", "end"}
    orders = [line["event"] for line in entries(paths[0].parent / "state" / AUDIT) if line.get("name") == "node-2"]
    assert orders[:2] == ["ban", "pardon"]
    for model in models:
        np.testing.assert_allclose(model["1.weight"][0], np.arange(1.0, INPUTS + 1.0), atol=0.2)
    assert not np.allclose(load_file(tmp_path / "early.safetensors")["1.weight"], models[0]["1.weight"])
    bymi("node", "export", paths[0], "--out", tmp_path / "late.safetensors")  # the node has ended
    assert np.array_equal(load_file(tmp_path / "late.safetensors")["1.weight"], models[0]["1.weight"])


def test_a_changed_audit_line_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "a")
    for step in range(5):
        journal.tell("verdict", step=step, peer=1, reason="score", flagged=False)
    Journal(tmp_path, "a").tell("end", step=5)  # a restarted node continues the chain
    assert "6 lines, chain intact" in bymi("node", "audit", tmp_path / AUDIT).out
    lines = (tmp_path / AUDIT).read_text().splitlines()
    for broken, at in (
        ([*lines[:2], lines[2].replace("false", "true"), *lines[3:]], 3),
        ([*lines[:3], *lines[4:]], 4),
        ([*lines[:1], "{", *lines[2:]], 2),
    ):
        (tmp_path / "changed").write_text("\n".join(broken) + "\n")
        assert verify_audit(tmp_path / "changed")[1] == at
        assert f"line {at} was changed" in bymi("node", "audit", tmp_path / "changed").err


def test_a_flood_of_events_does_not_fill_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "a")
    for _ in range(1000):
        journal.tell("refused call", peer=1, reason="x" * 10_000)
    assert (tmp_path / LOG).stat().st_size < 50_000
    assert journal.counts["refused call"] == 1000


def own_entries(log: Path) -> list[dict[str, Any]]:
    """What the node itself did: a neighbour may call at any time, also while the node ends."""
    return [line for line in entries(log) if line["event"] != "refused call"]


@pytest.mark.parametrize("profile", ["paper", "hardened"])
def test_kill_9_in_each_phase(tmp_path: Path, profile: str) -> None:
    """A process is killed in the warm-up, in the detection after its commitment, and in the optimisation; then it is stopped.

    Each time it continues from its checkpoint, and the others go on. It is heard to the end, unless the published detection, of
    which there is one, cut its arcs.
    """
    limits = Limits(deadline=1.0, start_wait=30.0, strikes=1)
    words = (f"profile={profile}", "steps=100", "warm_up.steps=20", "optimisation.premix_rounds=10", "warm_up.cool_down=0")
    paths = write_nodes(tmp_path, 4, *words, limits=limits, checkpoint_every=4, evaluate_every=4, loss=PACED)
    log, hold = paths[3].parent / "state" / LOG, tmp_path / "in-detection"
    others = [Running(path) for path in paths[:3]]

    def reached(step: int) -> bool:
        return log.exists() and any(line["event"] == "round" and line["step"] >= step for line in entries(log))

    for place in (lambda: reached(8), hold.exists, lambda: reached(32)):
        node = in_process(paths[3], None if hold.exists() else HoldInDetection(hold))
        wait_until(place)
        node.kill()
        node.join(30)
        assert node.exitcode == -signal.SIGKILL
    wait_until(lambda: all(one.run.progress.step >= 44 for one in others))  # without it
    node = in_process(paths[3])
    wait_until(lambda: reached(68))
    node.terminate()
    node.join(30)
    assert node.exitcode == 0
    stopped = own_entries(log)[-1]
    assert stopped["event"] == "stopped"
    node = in_process(paths[3])
    runs = [one.end() for one in others]
    node.join(30)
    assert node.exitcode == 0

    events = own_entries(log)
    assert [line["event"] for line in events].count("start") == 5
    restored = [line for line in events if line["event"] == "restored"]
    assert [line["phase"] for line in restored] == ["warm-up", "warm-up", "optimisation", "optimisation"]
    assert 4 <= restored[0]["step"] <= restored[1]["step"] <= 20 < restored[2]["step"] < restored[3]["step"] == stopped["step"]
    assert events[-1]["event"] == "end"
    assert verify_audit(log.with_name(AUDIT))[1] is None
    joined = [line for line in events if line["event"] == "behind"][-1]
    for run in runs:
        peer = run.session.peers[3]
        assert run.progress.step == 100
        assert peer.heard_at == 100
        audit = [line for line in entries(run.state_folder / AUDIT) if line.get("peer") == 3]
        suspected, back = (next(line for line in audit if line["event"] == what) for what in ("suspected", "readmitted"))
        assert suspected["step"] < joined["joins"]
        assert back["time"] - joined["time"] < 20.0  # gRPC pauses up to a second, tens of these rounds, between attempts
        assert peer.counts["heard"] > 50 or (profile == "paper" and "node-3" in run.progress.flagged)


@pytest.mark.parametrize("point", ["sender", "receiver", "hardened"])
def test_a_restart_of_all_leaves_the_numbers(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes stop in the warm-up, right after a detection and in the optimisation: the model of an undisturbed run."""
    words = ["steps=24", "warm_up.steps=8", "optimisation.premix_rounds=4", "optimisation.order=adapt-then-combine"]
    words += ["watch.every=8"] if point == "hardened" else ["profile=paper", f"detection.point={point}"]
    paths = write_nodes(tmp_path, 3, *words, limits=Limits(deadline=10.0, start_wait=30.0))
    monkeypatch.setattr(run_node, "_ASK", 0.3)  # seconds for which a node stays for those that have stopped, too
    undisturbed = [one.end() for one in [Running(path) for path in paths]]
    expected = [load_file(run.state_folder / "model.safetensors")["1.weight"] for run in undisturbed]
    see, stops = NodeRun._see, {(5, "warm-up"), (8, "detection"), (15, "optimisation")}

    def see_and_stop(run: NodeRun, snapshot: Snapshot) -> None:
        see(run, snapshot)
        if (snapshot.step, snapshot.phase) in left[run.node]:
            left[run.node].discard((snapshot.step, snapshot.phase))
            raise StopError

    left = {node: set(stops) for node in range(3)}
    monkeypatch.setattr(NodeRun, "_see", see_and_stop)
    for run in undisturbed:
        shutil.rmtree(run.state_folder)
    for _ in range(4):
        runs = [one.end() for one in [Running(path) for path in paths]]
    assert not any(left.values())
    for run, weight in zip(runs, expected, strict=True):
        assert run.progress.done
        np.testing.assert_allclose(load_file(run.state_folder / "model.safetensors")["1.weight"], weight, rtol=0, atol=1e-12)
        counts = [peer.counts for peer in run.session.peers.values()]
        assert sum(count["missing"] + count["refused messages"] for count in counts) == 0


def test_a_late_node_joins_at_the_median_round(tmp_path: Path) -> None:
    """It trusts no single neighbour about the round: one says 1,000,000."""
    limits = Limits(deadline=1.0, start_wait=1.0)
    words = ("steps=70", "warm_up.steps=10", "watch.every=50")
    paths = write_nodes(tmp_path, 4, *words, limits=limits, loss=PACED)
    early = [Running(path) for path in paths[:3]]
    wait_until(lambda: early[0].run.progress.step > 20)
    early[2].run.session.transport.outbox.step = 1_000_000
    late = Running(paths[3])
    late.end()
    for one in early:
        one.end()
    joins = [line["joins"] for line in entries(paths[3].parent / "state" / AUDIT) if line["event"] == "behind"]
    assert joins
    assert all(20 <= step < 70 for step in joins)
    assert late.run.progress.step == 70
    assert min(one.run.session.peers[3].counts["heard"] for one in early[:2]) > 10


def test_a_corrupt_checkpoint(tmp_path: Path) -> None:
    """The one before it is used, and the audit log says why."""
    (path, *_) = write_nodes(tmp_path, 3, "steps=30", "warm_up.steps=10")
    run = NodeRun(path, loop=loop_thread())
    theta = run.problem.initial(run.problem.node_numbers)
    folder = run.state_folder / "checkpoints"
    for step in (3, 4, 5):
        state = node_checkpoints.state_at(None, step, run.problem, run.node, run.plan, 3)
        node_checkpoints.save(folder, run.roster.run_id, replace(state, theta=theta + step))
    stored = sorted(folder.iterdir())
    assert len(stored) == 2
    whole = stored[-1].read_bytes()
    for damaged, reason in ((whole[:-9], "cut short"), (whole[:-1] + b"\1", "checksum"), (b"", "cut short")):
        stored[-1].write_bytes(damaged)
        state = run._restored()
        assert state is not None
        assert state.step == 4
        assert torch.equal(state.theta, theta + 4)
        *_, told, _ = [line for line in entries(run.state_folder / AUDIT) if line["event"] == "restored"]
        assert stored[-1].name in told["reason"]
        assert reason in told["reason"]


@pytest.mark.parametrize("kind", ["file system", "size limit"])
def test_a_full_disk(tmp_path: Path, kind: str) -> None:
    """A process whose writes fail for eight rounds: it sends on, ends, and its logs are whole and say how much they lack."""
    words = ("steps=30", "warm_up.steps=10", "watch.every=10")
    paths = write_nodes(tmp_path, 3, *words, checkpoint_every=2, evaluate_every=1)
    report = tmp_path / "report.json"
    node = in_process(paths[2], FullDisk(kind, 8, 16, report))
    wait_until(lambda: report.exists() or report.with_suffix(".ready").exists())
    if report.exists():
        pytest.skip(json.loads(report.read_text())["skip"])
    others = [Running(path) for path in paths[:2]]
    for run in [one.end() for one in others]:
        counts = run.session.peers[2].counts
        assert (counts["missing"], counts["refused messages"], run.progress.step) == (0, 0, 30)
    node.join(30)
    assert node.exitcode == 0
    found = json.loads(report.read_text())
    assert found["done"]
    assert found["kept"] == ["round-00000006.safetensors", "round-00000008.safetensors"]  # nothing else, nothing half
    assert found["failed"] >= 4
    assert found["failures"] == sum(found["lost"]) > 0
    assert found["folder"] == sorted(found["stored"])
    assert "round-00000030.safetensors" in found["stored"]
    assert found["audit"] == [len(found["lines"]), None]
    told = [line["reason"] for line in found["lines"] if line["event"] == "checkpoint failed"]
    assert (
        set(told) == {"No space left on device"}
        if kind == "file system"
        else any("lost_before" in line for line in found["lines"])
    )
    assert found["lines"][-1]["event"] == "end"


@needs_browser
def test_the_live_page_in_a_browser(tmp_path: Path) -> None:
    """It shows neighbours as they are, asks for nothing but this node, and logs no error."""
    paths = write_nodes(tmp_path, 3, "steps=400", "warm_up.steps=10", loss=PACED)
    early = [Running(path) for path in paths[:2]]  # they wait for the third
    run = early[0].run
    url = status_url(run)
    with browser(tmp_path / "profile") as driver:
        driver.get(url)
        wait_until(lambda: "not yet" in driver.find_element("id", "peers").text)
        assert driver.find_element("id", "name").text == "node-0"
        Running(paths[2])
        wait_until(lambda: "heard" in driver.find_element("id", "peers").text)
        asked = {address for address in requests_of(driver) if address.startswith("http")}  # not of the browser itself
        assert {address.removeprefix(url) for address in asked} <= {"/", "/status.json", "/favicon.ico"}
        errors = [
            entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
        ]
        assert errors == []
    for one in early:
        one.end()


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc" else name)
    said = bymi("node", "keygen", "--out", "x").err
    assert "pip install 'bymi[node]'" in said
    assert said.count("\n") == 1


def own_samples() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((6, 4)), np.array([0, 1, 0, 1, 0, 1])


def test_own_data_from_objects_and_files(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "a.csv", np.hstack([np.ones((6, 4)), np.arange(6)[:, None] % 2]), delimiter=",")
    write_idx(tmp_path / "images", torch.arange(24, dtype=torch.uint8).view(6, 2, 2), False)
    write_idx(tmp_path / "labels", torch.arange(6, dtype=torch.uint8) % 2, False)
    for source in ("tests.test_node_run:own_samples", "a.csv", {"inputs": "images", "targets": "labels"}):
        found = load_samples(source, tmp_path, "data", torch.float64)  # type: ignore[arg-type]
        assert found.targets.tolist() == [0, 1, 0, 1, 0, 1]
        assert found.inputs.shape[0] == 6
        assert found.inputs.dtype == torch.float64
    for source, text in (("b.csv", "cannot read"), ("c.txt", "allowed: module:object"), ("tests.nothing:x", "ModuleNotFound")):
        with pytest.raises(InputError, match=text):
            load_samples(source, tmp_path, "data", torch.float64)


def test_clipped_gradients_with_noise() -> None:
    """`clip` bounds the norm of every gradient; `noise` adds a vector of about that multiple of it, another one each time."""
    samples = Shards(torch.randn(30, 50, dtype=torch.float64), 100 * torch.randn(30, 1, dtype=torch.float64))
    model, nodes, chosen = load_model("linear:inputs=50,outputs=1"), torch.tensor([2]), torch.arange(30)[None]
    made = [OwnProblem(model, LOSSES["squared"], samples, 2, 0, clip=clip, noise=0.0) for clip in (None, 0.5)]
    noisy = OwnProblem(model, LOSSES["squared"], samples, 2, 0, clip=0.5, noise=2.0)
    plain, clipped = (one.gradient(one.initial(nodes), nodes, chosen) for one in made)
    torch.testing.assert_close(clipped, plain * 0.5 / plain.norm())
    first, second = (noisy.gradient(noisy.initial(nodes), nodes, chosen) - clipped for _ in range(2))
    assert 0.5 < float(first.norm()) < 1.6  # 2 x 0.5, up to the spread of a chi of 51 degrees, ten of its standard deviations
    assert not torch.allclose(first, second)


def test_the_demonstration(tmp_path: Path) -> None:
    """Three processes, one of them the Byzantine program: the command ends, and its table has a row per honest node."""
    said = bymi("net", "demo", "--nodes", 3, "--byzantine", 1, "--steps", 20, "--out", tmp_path / "demo", "--json")
    found = json.loads(said.out)
    assert found["byzantine"] == ["node-2"]
    assert [row["node"] for row in found["rows"]] == ["node-0", "node-1"]
    assert found["accuracy"] > 0.5
    assert verify_audit(tmp_path / "demo" / "node-0" / "state" / AUDIT)[1] is None


def test_files_are_checked(tmp_path: Path) -> None:
    """A mistake in a roster, a node file or own data is one line."""
    (path, *_) = write_nodes(tmp_path, 3, "steps=30")
    text = path.read_text()
    for old, new, expected in (
        ("loss", "lose", "did you mean 'loss'"),
        ("data.npz", "nothing.npz", "data: cannot read"),
        (MODEL, "linear:inputs=7,outputs=1", "as the roster has it"),
        ('"127.0.0.1:0"', '"0.0.0.0:0"', "an address of this machine only"),
        ("squared", "cubed", "loss: got 'cubed'"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=expected.replace("(", r"\(")):
            NodeRun(path)
    path.write_text(text)
    roster = (tmp_path / "roster.toml").read_text()
    read = read_roster(tmp_path / "roster.toml")
    for old, new, expected in (
        ("[[0, 1]", "[[0, 0]", "edges"),
        ("node-1", "node-0", "a different one for each node"),
        (read.members[0].fingerprint, "0" * 64, "fingerprint"),
        ('"name" = "balance"', '"name" = "tests.nothing:Rule"', "a roster runs no code"),
        ("steps = 30", "steps = 30000000", "settings.steps"),
        ("[limits]", "[limits", "TOML"),
        ('stop = "(none)"', 'stop = { "tolerance" = 0.1 }', "settings.stop"),
    ):
        assert old in roster
        (tmp_path / "roster.toml").write_text(roster.replace(old, new, 1))
        with pytest.raises(InputError, match=expected):
            read_roster(tmp_path / "roster.toml")
    (tmp_path / "roster.toml").write_text(roster.replace("deadline = 20.0", "deadline = 21.0"))
    assert read_roster(tmp_path / "roster.toml").run_id != read.run_id


def test_the_roster_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = []
    for name in ("a", "b", "c"):
        said = bymi("node", "keygen", "--out", name).out
        assert len(said.split()[1]) == 64
        lines.append(f"{name} 127.0.0.1:700{len(lines)} {name}/certificate.pem")
    assert "has a key.pem already" in bymi("node", "keygen", "--out", "a").err
    assert oct(Path("a/key.pem").stat().st_mode)[-3:] == "600"
    Path("members.txt").write_text("\n".join(lines))
    Path("run.toml").write_text('method = "drsgd-bymi"\nsteps = 50\ngraph = "ring"\n')
    said = bymi(
        "net", "init", "roster.toml", "--members", "members.txt", "--spec", "run.toml", "--model", MODEL, "--samples", 40
    )
    roster = read_roster(Path("roster.toml"))
    assert said.out.split()[2] == roster.run_id
    assert roster.edges == ((0, 1), (0, 2), (1, 2))
    assert roster.plan.steps == 50
    assert torch.equal(roster.graph.hears, ~torch.eye(3, dtype=torch.bool))
