"""What a record of a run needs of all nodes, put together from the ranks: a few bytes a round, models only now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import torch
from torch import Tensor

from bymi.attacks import Adversary
from bymi.detection import Verdict
from bymi.engine.distributed import ShardNetwork, distribute
from bymi.engine.group import Group
from bymi.engine.wires import Wires
from bymi.graph import Graph
from bymi.inbox import Inbox
from bymi.network import LocalNetwork
from bymi.phases import Snapshot
from bymi.plan import Plan
from bymi.problems import Problem
from bymi.vectors import norms

Due = Callable[[Snapshot], bool]
"""Whether a round is recorded; asked with snapshots of some nodes, so it may look at step and phase only."""

Lost = Callable[[Tensor], bool]
"""Whether models of these lengths [M] have left all bounds."""


def whole_rounds(
    problem: Problem, graph: Graph, plan: Plan, adversary: Adversary, group: Group, due: Due, lost: Lost
) -> Iterator[Snapshot]:
    """Every round of a run on many ranks as one process would see it, on each of them; ends with a run that is lost.

    In rounds that are not recorded `theta` has one column, the lengths of the models, which is enough to see that they are
    within bounds.
    """
    for parts, wires in distribute(problem, graph, plan, adversary, group):
        group.moment = f"after round {parts[0].step} (records)"
        lengths, flags = _brief(parts, wires)
        on_cpu = lengths.device.type == "cpu"  # elsewhere a look at every round would make the host wait
        recorded = due(parts[0])
        gone = (recorded or on_cpu) and lost(lengths)
        theta = wires.gather([part.theta for part in parts], "records") if recorded or gone else lengths[:, None]
        yield _assemble(parts, wires, theta, flags)
        if gone:
            return


def _brief(parts: list[Snapshot], wires: Wires) -> tuple[Tensor, dict[str, Tensor]]:
    """Lengths of all models [M], and what happened to messages and steps [M, ...], all in one message."""
    size = wires.graph.size
    columns: list[Tensor] = []
    for part in parts:
        lengths = norms(part.theta)[:, None].contiguous().view(torch.uint8)
        words = [part.inbox.by_sender(part.inbox.unheard, size)]
        words += [mask[:, None] for mask in (part.capped, part.floored) if mask is not None]
        words += [part.inbox.by_sender(part.blown, size)] if part.blown is not None else []
        columns.append(torch.cat([lengths, *(word.to(torch.uint8) for word in words)], 1))
    whole = wires.gather(columns, "records")
    lengths = whole[:, :8].contiguous().view(torch.float64).squeeze(1)
    found, at = {"unheard": whole[:, 8 : 8 + size].bool()}, 8 + size
    if parts[0].capped is not None:
        found["capped"], found["floored"], at = whole[:, at].bool(), whole[:, at + 1].bool(), at + 2
    if parts[0].blown is not None:
        found["blown"] = whole[:, at : at + size].bool()
    return lengths, found


def _assemble(parts: list[Snapshot], wires: Wires, theta: Tensor, flags: dict[str, Tensor]) -> Snapshot:
    first, hears = parts[0], wires.whole.hears
    unheard, nothing = flags["unheard"], theta[:, :0]
    heard = hears & ~unheard if bool(unheard.any()) else hears
    weights = wires.graph.mixing
    inbox = Inbox(nothing, nothing, hears, heard, weights, weights.diagonal(), torch.full_like(wires.everybody, -1))
    verdict, network = None, None
    if first.verdict is not None:
        verdict = _verdict([part.verdict for part in parts if part.verdict is not None], wires)
        assert isinstance(first.network, ShardNetwork)
        network = LocalNetwork(first.network.graph)
    return Snapshot(
        first.step,
        first.phase,
        theta,
        inbox,
        flags.get("capped"),
        flags.get("floored"),
        blown=flags.get("blown"),
        verdict=verdict,
        network=network,
    )


def _verdict(parts: list[Verdict], wires: Wires) -> Verdict:
    """The verdicts of all receivers [M, ...]; what a detector does not fill stays empty."""
    values = {}
    for field in fields(Verdict):
        shards = [getattr(part, field.name) for part in parts]
        values[field.name] = wires.gather(shards, "records") if shards[0].numel() else shards[0]
    return Verdict(**values)
