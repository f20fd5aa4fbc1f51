"""The benchmarks on images in one run: 150 LeNets, batch 32, on a GPU if there is one, else on the cores.

`python benchmarks/images.py` prints a table and writes benchmarks/results/images-DEVICE.json. It needs torch, numpy and
networkx only, and no data set: pixels are random, which takes the same time. Beside bymi stand a plain per-node Python loop
and, where it is installed (`pip install byzfl`), ByzFL: a star graph with one aggregation, less work than a gossip round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from bymi import BALANCE, IOS, UBAR, Detector, ErdosRenyi, LocalNetwork, Optimisation, Plan, Round, StepSize, WarmUp  # noqa: E402
from bymi.core.byzantine_hooks import FollowsProtocol  # noqa: E402
from bymi.core.random_streams import stream  # noqa: E402
from bymi.core.topic import PARAMETERS  # noqa: E402
from bymi.detection import Panel, Suspensions, UpdateHistory, Watch  # noqa: E402
from bymi.problems import ModuleProblem, Shards, lenet  # noqa: E402
from bymi.runs.run_folder import environment  # noqa: E402
from bymi.runs.simulate import simulate  # noqa: E402
from bymi.training.phases import detect_hardened, detect_published  # noqa: E402
from bymi.training.samples import split_samples  # noqa: E402

Row = dict[str, Any]
SAMPLES, BATCH = 400, 32
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # those that we may use


def seconds(work: Callable[[], object], device: str, repeats: int, warm: int = 2) -> float:
    """Median wall-clock time of a call."""
    times = []
    for turn in range(warm + repeats):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        if turn >= warm:
            times.append(time.perf_counter() - start)
    return float(np.median(times))


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Stage:
    """`nodes` LeNets near one common model on a random graph, with random images."""

    def __init__(
        self, nodes: int, device: str, *, held: int | None = None, batch: int = BATCH, gradients: Any = "auto"
    ) -> None:
        held = held or nodes  # nodes beyond these share the samples of others, to save memory
        self.device = device
        inputs = stream(0, "pixels", device=torch.device(device)).uniform(held, SAMPLES, 1, 28, 28).to(torch.float32)
        targets = stream(0, "labels", device=torch.device(device)).integers(10, held, SAMPLES)
        how = {"threads": CORES, "gradients": gradients}
        self.problem = ModuleProblem(lenet(), nnf.cross_entropy, Shards(inputs, targets), **how)
        self.nodes = torch.arange(nodes, device=device) % held
        self.theta = self.problem.initial(self.nodes)
        for node in range(nodes):
            self.theta[node] += 0.01 * stream(0, "spread", node=node, device=torch.device(device)).normal(self.problem.dim)
        self.chosen = stream(0, "batch", node=torch.arange(nodes, device=device)).integers(SAMPLES, batch)

    def gradient(self) -> Tensor:
        return self.problem.gradient(self.theta, self.nodes, self.chosen)


def iteration(stage: Stage, network: LocalNetwork, rule: Any) -> Tensor:
    """One training iteration: gradients of all nodes, exchange, rule."""
    (inbox,) = network.exchange(0, {PARAMETERS: stage.theta - 0.1 * stage.gradient()})
    losses = lambda vectors, wanted: stage.problem.losses(vectors, stage.nodes, stage.chosen, wanted)  # noqa: E731
    result: Tensor = rule(inbox, Round(10, 500, losses))
    return result


def loop_iteration(stage: Stage, hears: Tensor) -> Callable[[], list[Tensor]]:
    """The same with BALANCE as one writes it without thinking of speed: a module a node, one node after the other."""
    models = [lenet().to(stage.device) for _ in stage.nodes]
    for model, vector in zip(models, stage.theta, strict=True):
        nn.utils.vector_to_parameters(vector.clone(), model.parameters())
    inputs, targets = stage.problem._pick(stage.nodes, stage.chosen)
    neighbours = [row.nonzero().flatten().tolist() for row in hears.cpu()]

    def work() -> list[Tensor]:
        sent = []
        for node, model in enumerate(models):
            model.zero_grad()
            nnf.cross_entropy(model(inputs[node]), targets[node]).backward()
            step = [value - 0.1 * value.grad for value in model.parameters() if value.grad is not None]
            sent.append(torch.cat([value.detach().flatten() for value in step]))
        output = []
        for node, own in enumerate(sent):
            bound = 0.3 * np.exp(-10 / 500) * own.norm()
            kept = [sent[other] for other in neighbours[node] if (sent[other] - own).norm() <= bound]
            output.append(0.5 * own + 0.5 * torch.stack(kept).mean(0) if kept else own)
        return output

    return work


def byzfl_step(stage: Stage) -> tuple[str, Callable[[], object]] | None:
    """ByzFL's star: every client's gradient, one trimmed mean."""
    try:
        import byzfl
        from byzfl.fed_framework import models as zoo
    except ImportError:
        return None
    from importlib.metadata import version

    zoo.bymi_lenet = lenet
    inputs, targets = stage.problem._inputs.cpu(), stage.problem._targets.cpu()
    clients = []
    for node in range(len(stage.nodes)):
        part = slice(node * SAMPLES, (node + 1) * SAMPLES)
        data = torch.utils.data.TensorDataset(inputs[part], targets[part])
        loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
        clients.append(
            byzfl.Client(
                {
                    "model_name": "bymi_lenet",
                    "device": stage.device,
                    "loss_name": "CrossEntropyLoss",
                    "LabelFlipping": False,
                    "nb_labels": 10,
                    "momentum": 0.0,
                    "training_dataloader": loader,
                    "store_per_client_metrics": False,
                }
            )
        )
    rule = byzfl.TrMean(f=len(clients) // 5)

    def step() -> object:
        for client in clients:
            client.compute_gradients()
        return rule([client.get_flat_gradients_with_momentum() for client in clients])

    return version("byzfl"), step


def on_gpu(stage: Stage, network: LocalNetwork) -> Iterator[Row]:
    """What only an accelerator is asked for."""
    for nodes in (1000, 4000):
        torch.cuda.reset_peak_memory_stats()
        large = Stage(nodes, "cuda", held=150)
        used, base = seconds(large.gradient, "cuda", 5), seconds(stage.gradient, "cuda", 10)
        yield {
            "what": f"gradients, m = {nodes}",
            "seconds": used,
            "per_node_against_150": used / nodes / (base / 150),
            "at_most": 1.3,
            "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
        }
        del large
    plan = full_plan()
    split = split_samples(stage.nodes, samples=SAMPLES, identification=200, seed=0)
    torch.cuda.reset_peak_memory_stats()
    yield {
        "what": "receiver-point detection",
        "seconds": seconds(
            lambda: detect_published(stage.problem, network, plan, split, stage.theta, FollowsProtocol()), "cuda", 3, warm=1
        ),
        "limit": 3.0,
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
    }

    def whole() -> None:
        for _ in simulate(stage.problem, network.graph, plan):
            pass

    yield {
        "what": "BALANCE-DRSGD-ByMI, 500 rounds with detection, no evaluation",
        "seconds": seconds(whole, "cuda", 1, warm=0),
        "limit": 8.0,
    }


def looks(device: str) -> Iterator[Row]:
    """The hardened detection of `bymi run mnist` with nobody lying, and its gradients in a round, beside the loop's."""
    network = LocalNetwork(ErdosRenyi(0.5).draw(100).to(device))
    detector = Detector(point="receiver", cross_fit=True, panel=Panel(), probe=True, sample=40, pruning="mutual")
    plan = replace(full_plan(), detector=detector, watch=Watch(every=60))
    used: dict[str, tuple[float, float]] = {}
    for way in ("auto", "loop"):
        stage = Stage(100, device, batch=16, gradients=way)

        def look(stage: Stage = stage) -> None:
            record = Suspensions.blank(network.arcs, plan.watch.longest)  # type: ignore[union-attr]
            detect_hardened(
                stage.problem, network, plan, stage.theta, FollowsProtocol(), step=30, history=UpdateHistory(), record=record
            )

        used[way] = seconds(look, device, 1, warm=0), seconds(stage.gradient, device, 10)
    for at, what in enumerate(("hardened detection, m = 100, 40 samples", "gradients alone, m = 100, batch 16")):
        yield {"what": what, "seconds": used["auto"][at], "times_faster_than_by_the_loop": used["loop"][at] / used["auto"][at]}


def full_plan() -> Plan:
    return Plan(
        steps=500,
        warm_up_steps=100,
        warm_up=WarmUp(BALANCE(), StepSize(0.01), BATCH),
        detector=Detector(point="receiver", cross_fit=True),
        optimisation=Optimisation(StepSize(0.1), BATCH, max_local_step=0.2),
        identification=200,
    )


def rows(device: str) -> Iterator[Row]:
    torch.set_num_threads(1)  # as runs do: gradients are spread over nodes instead
    stage = Stage(150, device)
    network = LocalNetwork(ErdosRenyi(0.5).draw(150).to(device))
    loop = loop_iteration(stage, network.graph.hears)
    expected = torch.stack(loop())
    got = iteration(stage, network, BALANCE())
    assert torch.linalg.vector_norm(got - expected) <= 1e-5 * torch.linalg.vector_norm(expected), "bymi and the loop differ"
    one_by_one = stage.problem._loop(stage.theta, *stage.problem._pick(stage.nodes, stage.chosen))
    lengths = torch.linalg.vector_norm(one_by_one, dim=1)
    differences = torch.linalg.vector_norm(stage.gradient() - one_by_one, dim=1) / lengths
    # At a kink (ReLU at zero, equal values in a pool) rounding decides which way a gradient goes: in a few nodes, not in most.
    difference, beyond = float(differences.median()), int((differences > 1e-5).sum())
    assert difference <= 1e-6, f"gradients differ from the loop's by {difference:.1e}"
    assert beyond <= 0.05 * len(differences), f"{beyond} of {len(differences)} gradients differ from the loop's by over 1e-5"
    slow = seconds(loop, device, 3, warm=1)
    limits = {"BALANCE": 0.005, "IOS": None, "UBAR": 0.06} if device == "cuda" else {"BALANCE": 0.9, "IOS": 0.9, "UBAR": None}
    star = byzfl_step(stage)
    other = None if star is None else seconds(star[1], device, 3, warm=1)
    yield {"what": "the plain loop, gradients and BALANCE", "seconds": slow}
    name = "not installed" if star is None else f"{star[0]}, star graph, one trimmed mean"
    yield {"what": f"ByzFL {name}", "seconds": other}
    yield {
        "what": f"gradients alone ({stage.problem.way})",
        "seconds": seconds(stage.gradient, device, 10),
        "difference": difference,
        "nodes_at_a_kink": beyond,
    }
    for rule in (BALANCE(), IOS(), UBAR()):
        name = type(rule).__name__
        repeats = 10 if device == "cuda" else 1 if name == "UBAR" else 5
        used = seconds(lambda rule=rule: iteration(stage, network, rule), device, repeats, warm=1)  # type: ignore[misc]
        row: Row = {"what": f"one iteration with {name}", "seconds": used}
        if limits[name] is not None:
            row["limit"] = limits[name]
        if name == "BALANCE":
            row["times_faster_than_the_loop"] = slow / used
            if other is not None:
                row["times_faster_than_byzfl"] = other / used
            if device == "cuda":
                row["at_least"] = 40
        yield row
    if device == "cuda":
        yield from on_gpu(stage, network)
    else:
        yield from looks(device)


def misses(row: Row) -> bool:
    """Whether a row is beyond one of its limits."""
    return (
        (row["seconds"] or 0) > row.get("limit", float("inf"))
        or row.get("times_faster_than_the_loop", float("inf")) < row.get("at_least", 0)
        or row.get("per_node_against_150", 0) > row.get("at_most", float("inf"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    out = given.out or ROOT / "benchmarks" / "results" / f"images-{given.device}.json"
    made: list[Row] = []
    for row in rows(given.device):
        made.append(row)
        remarks = [f"{key.replace('_', ' ')} {value:.3g}" for key, value in row.items() if key not in ("what", "seconds")]
        shown = "-" if row["seconds"] is None else f"{1000 * row['seconds']:.1f} ms"
        print(f"{row['what']:<62} {shown:>12}  {', '.join(remarks)}{'  MISSED' if misses(row) else ''}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"environment": environment(), "device": given.device, "rows": made}, indent=2) + "\n")
    missed = [row["what"] for row in made if misses(row)]
    if missed:
        sys.exit(f"limits missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
