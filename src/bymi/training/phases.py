"""The three phases: warm-up, detection, optimisation. Each is written once, for a process that holds B of the M nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from bymi.core.deviation import Deviation, FollowsProtocol
from bymi.core.inbox import Inbox, Round
from bymi.core.neighbourhood_reply import NeighbourhoodReply
from bymi.core.network import KnowsTrackerLimit, Network
from bymi.core.streams import stream
from bymi.core.topic import GRADIENT, PARAMETERS, PREMIX, TRACKER, Topic
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
from bymi.detection.clipping import SelfCentredClipping, fused
from bymi.problems import Problem, Split, all_samples, fresh_halves, sizes_of
from bymi.training.plan import Optimisation, Plan
from bymi.training.state import Snapshot

_PREMIX_PER_NODE = 10  # premixing gives up after this many rounds per node
_ROUNDING = 1e-6  # tolerance on the sum of a tracker row
_SETTLED = 1e-12  # relative change of a tracker entry that counts as none
_STEPS_AT_ONCE = 8  # steps per draw of mini-batches: affects time only, not the numbers


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
) -> Iterator[Snapshot]:
    """Yield the Snapshots of `rounds` rounds of the warm-up rule with gradient steps. Paper: asp:warm_up.

    `pool` [B, P]: sample indices per node, of which the first `sizes` [B] are valid; None: all. `start`: number of rounds
    already done, with nodes at `theta` [B, D]. A baseline continues beyond the plan's `handover`.
    """
    nodes, rule = network.nodes, plan.warm_up.rule
    theta = problem.initial(nodes) if theta is None else theta
    early, late = range(start, min(rounds, plan.handover)), range(max(start, plan.handover), rounds)
    batches = ((plan.warm_up.batch, early), (plan.optimisation.batch, late))
    for step, chosen in chain.from_iterable(_draw(pool, sizes, nodes, batch, plan.seed, steps) for batch, steps in batches):
        rate = plan.rule_step(step, network.size)
        gradient = deviation.gradients(problem.gradient(theta, nodes, chosen), nodes, GRADIENT, step)

        def losses(vectors: Tensor, wanted: Tensor, receivers: Tensor | None = None, chosen: Tensor = chosen) -> Tensor:
            if receivers is None:
                return problem.losses(vectors, nodes, chosen, wanted)
            return problem.losses(vectors, nodes[receivers], chosen[receivers], wanted)

        context = Round(step, plan.steps, losses)
        if rule.order == "adapt-then-combine":
            (inbox,) = network.exchange(step, {PARAMETERS: theta - rate * gradient})
            theta = deviation.keep(inbox, rule(inbox, context), nodes, averaged=rule.plain, step=step)
        else:
            (inbox,) = network.exchange(step, {PARAMETERS: theta})
            theta = deviation.keep(inbox, rule(inbox, context), nodes, averaged=rule.plain, step=step) - rate * gradient
        yield Snapshot(step + 1, "warm-up", theta, inbox)
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
    record, verdict = record.add(verdict)
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


def optimise(
    problem: Problem,
    network: Network,
    plan: Plan,
    theta: Tensor,
    deviation: Deviation,
    *,
    steps: range | None = None,
    tracker: Tensor | None = None,
    settled: bool = False,
) -> Iterator[Snapshot]:
    """Yield the Snapshots of SGD over the pruned graph, with local steps over the tracker entry. Paper: eq:local_dsgdrs.

    Steps are divided by the tracker after the round, as published; with "adapt-then-combine", which is ours, by that before it.
    `steps`: rounds of the plan to run, by default all after the warm-up. `tracker` and `settled`: from earlier rounds over this
    network. Mutual pruning leaves doubly stochastic weights, for which the tracker would be 1 / M everywhere: there is none.
    """
    nodes, settings = network.nodes, plan.optimisation
    samples = all_samples(problem, nodes)
    first, rounds = plan.warm_up_steps, plan.steps - plan.warm_up_steps
    doubly_stochastic = plan.detector is not None and plan.detector.pruning == "mutual"
    fuse = None if plan.watch is None or plan.watch.fuse is None else SelfCentredClipping(plan.watch.fuse)
    steps = range(first, plan.steps) if steps is None else steps
    if tracker is None and not doubly_stochastic:
        tracker, settled = premix(network, settings, step=steps.start)
    for step, chosen in _draw(samples.warm_up, samples.sizes, nodes, settings.batch, plan.seed, steps):
        rate = settings.step_size.at(step - first, rounds)
        gradient = deviation.gradients(problem.gradient(theta, nodes, chosen), nodes, GRADIENT, step)
        adapt_first = settings.order == "adapt-then-combine"
        if adapt_first:
            local, capped, floored = local_steps(tracker, nodes, rate, settings, network.size)
            theta = theta - local.to(theta.dtype)[:, None] * gradient
        parameters, tracker = _exchange(network, step, theta, tracker, settled)
        mixture, share, far_out = parameters.average(), None, None
        if fuse is not None:
            share, far_out = fuse(parameters)
            mixture = fused(parameters, share)
        theta = deviation.keep(parameters, parameters.mix(mixture), nodes, averaged=fuse is None, step=step)
        if not adapt_first:
            local, capped, floored = local_steps(tracker, nodes, rate, settings, network.size)
            theta = theta - local.to(theta.dtype)[:, None] * gradient
        acted = (capped, floored, share, far_out)
        yield Snapshot(step + 1, "optimisation", theta, parameters, *acted, tracker=tracker, settled=settled)
        del parameters


def _exchange(network: Network, step: int, theta: Tensor, tracker: Tensor | None, settled: bool) -> tuple[Inbox, Tensor | None]:
    """Inbox of parameters, and the tracker after the round, unchanged once it has settled. Paper: eq:eupdate."""
    if settled or tracker is None:
        (parameters,) = network.exchange(step, {PARAMETERS: theta})
        return parameters, tracker
    parameters, trackers = network.exchange(step, {PARAMETERS: theta, TRACKER: tracker})
    trackers = trackers.accept_rows(_is_distribution)
    return parameters, trackers.mix(trackers.average())


def _is_distribution(rows: Tensor) -> Tensor:
    """Mask [J] of rows that can be a tracker: no negative entry, sum one."""
    return (rows.amin(1) >= -_ROUNDING) & ((rows.sum(1) - 1).abs() <= _ROUNDING)


def premix(network: Network, how: Optimisation, *, step: int = 0) -> tuple[Tensor, bool]:
    """Tracker [B, M] after rounds of y_i <- sum_j W_ij y_j from y_i = e_i, without data, and whether it has settled.

    With `premix_rounds` = None, rounds continue until no [y_i]_i changes (entries tending to zero are compared with the floor),
    so that eq:eupdate would not change it later. Without premixing, the first local steps would be divided by W_ii instead of
    v_i, up to a hundred times too long. Paper: eq:eupdate, thm:main0 (Y_0 = A^t0).

    A network of many nodes may know the limit of premixing: then only the entries [y_i]_i [B] are returned. Collective.
    """
    if (
        how.premix_rounds is None
        and isinstance(network, KnowsTrackerLimit)
        and (entries := network.tracker_limit(step)) is not None
    ):
        return entries, True
    # Paper gap: Algorithm 1 prints one common y_0 in R^d, which would never change, docs/adr/0004-tracker.md.
    nodes = network.nodes
    tracker = torch.zeros(len(nodes), network.size, dtype=torch.float64, device=nodes.device)
    tracker.scatter_(1, nodes[:, None], 1.0)
    floor = how.min_weight / network.size
    limit = _PREMIX_PER_NODE * network.size if how.premix_rounds is None else how.premix_rounds
    for _ in range(limit):
        (inbox,) = network.exchange(step, {PREMIX: tracker})
        inbox = inbox.accept_rows(_is_distribution)
        mixed = inbox.mix(inbox.average())
        before, after = tracker.gather(1, nodes[:, None]), mixed.gather(1, nodes[:, None])
        tracker = mixed
        unchanged = bool(((after - before).abs() <= _SETTLED * before.clamp_min(floor)).all())
        if how.premix_rounds is None and network.all_agree(unchanged):
            return tracker, True
    return tracker, False


def local_steps(
    tracker: Tensor | None, nodes: Tensor, rate: float, how: Optimisation, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Step size per node, whether it was capped, and whether its tracker entry was floored, each [B]."""
    if tracker is None:
        entry = torch.full((len(nodes),), 1 / size, dtype=torch.float64, device=nodes.device)
    else:
        entry = tracker if tracker.ndim == 1 else tracker.gather(1, nodes[:, None]).squeeze(1)
    floor = how.min_weight / size
    steps = rate / entry.clamp_min(floor)
    if how.convention == "mean":
        steps = steps / size
    return steps.clamp_max(how.max_local_step), steps > how.max_local_step, entry < floor


def dgd_rs(theta: Tensor, tracker: Tensor, gradients: Tensor, mixing: Tensor, step_size: float) -> tuple[Tensor, Tensor]:
    """Parameters [M, D] and trackers [M, M] after one round of DGD-RS as published, without safeguards. Paper: eq:DGDRS.

    theta_i <- sum_j W_ij theta_j - eta grad f_i(theta_i) / [y_i]_i and y_i <- sum_j W_ij y_j, with exact `gradients` [M, D] and
    row-stochastic `mixing` [M, M]. It divides by the tracker *before* the round. `optimise`, which is derived from it, is
    another update (eq:local_dsgdrs): mini-batches, and the tracker *after* the round.
    """
    return mixing @ theta - step_size * gradients / tracker.diagonal()[:, None], mixing @ tracker


def _draw(
    pool: Tensor, sizes: Tensor | None, nodes: Tensor, batch: int, seed: int, steps: range
) -> Iterator[tuple[int, Tensor]]:
    """Yield each step with one mini-batch per node [B, batch], drawn with replacement from its row of `pool` [B, P].

    `sizes` [B]: number of valid entries per row; None: all.
    """
    high = pool.shape[1] if sizes is None else sizes[:, None]
    whole_pool = torch.equal(pool, torch.arange(pool.shape[1], device=pool.device).expand_as(pool))
    for start in range(steps.start, steps.stop, _STEPS_AT_ONCE):
        chunk = range(start, min(start + _STEPS_AT_ONCE, steps.stop))
        step_column = torch.arange(chunk.start, chunk.stop, device=nodes.device)[:, None]
        positions = stream(seed, "batch", node=nodes, step=step_column, device=nodes.device).integers(high, batch)
        for step, row in zip(chunk, positions, strict=True):
            yield step, row if whole_pool else torch.gather(pool, 1, row)


__all__ = [
    "Deviation",
    "FollowsProtocol",
    "Snapshot",
    "apply_verdict",
    "detect_hardened",
    "detect_published",
    "dgd_rs",
    "local_steps",
    "optimise",
    "premix",
    "warm_up",
]
