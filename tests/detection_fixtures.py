"""A bench for tests: verdicts on halves and on parameters that nodes have sent."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi import Filtering, Inbox, LocalNetwork
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, SECOND_HALF
from bymi.detection import (
    SCALES,
    Detector,
    HalfGradientMakers,
    HalfGradients,
    Panel,
    UpdateHistory,
    Verdict,
    Watch,
    judge_neighbours,
)

NETWORK_SCALES = [name for name, entry in SCALES.items() if not entry.arrays_only]
"""Names of the scales that a detection in a network takes; the others work on arrays."""


def claims_of(inboxes: tuple[Inbox, ...], deeds: Tensor | None = None) -> HalfGradients:
    first, second = inboxes
    return first.paired(second, HalfGradientMakers(deeds))


def verdict_of(
    network: LocalNetwork,
    receivers: Tensor,
    first: Tensor,
    second: Tensor,
    history: UpdateHistory | None,
    *,
    suspended: Tensor | None = None,
    probed: tuple[Tensor, Tensor] | None = None,
    panel: Panel | None = None,
) -> Verdict:
    detector = Detector(panel=panel or Panel(), centre=Filtering(), cross_fit=True, pruning="mutual")
    inboxes = network.exchange(0, {FIRST_HALF: first, SECOND_HALF: second})
    there = None
    if probed is not None:
        there = claims_of(network.exchange(0, dict(zip((FIRST_HALF, SECOND_HALF), probed, strict=True))))
    suspended = torch.zeros_like(network.arcs) if suspended is None else suspended
    return judge_neighbours(
        receivers, network.arcs, network.nodes, claims_of(inboxes), there, history, suspended, detector, Watch()
    )


def halves_of(size: int, dim: int = 6) -> tuple[Tensor, Tensor]:
    return stream(1, "first").normal(size, dim), stream(1, "second").normal(size, dim)


def parameters(size: int, dim: int, rounds: int, noise: float = 1e-4) -> list[Tensor]:
    """Models near a common point, each with an offset that stays."""
    stays = 1e-3 * stream(8, "stays").normal(size, dim)
    return [5 + stays + noise * stream(9, "noise", step=step).normal(size, dim) for step in range(rounds)]
