"""What a record of a run needs of all nodes, put together from the ranks: a few bytes a round, models only now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor

from bymi.core.linalg import norms
from bymi.core.network import LocalNetwork, Observable
from bymi.detection import Verdict
from bymi.distributed.router import Router
from bymi.distributed.sharded_run import ShardedRun
from bymi.training.plan import Plan
from bymi.training.state import RoundCounts, Snapshot, State

_LOOK_EVERY = 16  # rounds, where a look costs time
_NUMBERS = 1 << 23  # of all models that a rank has at a time

Due = Callable[[int, str], bool]
"""Whether something is to be done with a round, by its step and phase."""

Lost = Callable[[Tensor], bool]
"""Whether models of these lengths [M] have left all bounds."""


class Models(Protocol):
    """The models of all nodes after a round, wherever they are."""

    def blocks(self) -> Iterator[Tensor]:
        """Some coordinates of all models at a time [M, c], in order. Every process of a run walks through all of them alike."""
        ...


@dataclass(frozen=True, eq=False)
class Held:
    """All models in this process."""

    theta: Tensor  # [M, D]

    def blocks(self) -> Iterator[Tensor]:
        yield self.theta


@dataclass(frozen=True, eq=False)
class Scattered:
    """Models of which each rank has its own: no rank ever has more than some coordinates of all."""

    parts: list[Tensor]  # [B, D] of each shard held here
    router: Router

    def blocks(self) -> Iterator[Tensor]:
        size = max(1, _NUMBERS // self.router.graph.size)
        for some in zip(*(part.split(size, dim=1) for part in self.parts), strict=True):
            yield self.router.gather(some, "records")


@dataclass(frozen=True, eq=False)
class GatheredRound:
    """A round of a run: as one process would see it, the states of the shards held here, and whether to store them now.

    Over ranks `theta` of the snapshot has one column, the lengths of the models, which is enough to see that they are within
    bounds.
    """

    snapshot: Snapshot
    models: Models
    states: list[State]
    is_kept: Callable[[], bool]


def whole_rounds(
    spread: ShardedRun, plan: Plan, states: Sequence[State] | None, *, due: Due, lost: Lost, wants: Due
) -> Iterator[GatheredRound]:
    """Every round of a run on many ranks as one process would see it, on each of them; ends with a run that is lost.

    `wants`: whether this rank would store a round; all do if any one does.
    """
    router = spread.router
    for parts in spread.walk(plan, states):
        step, phase = parts[0].step, parts[0].phase
        router.lockstep.group.moment = f"after round {step} (records)"
        wanted, lengths, flags = _brief(parts, router, wants(step, phase))
        recorded = due(step, phase) or parts[0].stopped
        seen = recorded or lengths.device.type == "cpu"  # elsewhere a look at every round would make the host wait
        gone = seen and lost(lengths)
        models = Scattered([part.theta for part in parts], router)
        here = [part.state for part in parts if part.state is not None]
        kept = (seen or step % _LOOK_EVERY == 0) and bool(wanted)
        yield GatheredRound(_assemble(parts, router, lengths[:, None], flags), models, here, partial(bool, kept))
        del parts, models, here  # a round is not kept while the next one is computed
        if gone:
            return


def _brief(parts: list[Snapshot], router: Router, wants: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Whether anybody wants something, lengths of all models [M], what happened to messages and steps: all in one message."""
    size, width = router.graph.size, router.whole.hears.shape[1]
    columns: list[Tensor] = []
    for part in parts:
        lengths = norms(part.theta)[:, None].contiguous().view(torch.uint8)
        assert part.inbox is not None
        counts = RoundCounts.of(part.inbox, part.far_out, size)
        words = [torch.zeros_like(lengths[:, :1]).expand(-1, width) if counts.unheard is None else counts.unheard]
        words += [mask[:, None] for mask in (part.capped, part.floored) if mask is not None]
        words += [counts.far_out] if counts.far_out is not None else []
        words.append(torch.full_like(lengths[:, :1], wants))
        columns.append(torch.cat([lengths, *(word.to(torch.uint8) for word in words)], 1))
    whole = router.gather(columns, "records")
    lengths = whole[:, :8].contiguous().view(torch.float64).squeeze(1)
    found, at = {"unheard": whole[:, 8 : 8 + width].bool()}, 8 + width
    if parts[0].capped is not None:
        found["capped"], found["floored"], at = whole[:, at].bool(), whole[:, at + 1].bool(), at + 2
    if parts[0].far_out is not None:
        found["far_out"] = whole[:, at : at + width].bool()
    return whole[:, -1].any(), lengths, found


def _assemble(parts: list[Snapshot], router: Router, theta: Tensor, flags: dict[str, Tensor]) -> Snapshot:
    first = parts[0]
    verdict, network = None, None
    if first.verdict is not None:
        verdict = _verdict([part.verdict for part in parts if part.verdict is not None], router)
        # Of a simulation every rank knows the whole graph.
        network = LocalNetwork(cast(Observable, first.network).graph)
    return Snapshot(
        first.step,
        first.phase,
        theta,
        None,
        flags.get("capped"),
        flags.get("floored"),
        verdict=verdict,
        network=network,
        stopped=first.stopped,
        counts=RoundCounts(flags["unheard"], flags.get("far_out")),
    )


def _verdict(parts: list[Verdict], router: Router) -> Verdict:
    """The verdicts of all receivers [M, ...]; what a detector does not fill stays empty."""
    values = {}
    for field in fields(Verdict):
        shards = [getattr(part, field.name) for part in parts]
        values[field.name] = router.gather(shards, "records") if shards[0].numel() else shards[0]
    return Verdict(**values)
