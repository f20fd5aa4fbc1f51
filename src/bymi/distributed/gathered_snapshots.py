"""Snapshots of a whole run, assembled from its ranks: a few bytes per node and round; models only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import cast

import torch
from torch import Tensor

from bymi.core.linalg import norms
from bymi.core.network import LocalNetwork, Observable
from bymi.core.performance_thresholds import LIMITS
from bymi.detection import Verdict
from bymi.distributed.router import Router
from bymi.distributed.sharded_run import ShardedRun
from bymi.training.plan import Plan
from bymi.training.state import RoundCounts, Snapshot, State

_LOOK_EVERY = 16  # rounds between two reads of device flags, which make the host wait for an accelerator

Due = Callable[[int, str], bool]
"""Whether to act on a round, from its step and phase."""

Lost = Callable[[Tensor], bool]
"""Whether the run has diverged, from the norms [M] of all models."""


@dataclass(frozen=True, eq=False)
class Models:
    """The models of all nodes after a round: all in this process, or on each rank those of its nodes."""

    parts: list[Tensor]  # [B, D] per shard of this rank
    router: Router | None = None  # None: there is one part, with all models

    def blocks(self) -> Iterator[Tensor]:
        """Blocks [M, c] of consecutive coordinates of all models. Collective: all ranks must exhaust the iterator."""
        if self.router is None:
            yield from self.parts
            return
        size = max(1, LIMITS.models // self.router.graph.size)
        for pieces in zip(*(part.split(size, dim=1) for part in self.parts), strict=True):
            yield self.router.gather(pieces, "records")


@dataclass(frozen=True, eq=False)
class GatheredRound:
    """A round as one process would see it, with the states of this rank's shards and whether to checkpoint them now.

    Over several ranks `snapshot.theta` is [M, 1], the norms of the models, which is enough to detect divergence.
    """

    snapshot: Snapshot
    models: Models
    states: list[State]
    is_kept: Callable[[], bool]


def whole_rounds(
    spread: ShardedRun, plan: Plan, states: Sequence[State] | None, *, due: Due, lost: Lost, wants: Due
) -> Iterator[GatheredRound]:
    """Yield every round of a sharded run as one process would see it, on each rank; stops after a round that has diverged.

    Collective: all ranks must iterate together. `wants`: whether this rank would checkpoint a round; all do if any rank does.
    """
    router = spread.router
    for parts in spread.walk(plan, states):
        step, phase = parts[0].step, parts[0].phase
        router.lockstep.group.moment = f"after round {step} (records)"
        wanted, lengths, flags = _gather_flags(parts, router, wants(step, phase))
        recorded = due(step, phase) or parts[0].stopped
        # On an accelerator, reading norms in every round would make the host wait.
        inspected = recorded or lengths.device.type == "cpu"
        diverged = inspected and lost(lengths)
        models = Models([part.theta for part in parts], router)
        shard_states = [part.state for part in parts if part.state is not None]
        stored = (inspected or step % _LOOK_EVERY == 0) and bool(wanted)
        yield GatheredRound(_assemble(parts, router, lengths[:, None], flags), models, shard_states, partial(bool, stored))
        del parts, models, shard_states  # do not keep a round in memory while the next one is computed
        if diverged:
            return


def _gather_flags(parts: list[Snapshot], router: Router, wants: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Whether any rank wants a checkpoint, norms [M] of all models, and per-node flags of the round, in a single gather."""
    by_shard = [_flags(part, router, wants) for part in parts]
    whole = router.gather([torch.cat(list(flags.values()), 1) for flags in by_shard], "records")
    found = dict(zip(by_shard[0], whole.split([mask.shape[1] for mask in by_shard[0].values()], 1), strict=True))
    lengths, wanted = found.pop("lengths").contiguous().view(torch.float64).squeeze(1), found.pop("wanted").any()
    return wanted, lengths, {name: mask.bool() for name, mask in found.items()}


def _flags(part: Snapshot, router: Router, wants: bool) -> dict[str, Tensor]:
    """What the others need to know of a shard's nodes, as bytes [B, c] each."""
    assert part.inbox is not None
    counts = RoundCounts.of(part.inbox, part.far_out, router.graph.size)
    lengths = norms(part.theta)[:, None].contiguous().view(torch.uint8)
    nobody = lengths.new_zeros(len(lengths), router.whole.hears.shape[1])
    flags = {
        "lengths": lengths,
        "unheard": nobody if counts.unheard is None else counts.unheard,
        "capped": part.capped,
        "floored": part.floored,
        "far_out": counts.far_out,
        "wanted": torch.full_like(lengths[:, 0], wants),
    }
    return {name: mask.reshape(len(mask), -1).to(torch.uint8) for name, mask in flags.items() if mask is not None}


def _assemble(parts: list[Snapshot], router: Router, theta: Tensor, flags: dict[str, Tensor]) -> Snapshot:
    first = parts[0]
    verdict, network = None, None
    if first.verdict is not None:
        verdict = _verdict([part.verdict for part in parts if part.verdict is not None], router)
        # In a simulation every rank has the whole graph.
        network = LocalNetwork(cast(Observable, first.network).graph)
    return Snapshot(
        first.step,
        first.phase,
        theta,
        None,
        flags["capped"][:, 0] if "capped" in flags else None,
        flags["floored"][:, 0] if "floored" in flags else None,
        verdict=verdict,
        network=network,
        stopped=first.stopped,
        counts=RoundCounts(flags["unheard"], flags.get("far_out")),
    )


def _verdict(parts: list[Verdict], router: Router) -> Verdict:
    """The verdicts of all receivers [M, ...]; fields that a detector does not fill stay empty. Collective."""
    values = {}
    for field in fields(Verdict):
        shards = [getattr(part, field.name) for part in parts]
        values[field.name] = router.gather(shards, "records") if shards[0].numel() else shards[0]
    return Verdict(**values)
