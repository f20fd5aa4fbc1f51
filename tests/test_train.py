"""`bymi.train`: one's own module, data and graph through the runner of `bymi run`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import bymi
from bymi import InputError, datasets
from bymi.attacks import SignFlip, VectorAttack
from bymi.core.random_streams import stream
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import load
from bymi.problems import lenet, start_of
from bymi.report.page import write_page
from bymi.report.tables import cells
from bymi.runs import run_folder as store
from bymi.runs.given_objects import digest_of
from bymi.runs.metrics import TRUTH_KEYS
from bymi.runs.run_folder import DETECTIONS
from bymi.training.samples import all_samples, fresh_halves, split_samples
from tests.forked import call

NODES = 10
FACTOR = 1.0
CROSS_ENTROPY = nn.functional.cross_entropy


def net(width: int = 5) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    nn.utils.vector_to_parameters(start_of(model, seed=1), model.parameters())
    return model


def data(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    inputs = [stream(0, "inputs", node=node).normal(size, 4).to(torch.float32) for node, size in enumerate(sizes)]
    return [(rows, rows[:, :3].argmax(1)) for rows in inputs]


EQUAL = data([20] * NODES)
UNEQUAL = data([14 + 3 * node for node in range(NODES)])
TEST = stream(0, "test").normal(50, 4).to(torch.float32)


def accuracy(model: nn.Module) -> float:
    return float((model(TEST).argmax(1) == TEST[:, :3].argmax(1)).double().mean())


def total(model: nn.Module) -> float:
    return float(TEST.sum())


def shifted(outputs: Tensor, targets: Tensor) -> Tensor:
    return FACTOR * nn.functional.cross_entropy(outputs, targets)


@dataclass(frozen=True)
class Push(VectorAttack):
    """Sends the honest mean plus a constant."""

    size: float = 2.0

    def __call__(self, honest: Tensor, would_send: Tensor, shared: bymi.Stream, fresh: bymi.Stream) -> Tensor:
        return (honest.mean(0) + self.size).expand_as(would_send)


def train(folder: Path, **changes: Any) -> bymi.TrainedRun:
    given = {
        "model": net(),
        "loss": nn.functional.cross_entropy,
        "shards": EQUAL,
        "graph": "complete",
        "steps": 8,
        "attack": "sign-flip",
        "byzantine": [0, 7],
        "warm_up": {"batch": 4, "steps": 3},
        "host": Host(device="cpu"),
        "out": folder,
        **changes,
    }
    return bymi.train(given.pop("model"), given.pop("loss"), given.pop("shards"), **given)


@pytest.mark.parametrize("profile", ["hardened", "published", "paper"])
def test_a_run_has_a_folder_metrics_a_verdict_and_a_model(profile: str, tmp_path: Path) -> None:
    run = train(tmp_path, profile=profile, evaluate=accuracy, record_every=2)
    assert run.folder.parent == tmp_path
    assert store.is_complete(run.folder)
    assert run.summary["accuracy"] == accuracy(run.model.eval()) == run.metrics[-1]["accuracy"]
    assert run.summary["steps_done"] == 8
    assert [row["step"] for row in run.metrics if row["phase"] != "detection"] == [2, 4, 6, 8]
    assert run.verdict is not None
    columns = ("receiver", "sender", "reason", "score", "threshold", "statistic", "bound", "round")
    assert {tuple(row) for row in run.verdict} <= {columns}
    stored = json.loads((run.folder / "verdict.json").read_text())
    assert stored["byzantine"] == [0, 7]
    assert {(row["receiver"], row["sender"]) for row in run.verdict} == {
        (one["node"], sender) for one in stored["receivers"] for sender in one["flagged"]
    }
    before, after = net().state_dict(), run.model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_the_same_call_reads_its_folder_and_another_one_does_not(tmp_path: Path) -> None:
    first = train(tmp_path)
    dates = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    again = train(tmp_path)
    assert again.folder == first.folder
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == dates
    moved = [(rows + 0.1, targets) for rows, targets in EQUAL]
    other = net()
    with torch.no_grad():
        other[0].bias += 0.1
    changed: list[dict[str, Any]] = [
        {"model": other},
        {"model": net(6)},
        {"loss": shifted},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"shards": moved},
        {"shards": [*EQUAL[1:], EQUAL[0]]},
        {"graph": nx.complete_graph(NODES)},
        {"graph": nx.circulant_graph(NODES, [1, 2, 3])},
        {"byzantine": [0, 8]},
        {"evaluate": accuracy},
        {"attack": Push()},
        {"attack": Push(3.0)},
        {"rule": "mean"},
        {"seed": 1},
        {"profile": "paper"},
    ]
    folders = {train(tmp_path, **change).folder for change in changed}
    assert len(folders) == len(changed)
    assert first.folder not in folders


def test_a_changed_constant_of_the_loss_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(tmp_path, loss=shifted)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    assert train(tmp_path, loss=shifted).folder != first.folder


def test_changed_test_data_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A global variable of a function, and what the object of a method holds."""

    class Measure:
        def __init__(self, rows: Tensor) -> None:
            self.rows = rows

        def sum(self, model: nn.Module) -> float:
            return float(self.rows.sum())

    first = train(tmp_path, evaluate=total)
    assert first.summary["total"] == float(TEST.sum())
    monkeypatch.setattr(sys.modules[__name__], "TEST", TEST + 1)
    second = train(tmp_path, evaluate=total)
    assert second.folder != first.folder
    assert second.summary["total"] == float(TEST.sum())
    assert len({train(tmp_path, evaluate=Measure(rows).sum).folder for rows in (TEST, TEST, TEST + 1)}) == 2


def test_functions_that_share_a_line_are_different_runs(tmp_path: Path) -> None:
    rules = (lambda rows: rows.mean(0), lambda rows: rows.median(0).values)
    losses = (lambda got, to: CROSS_ENTROPY(got, to), lambda got, to: 2 * CROSS_ENTROPY(got, to))
    measures = (lambda model: {"a": 1.0}, lambda model: {"a": 2.0})
    for key, functions in {"rule": rules, "loss": losses, "evaluate": measures}.items():
        folders = {train(tmp_path, **{key: function}).folder for function in functions}
        assert len(folders) == 2
        assert train(tmp_path, **{key: functions[0]}).folder in folders
    assert train(tmp_path, rule=rules[0]).folder.name.startswith("lambda-")


def test_a_lambda_has_the_same_digest_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a set of texts in it; and what a comprehension in it names is part of it."""
    (tmp_path / "own.py").write_text("inside = lambda one: one in {'a', 'b', 'c', 'd'}\n")
    program = "import own; from bymi.runs.given_objects import digest_of; print(digest_of(own.inside))"
    answers = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1] != ""
    each = lambda rows: sum([shifted(row, row) for row in rows])  # noqa: E731
    before = digest_of(each)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert digest_of(each) != before


def test_all_ways_to_give_data_and_graph_mean_the_same(tmp_path: Path) -> None:
    stacked = bymi.Shards(*(torch.stack(part) for part in zip(*EQUAL, strict=True)))
    everything = TensorDataset(stacked.inputs.flatten(0, 1), stacked.targets.flatten())
    rows = datasets.Stratified().split(everything.tensors[1], NODES, seed=0)

    class Slow(Dataset[Any]):
        def __len__(self) -> int:
            return len(everything)

        def __getitem__(self, index: int) -> Any:
            return everything[index]

    one = {
        train(tmp_path, shards=shards).folder
        for shards in (EQUAL, stacked, [(x.double().numpy(), y.numpy()) for x, y in EQUAL])
    }
    assert len(one) == 1
    dealt = [tuple(part[some] for part in everything.tensors) for some in rows]
    ways = [
        {"shards": dealt},
        {"shards": everything, "partition": "iid"},
        {"shards": Slow(), "partition": datasets.Stratified()},
    ]
    assert len({train(tmp_path, nodes=NODES, **way).folder for way in ways}) == 1
    complete = np.ones((NODES, NODES)) - np.eye(NODES)
    graphs = [nx.complete_graph(NODES), complete, torch.from_numpy(complete), bymi.Graph.from_adjacency(complete)]
    assert len({train(tmp_path, graph=graph).folder for graph in graphs}) == 1
    mask = torch.zeros(NODES, dtype=torch.bool)
    mask[[0, 7]] = True
    ways_to_name = (mask, mask.numpy(), mask.tolist(), (7, 0), torch.tensor([0, 7]))
    assert len({train(tmp_path, byzantine=some).folder for some in ways_to_name}) == 1
    assert len({train(tmp_path, graph=some).folder for some in ("ring", bymi.TOPOLOGIES["ring"]())}) == 1
    assert len({train(tmp_path, attack=attack).folder for attack in ("sign-flip", "bit-flip", SignFlip())}) == 1


@pytest.mark.parametrize(("attack", "profile"), [("label-flip", "hardened"), ("ipm:a=2.0", "paper")])
def test_both_doors_give_the_same_numbers(attack: str, profile: str, tmp_path: Path) -> None:
    """LeNet on digits: by its name in a spec, and as a module with tensors."""
    words = ["data=digits:samples=20,identification=8", "nodes=8", "steps=6", "graph=er:p=0.9", f"attack={attack}"]
    words += ["warm_up.steps=2", "warm_up.batch=4", "optimisation.batch=4", "method=drsgd-bymi", "seed=3", "record_every=2"]
    spec = load(None, [f"profile={profile}", *words])
    summary = bymi.experiment.run(spec, tmp_path, host=Host(device="cpu"))
    images = datasets.load_images("digits")
    pixels = images.train_images.to(torch.float64)
    inputs = images.train_images.to(torch.float32).sub_(float(pixels.mean())).div_(float(pixels.std(correction=0)))
    model = lenet(images.classes)
    nn.utils.vector_to_parameters(start_of(model, seed=3), model.parameters())
    run = bymi.train(
        model,
        nn.functional.cross_entropy,
        TensorDataset(inputs, images.train_labels),
        partition="stratified",
        nodes=8,
        samples=20,
        identification=8,
        graph="er:p=0.9",
        byzantine=0.2,
        attack=attack,
        profile=profile,
        steps=6,
        seed=3,
        warm_up={"steps": 2, "batch": 4},
        optimisation={"batch": 4},
        record_every=2,
        out=tmp_path,
        host=Host(device="cpu"),
    )
    by_name = bymi.load_model(store.folder_of(tmp_path, spec))
    assert all(torch.equal(value, by_name[name]) for name, value in run.model.state_dict().items())
    assert (run.folder / "verdict.json").read_bytes() == (store.folder_of(tmp_path, spec) / "verdict.json").read_bytes()
    for key in ("grad_norm", "consensus", "found", "fdp", "core_size"):
        assert run.summary[key] == summary[key]


@pytest.mark.parametrize("profile", ["hardened", "paper"])
def test_shards_of_different_sizes(profile: str, tmp_path: Path) -> None:
    run = train(tmp_path, shards=UNEQUAL, profile=profile, evaluate=accuracy)
    assert run.summary["steps_done"] == 8
    honest = [pair for node, pair in enumerate(UNEQUAL) if node not in (0, 7)]
    inputs, targets = (torch.cat(part) for part in zip(*honest, strict=True))
    found = nn.functional.cross_entropy(run.model(inputs).detach().double(), targets)
    assert run.summary["loss"] == pytest.approx(float(found), rel=1e-5)


def test_each_node_draws_from_its_own_number_of_samples() -> None:
    shards = [bymi.Shards(*pair) for pair in UNEQUAL]
    problem = bymi.ModuleProblem(net(), nn.functional.cross_entropy, shards)
    nodes, sizes = torch.arange(NODES), torch.tensor([len(pair.inputs) for pair in shards])
    assert (problem.samples, problem.largest) == (14, 41)
    split = split_samples(nodes, samples=14, identification=8, seed=0, sizes=sizes)
    halves = fresh_halves(nodes, samples=14, count=14, seed=0, step=3, sizes=sizes)
    whole = all_samples(problem, nodes)
    assert whole.sizes is not None
    assert split.sizes is not None
    for node, size in enumerate(sizes.tolist()):
        parts = [split.warm_up[node, : split.sizes[node]], split.first[node], split.second[node]]
        assert sorted(torch.cat(parts).tolist()) == list(range(size))
        drawn = torch.cat([half[node] for half in halves.values()]).tolist()
        assert len(set(drawn)) == 14
        assert max(drawn) < size
        assert whole.warm_up[node, : whole.sizes[node]].tolist() == list(range(size))
    theta = problem.initial(nodes)
    chosen = torch.stack([torch.tensor([0, size - 1]) for size in sizes.tolist()])
    gradient = problem.gradient(theta, nodes, chosen)
    for node, pair in enumerate(shards):
        alone = bymi.ModuleProblem(net(), nn.functional.cross_entropy, bymi.Shards(*(part[None] for part in pair)))
        assert torch.allclose(
            gradient[node], alone.gradient(theta[:1], torch.tensor([0]), chosen[node : node + 1])[0], atol=1e-6
        )


def test_orders_of_different_lengths_are_uniform() -> None:
    """Of three of five places, each of six orders in a share of 1/6: seven standard deviations of 6,000 draws."""
    order = stream(0, "orders", node=torch.arange(6000)).permutations(torch.tensor([3, 5]).repeat(3000))
    short = order[::2, :3]
    assert (short.sort(1).values == torch.arange(3)).all()
    assert (order[1::2].sort(1).values == torch.arange(5)).all()
    codes = (short * torch.tensor([9, 3, 1])).sum(1)
    counts = torch.unique(codes, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 500).abs() < 7 * (3000 * 5 / 36) ** 0.5).all()


INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.test_train import *
rows = 0
def stopping(model):
    global rows
    rows += 1
    if rows == 3 and sys.argv[2] == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    return accuracy(model)
run = train(Path(sys.argv[1]), steps=20, record_every=4, evaluate=stopping, host=Host(device="cpu", checkpoint_every=2))
print(rows, run.summary["stopping"], run.folder)
"""


def test_an_interrupted_call_goes_on(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(INTERRUPTED.format(root=str(Path(__file__).parents[1])))

    def run(out: str, what: str) -> subprocess.CompletedProcess[str]:
        return call(str(tmp_path / "script.py"), str(tmp_path / out), what)

    whole, stopped, resumed = run("whole", "go"), run("parts", "stop"), run("parts", "go")
    assert whole.returncode == 0, whole.stderr
    assert stopped.returncode != 0
    assert "the same command goes on from there" in stopped.stderr
    assert resumed.returncode == 0, resumed.stderr
    rows, value, folder = whole.stdout.split()
    again, same, name = resumed.stdout.split()
    assert int(again) < int(rows), "rounds before the checkpoint are not measured again"
    assert same == value
    models = [bymi.load_model(path) for path in (folder, name)]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])


@dataclass(frozen=True)
class WithTensor(VectorAttack):
    """Not plain."""

    direction: Tensor

    def __call__(self, honest: Tensor, would_send: Tensor, shared: bymi.Stream, fresh: bymi.Stream) -> Tensor:
        return self.direction.expand_as(would_send)


def local_attack() -> VectorAttack:
    @dataclass(frozen=True)
    class Local(Push):
        """Cannot be imported."""

    return Local()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": 5}, "model: got 5"),
        ({"shards": 5}, "shards: got 5, allowed: "),
        ({"shards": EQUAL[:4], "graph": nx.complete_graph(5)}, "shards: got 'those of 4 nodes', allowed: those of 5 nodes"),
        ({"shards": [(1, 2)]}, r"shards\[0\]: got \(1, 2\)"),
        ({"shards": TensorDataset(TEST, TEST)}, "partition: got None, allowed: stratified"),
        ({"partition": "iid"}, "partition: got 'iid', allowed: with a torch Dataset only"),
        ({"shards": TensorDataset(TEST, TEST[:, 0].long()), "partition": "even"}, "nodes: got None"),
        ({"shards": TensorDataset(TEST, TEST[:, 0].long()), "partition": "even", "nodes": 5}, "partition: got 'even'"),
        ({"byzantine": [10]}, "byzantine: got 10, allowed: node numbers 0 to 9"),
        ({"byzantine": range(5)}, "byzantine: got '5 of 10 nodes', allowed: fewer than half"),
        ({"byzantine": torch.ones(4, dtype=torch.bool)}, "byzantine: got Tensor of shape"),
        ({"byzantine": [True] + [False] * 3}, "byzantine: got Tensor of shape"),
        ({"byzantine": ()}, r"byzantine: got \(\), allowed: node numbers, a mask or a share, with an attack"),
        ({"attack": None}, "attack: got None"),
        ({"attack": "imp"}, "attack: got 'imp'; did you mean 'ipm'"),
        ({"attack": bymi.BALANCE()}, "attack: got BALANCE"),
        ({"attack": WithTensor(TEST[0])}, "attack.direction: got Tensor"),
        ({"attack": local_attack()}, "attack: got .*top level of a module"),
        ({"rule": SignFlip()}, "rule: got SignFlip"),
        ({"profile": "mine"}, "profile: got 'mine', allowed: 'hardened' or 'paper'"),
        ({"nods": 4}, "nods: unknown key"),
        ({"warm_up": {"btch": 4}}, "warm_up.btch: unknown key"),
        ({"warm_up": 3}, "warm_up: got 3, allowed: a dict of its keys"),
        ({"rule": "krum", "warm_up": {"rule": "ios"}}, "warm_up.rule: got 'ios', allowed: no rule here beside rule = 'krum'"),
        ({"evaluate": 3}, "evaluate: got 3, allowed: a function"),
        ({"evaluate": lambda model: model.nothing}, "evaluate: lambda raised AttributeError: .* allowed: a function"),
        ({"steps": "8"}, "steps: got '8'"),
        ({"method": ["rule", "dsgd"]}, "method: got .*one method per call"),
        ({"evaluate": lambda model: "good"}, "evaluate: got 'good'"),
        ({"evaluate": lambda model: {"loss": 1.0}}, "evaluate: got 'loss'"),
        ({"out": 5}, "out: got 5"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_argument(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as problem:
        train(tmp_path, **changes)
    assert "\n" not in str(problem.value)


def test_the_spec_of_such_a_run_is_no_spec_for_the_command(tmp_path: Path) -> None:
    path = train(tmp_path).folder / "spec.json"
    for imports in (False, True):
        with pytest.raises(InputError, match=r"got a run of bymi\.train, allowed: the same call of bymi\.train"):
            load(str(path), imports=imports)
    spec = bymi.experiment.read_spec(json.loads(path.read_text()))
    with pytest.raises(InputError, match=r"data: got the digest|graph: got the digest"):
        bymi.experiment.run(spec, tmp_path / "other", host=Host(device="cpu"))


def test_tables_for_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = train(tmp_path).metrics
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas"):
        metrics.to_pandas()


def test_on_real_data_nothing_says_who_was_flagged_rightly(tmp_path: Path) -> None:
    real = train(tmp_path, attack=None, byzantine=())
    assert real.summary["detections"] >= 1
    assert {real.summary[key] for key in TRUTH_KEYS} == {None}
    assert {row.get(key) for row in real.metrics for key in TRUTH_KEYS} == {None}
    assert [json.loads((real.folder / name).read_text())["byzantine"] for name in ("verdict.json", "per_node.json")] == [
        None,
        None,
    ]
    assert real.summary["core_size"] == NODES
    simulated = train(tmp_path, byzantine=0.0)  # an attack that nobody makes: every flag is wrong
    assert None not in {simulated.summary[key] for key in TRUTH_KEYS if key != "found"}
    texts = {}
    for name, run in (("real", real), ("simulated", simulated)):
        write_page([run.folder], tmp_path / f"{name}.html")
        texts[name] = (tmp_path / f"{name}.html").read_text()
    assert "on real data nobody knows which flags are right" in texts["real"]
    assert "None of them" not in texts["real"]
    assert "every flag counts as wrong" in texts["simulated"]
    row = cells(real.summary, [("FDP %", "fdp"), ("P_a %", "pa"), ("lost", "honest_edge_loss"), ("in core", "core_byzantine")])
    assert row == ["-"] * 4


def test_a_suspended_neighbour_is_told_with_what_it_was_suspended_for(tmp_path: Path) -> None:
    run = train(tmp_path, steps=24, attack=Push(50.0), watch={"every": 6})
    stored = {one["node"]: dict(zip(one["neighbours"], one["reasons"], strict=True)) for one in verdict_of(run)["receivers"]}
    lines = store.read_rows(run.folder / DETECTIONS)
    assert run.verdict is not None
    suspended = [row for row in run.verdict if stored[row["receiver"]][row["sender"]] == "suspended"]
    assert suspended
    senders = [(one["node"], sender) for one in verdict_of(run)["receivers"] for sender in one["neighbours"]]
    for row in suspended:
        arc = senders.index((row["receiver"], row["sender"]))
        told = [line["reasons"][line["reason"][arc]] for line in lines]
        flagging, reason = [(at, one) for at, one in enumerate(told) if one not in ("suspended", "kept")][-1]
        assert row["reason"] == f"suspended, for: {reason}"
        line = lines[flagging]
        assert (row["round"], row["statistic"], row["score"]) == (line["step"], line["statistic"][arc], line["score"][arc])
        assert row["bound"] == line["bound"][line["flagged"][:arc].count("1")]
    others = [row for row in run.verdict if row not in suspended]
    assert all(row["reason"] == stored[row["receiver"]][row["sender"]] for row in others)


def test_a_run_says_in_one_line_whom_it_flagged(tmp_path: Path) -> None:
    run = train(tmp_path, steps=24, attack=Push(50.0), watch={"every": 6})
    assert run.verdict is not None
    assert run.flagged == {node: sum(row["sender"] == node for row in run.verdict) for node in run.flagged}
    assert set(list(run.flagged)[:2]) == {0, 7}
    core, folder = run.summary["core_size"], str(run.folder)
    assert repr(run) == f"TrainedRun(finished, core of {core} nodes, flagged {run.flagged}, folder={folder!r})"
    assert "flagged" not in repr(train(tmp_path, method="rule"))


def test_loss_on_real_data_is_that_of_the_core_and_the_page_names_who_was_cut_off(tmp_path: Path) -> None:
    broken = [(rows if node != 3 else 100 * (rows + 1), targets) for node, (rows, targets) in enumerate(EQUAL)]
    run = train(tmp_path, shards=broken, attack=None, byzantine=(), steps=30, watch={"every": 4})
    assert run.summary["core_size"] == NODES - 1
    core = [pair for node, pair in enumerate(broken) if node != 3]
    inputs, targets = (torch.cat(part) for part in zip(*core, strict=True))
    found = nn.functional.cross_entropy(run.model(inputs).detach().double(), targets)
    assert run.summary["loss"] == pytest.approx(float(found), rel=1e-5)
    write_page([run.folder], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert re.search(r"Node 3 was flagged by 9 of 9 neighbours \([a-z ]+\) and cut off\. ", text)
    assert "loss (nodes of the core)" in text
    headings = re.findall(r"<th[^>]*>([^<]*)</th>", text.split('id="summary-table"')[1].split("</thead>")[0])
    assert headings == ["method", "flagged", "loss", "core", "outcome", "seconds"]
    assert "FDP" not in text.split("<script")[0]


def verdict_of(run: bymi.TrainedRun) -> dict[str, Any]:
    return dict(json.loads((run.folder / "verdict.json").read_text()))
