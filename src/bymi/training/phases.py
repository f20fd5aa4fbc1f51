"""The phases: warm-up and detection; the third is `optimise`. Each is written once, for a process that holds B of M nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from bymi.aggregation import LocalSamples, Memory
from bymi.core.deviation import Deviation, FollowsProtocol
from bymi.core.neighbourhood_reply import NeighbourhoodReply
from bymi.core.network import Network
from bymi.core.topic import GRADIENT, PARAMETERS, Topic
from bymi.detection import (
    REASONS,
    HalfGradientMakers,
    HalfGradients,
    ProbeMakers,
    QueriedHalfGradients,
    Suspensions,
    UpdateHistory,
    identify_neighbours,
    judge_neighbours,
    judge_replies,
)
from bymi.problems import Problem, Split, fresh_halves, sizes_of
from bymi.training.batches import draw_batches
from bymi.training.optimisation import local_steps, mixing_by_rule, optimise, premix, round_of
from bymi.training.plan import Plan
from bymi.training.state import Snapshot


def warm_up(
    problem: Problem,
    network: Network,
    plan: Plan,
    pool: Tensor,
    deviation: Deviation,
    *,
    rounds: int,
    start: int = 0,
    theta: Tensor | None = None,
    sizes: Tensor | None = None,
    memory: Mapping[str, Tensor] | None = None,
) -> Iterator[Snapshot]:
    """Yield the Snapshots of `rounds` rounds of the warm-up rule with gradient steps. Paper: asp:warm_up.

    `pool` [B, P]: sample indices per node, of which the first `sizes` [B] are valid; None: all. `start`: number of rounds
    already done, with nodes at `theta` [B, D] and what their gradient estimates remember in `memory`. A baseline continues
    beyond the plan's `handover`.
    """
    nodes, rule = network.nodes, plan.warm_up.rule
    theta = problem.initial(nodes) if theta is None else theta
    remembered: Memory = {} if memory is None else dict(memory)
    early, late = range(start, min(rounds, plan.handover)), range(max(start, plan.handover), rounds)
    parts = ((plan.warm_up.batch, early), (plan.optimisation.batch, late))
    batches = chain.from_iterable(draw_batches(pool, sizes, nodes, batch, plan.seed, steps) for batch, steps in parts)
    for step, chosen in batches:
        rate = plan.rule_step(step, network.size)
        samples = LocalSamples(problem.gradient, nodes, pool, sizes, plan.seed, step)
        estimate, remembered = rule.local_gradient.estimate(samples, theta, chosen, remembered)
        gradient = deviation.gradients(estimate, nodes, GRADIENT, step)
        context = round_of(problem, nodes, chosen, plan, step, rate)
        update = rate * rule.descent(gradient, context)
        if (plan.warm_up.order or rule.order) == "adapt-then-combine":
            (inbox,) = network.exchange(step, {PARAMETERS: theta - update})
            theta = deviation.keep(inbox, rule(inbox, context), nodes, averaged=rule.plain, step=step)
        else:
            (inbox,) = network.exchange(step, {PARAMETERS: theta})
            theta = deviation.keep(inbox, rule(inbox, context), nodes, averaged=rule.plain, step=step) - update
        yield Snapshot(step + 1, "warm-up", theta, inbox, memory=remembered)
        del inbox  # frees the messages before those of the next round arrive


def detect_published(
    problem: Problem,
    network: Network,
    plan: Plan,
    split: Split,
    theta: Tensor,
    deviation: Deviation,
    *,
    step: int | None = None,
    whole: Network | None = None,
    earlier: Tensor | None = None,
) -> Snapshot:
    """The published detection: the Snapshot with its verdict and the pruned network.

    Half gradients are exchanged once, taken at the parameters of their sender or of their receiver; every node judges its
    neighbours and cuts the in-arcs that it flags. In a repeated detection, before round `step`, `network` is what earlier
    detections left of the `whole`; nodes flagged `earlier` [B, M] stay flagged.
    """
    assert plan.detector is not None
    nodes, step = network.nodes, plan.warm_up_steps if step is None else step
    if plan.detector.point == "sender":
        halves = {
            topic: deviation.gradients(problem.gradient(theta, nodes, chosen), nodes, topic, step)
            for topic, chosen in split.halves.items()
        }
        first, second = network.exchange(step, halves)
        verdict = identify_neighbours(first, second, plan.detector).by_node(first, network.size)
    else:
        (first,) = network.exchange(step, {PARAMETERS: theta})
        replies = _ask(problem, network, split.halves, theta, deviation.asks(nodes, step), deviation, step)
        verdict = judge_replies(replies, plan.detector, network.arcs)
        # Replies that were not acceptable count as messages not heard.
        missing = verdict.reason == REASONS.index("not heard")
        first = replace(first, heard=first.heard & ~first.from_node(missing))
    if earlier is not None:
        verdict = verdict.keeping(earlier)
    # All flags on the whole network, not new ones on the pruned one: a resumed run can do only this and must get equal bits.
    pruned = apply_verdict(whole or network, plan, verdict.flagged, deviation, step=step)
    return Snapshot(step, "detection", theta, first, verdict=verdict, network=pruned)


def apply_verdict(network: Network, plan: Plan, flagged: Tensor, deviation: Deviation, *, step: int) -> Network:
    """The network after the detection before round `step` that flagged in-arcs [B, M]."""
    assert plan.detector is not None
    cut = deviation.prune(flagged, network.nodes, step)
    if plan.watch is None:
        return network.prune(cut)
    return network.reweight(cut, mutual=plan.detector.pruning == "mutual", exile=plan.detector.exile)


def detect_hardened(
    problem: Problem,
    network: Network,
    plan: Plan,
    theta: Tensor,
    deviation: Deviation,
    *,
    step: int,
    history: UpdateHistory,
    record: Suspensions,
) -> tuple[Snapshot, Suspensions]:
    """The hardened detection: its Snapshot and the suspensions after it.

    Evidence: fresh half gradients at each receiver's parameters and at the common start, and the update history. Edges of
    flagged nodes lose their weight; their messages are still received and monitored.
    """
    detector, watch, nodes = plan.detector, plan.watch, network.nodes
    assert detector is not None
    assert watch is not None
    count = plan.identification if detector.sample == "identification" else detector.sample
    count = problem.samples if count == "all" else count
    sizes = sizes_of(problem, nodes)
    halves = fresh_halves(nodes, samples=problem.samples, count=count, seed=plan.seed, step=step, sizes=sizes)
    unasked = 1 - count / getattr(problem, "largest", problem.samples)

    def gradients_at(points: Tensor, *, at_start: bool) -> dict[Topic, Tensor]:
        topics = {replace(topic, at_start=at_start): indices for topic, indices in halves.items()}
        return {
            topic: deviation.gradients(problem.gradient(points, nodes, indices), nodes, topic, step)
            for topic, indices in topics.items()
        }

    deviation.observe(history.sides()[1] if history.rounds else None)
    asks = deviation.asks(nodes, step)
    asking = asks.nonzero().flatten()
    (parameters,) = network.exchange(step, {PARAMETERS: theta})
    # The update history is stored at its receivers, or at its senders, from where it comes with their half gradients.
    own_history = history.sides() if history.rounds and parameters.history_at_senders else None
    updates = history.vectors() if history.rounds and own_history is None else None
    parameters = parameters.metadata_only()  # vectors are in the update history and in the queries
    probed: HalfGradients | None = None
    if detector.probe:
        first, second = network.exchange(step, gradients_at(problem.initial(nodes), at_start=True))
        makers = ProbeMakers(receivers=asking, arcs=network.arcs, nodes=nodes)
        probed = first.paired(second, makers, who=asks)
        del first, second
    half_gradients: HalfGradients
    if detector.point == "receiver":
        half_gradients = QueriedHalfGradients(
            _ask(problem, network, halves, theta, asks, deviation, step, own_history), updates
        )
    else:
        first, second = network.exchange(step, gradients_at(theta, at_start=False))
        half_gradients = first.paired(second, HalfGradientMakers(updates), who=asks, history=own_history)
    history = replace(history, inbox=parameters)  # the layout of rows; a restored history has none
    verdict = judge_neighbours(
        asking, network.arcs, nodes, half_gradients, probed, history, record.suspended, detector, watch, unasked
    )
    record, verdict = record.add(replace(verdict, by_rule=mixing_by_rule(network, plan)))
    reweighted = apply_verdict(network, plan, verdict.flagged, deviation, step=step)
    return Snapshot(step, "detection", theta, parameters, verdict=verdict, network=reweighted), record


def _ask(
    problem: Problem,
    network: Network,
    halves: dict[Topic, Tensor],
    theta: Tensor,
    asking: Tensor,
    deviation: Deviation,
    step: int,
    history: tuple[Tensor, Tensor] | None = None,
) -> Iterator[NeighbourhoodReply]:
    """Replies to queries of the nodes `asking` [B] for the gradients on both halves at their own parameters."""

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
        positions = torch.searchsorted(network.nodes, nodes)
        chosen = [indices[positions] for indices in halves.values()]
        if points.stride(0):
            return {topic: problem.gradient(points, nodes, indices) for topic, indices in zip(halves, chosen, strict=True)}
        # A single query, whose point is expanded without a copy: one batch for both halves.
        points, nodes = points[:1].expand(len(halves) * len(nodes), -1), nodes.repeat(len(halves))
        return dict(zip(halves, problem.gradient(points, nodes, torch.cat(chosen)).split(len(positions)), strict=True))

    def received(vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor:
        return deviation.gradients(vectors, nodes, topic.to(asker), step)

    return network.ask(step, theta, answer, asking, received, history)


__all__ = [
    "Deviation",
    "FollowsProtocol",
    "Snapshot",
    "apply_verdict",
    "detect_hardened",
    "detect_published",
    "local_steps",
    "optimise",
    "premix",
    "warm_up",
]
