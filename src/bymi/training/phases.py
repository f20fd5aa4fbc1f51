"""The three phases. Each is written once, for a process that holds B of the M nodes of a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from bymi.core.deviation import Deviation, FollowsProtocol
from bymi.core.inbox import Inbox, Round
from bymi.core.neighbourhood_reply import NeighbourhoodReply
from bymi.core.network import Network, Settles
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

_PREMIX_PER_NODE = 10  # give up on premixing after this many rounds a node
_ROUNDING = 1e-6  # by which the sum of a tracker's entries may be off
_SETTLED = 1e-12  # relative change of a tracker entry that counts as none
_STEPS_AT_ONCE = 8  # mini-batches drawn in one go: the numbers do not depend on it, the time does


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
    """`rounds` rounds of a rule with gradient steps on samples from `pool` [B, P]. Paper: asp:warm_up.

    `sizes` [B]: how many entries of its row of `pool` each node has; None: all. `start`: how many rounds are behind, with nodes
    at `theta`. A rule alone goes on after the plan's `handover`.
    """
    nodes, rule = network.nodes, plan.warm_up.rule
    theta = problem.initial(nodes) if theta is None else theta
    early, late = range(start, min(rounds, plan.handover)), range(max(start, plan.handover), rounds)
    batches = ((plan.warm_up.batch, early), (plan.optimisation.batch, late))
    for step, chosen in chain.from_iterable(_draw(pool, sizes, nodes, batch, plan.seed, some) for batch, some in batches):
        rate = plan.rule_step(step, network.size)
        gradient = deviation.gradients(problem.gradient(theta, nodes, chosen), nodes, GRADIENT, step)

        def losses(vectors: Tensor, wanted: Tensor, receivers: Tensor | None = None, chosen: Tensor = chosen) -> Tensor:
            if receivers is None:
                return problem.losses(vectors, nodes, chosen, wanted)
            return problem.losses(vectors, nodes[receivers], chosen[receivers], wanted)

        moment = Round(step, plan.steps, losses)
        if rule.order == "adapt-then-combine":
            (inbox,) = network.exchange(step, {PARAMETERS: theta - rate * gradient})
            theta = deviation.keep(inbox, rule(inbox, moment), nodes, averaged=rule.plain, step=step)
        else:
            (inbox,) = network.exchange(step, {PARAMETERS: theta})
            theta = deviation.keep(inbox, rule(inbox, moment), nodes, averaged=rule.plain, step=step) - rate * gradient
        yield Snapshot(step + 1, "warm-up", theta, inbox)
        del inbox  # a round's messages are not kept while those of the next one come


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
    """Half gradients travel once, taken at their sender's or their receiver's parameter; every node judges and cuts in-arcs.

    A further detection is before round `step`, over the `network` that earlier ones left of the `whole`: whom they flagged
    [B, M] is not heard any more and stays flagged.
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
        # Answers that were not usable count as messages not heard, like any other.
        missing = verdict.why == REASONS.index("not heard")
        first = replace(first, heard=first.heard & ~first.from_node(missing))
    if earlier is not None:
        verdict = verdict.keeping(earlier)
    # All flags on the whole network, not new ones on what is left: a run that is resumed has no other way, and the same bits.
    pruned = apply_verdict(whole or network, plan, verdict.flagged, deviation, step=step)
    return Snapshot(step, "detection", theta, first, verdict=verdict, network=pruned)


def apply_verdict(network: Network, plan: Plan, flagged: Tensor, deviation: Deviation, *, step: int) -> Network:
    """The network after the detection before round `step`, in which nodes flagged in-arcs [B, M]."""
    assert plan.detector is not None
    cut = deviation.prune(flagged, network.nodes, step)
    if plan.watch is None:
        return network.prune(cut)
    return network.weigh(cut, mutual=plan.detector.pruning == "mutual", exile=plan.detector.exile)


def detect_hardened(
    problem: Problem,
    network: Network,
    plan: Plan,
    theta: Tensor,
    deviation: Deviation,
    *,
    step: int,
    trail: UpdateHistory,
    record: Suspensions,
) -> tuple[Snapshot, Suspensions]:
    """The hardened detection: fresh halves at each receiver's point and at the common start, and the deeds so far.

    Flags are put on record, and edges of flagged nodes lose their weight; their messages are still heard and watched.
    """
    detector, watch, nodes = plan.detector, plan.watch, network.nodes
    assert detector is not None
    assert watch is not None
    count = plan.identification if detector.sample == "identification" else detector.sample
    count = problem.samples if count == "all" else count
    sizes = sizes_of(problem, nodes)
    halves = fresh_halves(nodes, samples=problem.samples, count=count, seed=plan.seed, step=step, sizes=sizes)
    unasked = 1 - count / getattr(problem, "largest", problem.samples)

    def told(points: Tensor, *, at_start: bool) -> dict[Topic, Tensor]:
        topics = {replace(topic, at_start=at_start): some for topic, some in halves.items()}
        return {
            topic: deviation.gradients(problem.gradient(points, nodes, some), nodes, topic, step)
            for topic, some in topics.items()
        }

    asks = deviation.asks(nodes, step)
    asking = asks.nonzero().flatten()
    (parameters,) = network.exchange(step, {PARAMETERS: theta})
    # Deeds are here, or with those whose deeds they are, and come with what these say.
    sides = trail.sides() if trail.rounds and parameters.history_at_senders else None
    deeds = trail.vectors() if trail.rounds and sides is None else None
    parameters = parameters.metadata_only()  # where everybody stands is in the trail and comes with the questions
    probed: HalfGradients | None = None
    if detector.probe:
        first, second = network.exchange(step, told(problem.initial(nodes), at_start=True))
        makers = ProbeMakers(receivers=asking, arcs=network.arcs, nodes=nodes)
        probed = first.paired(second, makers, who=asks)
        del first, second
    claims: HalfGradients
    if detector.point == "receiver":
        claims = QueriedHalfGradients(_ask(problem, network, halves, theta, asks, deviation, step, sides), deeds)
    else:
        first, second = network.exchange(step, told(theta, at_start=False))
        claims = first.paired(second, HalfGradientMakers(deeds), who=asks, history=sides)
    trail = replace(trail, inbox=parameters)  # who sits where: always the same, and a trail that was stored has none
    verdict = judge_neighbours(asking, network.arcs, nodes, claims, probed, trail, record.suspended, detector, watch, unasked)
    record, verdict = record.add(verdict)
    weighed = apply_verdict(network, plan, verdict.flagged, deviation, step=step)
    return Snapshot(step, "detection", theta, parameters, verdict=verdict, network=weighed), record


def _ask(
    problem: Problem,
    network: Network,
    halves: dict[Topic, Tensor],
    theta: Tensor,
    who: Tensor,
    deviation: Deviation,
    step: int,
    deeds: tuple[Tensor, Tensor] | None = None,
) -> Iterator[NeighbourhoodReply]:
    """The nodes of `who` [B] ask for the gradients on both halves at their own parameter."""

    def answer(points: Tensor, nodes: Tensor, askers: Tensor) -> dict[Topic, Tensor]:
        place = torch.searchsorted(network.nodes, nodes)
        chosen = [some[place] for some in halves.values()]
        if points.stride(0):
            return {topic: problem.gradient(points, nodes, some) for topic, some in zip(halves, chosen, strict=True)}
        # One question, whose point takes no room: all of its answers at once.
        points, nodes = points[:1].expand(len(halves) * len(nodes), -1), nodes.repeat(len(halves))
        return dict(zip(halves, problem.gradient(points, nodes, torch.cat(chosen)).split(len(place)), strict=True))

    def received(vectors: Tensor, nodes: Tensor, asker: int, topic: Topic) -> Tensor:
        return deviation.gradients(vectors, nodes, topic.to(asker), step)

    return network.ask(step, theta, answer, who, received, deeds)


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
    """SGD over the pruned graph, each local step divided by the node's entry of the tracker. Paper: eq:local_dsgdrs.

    The tracker is that after the round, as printed; with "adapt-then-combine", which is ours, that before it.
    `steps`: which rounds of the plan, all after the warm-up by default; `tracker` and whether it has `settled`, if some over
    this network are behind. Mutual pruning leaves weights that are doubly stochastic: the tracker would be 1 / M everywhere,
    so there is none.
    """
    nodes, settings = network.nodes, plan.optimisation
    everything = all_samples(problem, nodes)
    first, rounds = plan.warm_up_steps, plan.steps - plan.warm_up_steps
    even = plan.detector is not None and plan.detector.pruning == "mutual"
    fuse = None if plan.watch is None or plan.watch.fuse is None else SelfCentredClipping(plan.watch.fuse)
    steps = range(first, plan.steps) if steps is None else steps
    if tracker is None and not even:
        tracker, settled = premix(network, settings, step=steps.start)
    for step, chosen in _draw(everything.warm_up, everything.sizes, nodes, settings.batch, plan.seed, steps):
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
    """What was heard of parameters, and the tracker after the round: unchanged once it has settled. Paper: eq:eupdate."""
    if settled or tracker is None:
        (parameters,) = network.exchange(step, {PARAMETERS: theta})
        return parameters, tracker
    parameters, trackers = network.exchange(step, {PARAMETERS: theta, TRACKER: tracker})
    trackers = trackers.accept_rows(_is_distribution)
    return parameters, trackers.mix(trackers.average())


def _is_distribution(rows: Tensor) -> Tensor:
    """Which rows could be a tracker [J]: no entry below zero, all of them one in sum."""
    return (rows.amin(1) >= -_ROUNDING) & ((rows.sum(1) - 1).abs() <= _ROUNDING)


def premix(network: Network, how: Optimisation, *, step: int = 0) -> tuple[Tensor, bool]:
    """Rounds of y_i <- sum_j W_ij y_j from y_i = e_i without any data: the tracker [B, M], and whether it has settled.

    With `premix_rounds` = None they go on until no [y_i]_i moves any more (entries on their way to zero: compared with the
    floor), and eq:eupdate would change nothing in later rounds. Without premixing the first local steps would be divided
    by W_ii instead of v_i, up to a hundred times too long. Paper: eq:eupdate, thm:main0 (Y_0 = A^t0).

    A network of many nodes may know where endless premixing ends: then only the entries [y_i]_i [B] come back.
    """
    if how.premix_rounds is None and isinstance(network, Settles) and (entries := network.settle(step)) is not None:
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
        still = bool(((after - before).abs() <= _SETTLED * before.clamp_min(floor)).all())
        if how.premix_rounds is None and network.agree(still):
            return tracker, True
    return tracker, False


def local_steps(
    tracker: Tensor | None, nodes: Tensor, rate: float, how: Optimisation, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each node's step, whether it was capped and whether its tracker entry was floored, each [B]."""
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
    """Parameters [M, D] and trackers [M, M] after one round of DGD-RS as printed, without safeguards. Paper: eq:DGDRS.

    theta_i <- sum_j W_ij theta_j - eta grad f_i(theta_i) / [y_i]_i and y_i <- sum_j W_ij y_j, with exact `gradients` [M, D] and
    row-stochastic `mixing` [M, M]. It divides by the tracker *before* the round. `optimise`, which goes back to it, is another
    update (eq:local_dsgdrs): mini-batches, and the tracker *after* the round.
    """
    return mixing @ theta - step_size * gradients / tracker.diagonal()[:, None], mixing @ tracker


def _draw(
    pool: Tensor, sizes: Tensor | None, nodes: Tensor, batch: int, seed: int, steps: range
) -> Iterator[tuple[int, Tensor]]:
    """Each step with a mini-batch of each node [B, batch], drawn with replacement from its row of `pool` [B, P].

    `sizes` [B]: how many entries of its row each node has; None: all.
    """
    high = pool.shape[1] if sizes is None else sizes[:, None]
    everything = torch.equal(pool, torch.arange(pool.shape[1], device=pool.device).expand_as(pool))
    for start in range(steps.start, steps.stop, _STEPS_AT_ONCE):
        some = range(start, min(start + _STEPS_AT_ONCE, steps.stop))
        moments = torch.arange(some.start, some.stop, device=nodes.device)[:, None]
        places = stream(seed, "batch", node=nodes, step=moments, device=nodes.device).integers(high, batch)
        for step, place in zip(some, places, strict=True):
            yield step, place if everything else torch.gather(pool, 1, place)


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
