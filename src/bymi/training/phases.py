"""The three phases: warm-up, detection, optimisation. Each is written once, for a process that holds B of M nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from bymi.aggregation import LocalSamples, Memory
from bymi.core.byzantine_hooks import Deviation
from bymi.core.errors import require
from bymi.core.graph import Graph
from bymi.core.inbox import Inbox, Mixture, Round
from bymi.core.network import NeighbourhoodReply, Network, tracker_limit
from bymi.core.random_streams import stream
from bymi.core.topic import DIRECTION, GRADIENT, PARAMETERS, PREMIX, TRACKER, Topic
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
from bymi.detection.clip_parameter_messages import SelfCentredClipping, fused
from bymi.problems import Problem
from bymi.training.plan import Optimisation, Plan
from bymi.training.samples import Split, all_samples, draw_batches, fresh_halves, sizes_of
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


# The third phase: SGD over the pruned graph by an optimiser, with the tracker of the left Perron vector.


_PREMIX_PER_NODE = 10  # premixing gives up after this many rounds per node
_ROUNDING = 1e-6  # tolerance on the sum of a tracker row
_SETTLED = 1e-12  # relative change of a tracker entry that counts as none


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
    memory: Mapping[str, Tensor] | None = None,
) -> Iterator[Snapshot]:
    """Yield the Snapshots of SGD over the pruned graph, by `plan.optimisation.method`. Paper: eq:local_dsgdrs.

    `steps`: rounds of the plan to run, by default all after the warm-up. `tracker`, `settled` and `memory`: from earlier rounds
    over this network. Mutual pruning leaves doubly stochastic weights, for which the tracker would be 1 / M everywhere: there
    is none, nor is there one for a method that does not use it.
    """
    nodes, settings, method = network.nodes, plan.optimisation, plan.optimisation.method
    samples = all_samples(problem, nodes)
    first, rounds = plan.warm_up_steps, plan.steps - plan.warm_up_steps
    steps = range(first, plan.steps) if steps is None else steps
    if tracker is None and method.tracked and not plan.doubly_stochastic:
        tracker, settled = premix(network, settings, step=steps.start)
    mixer = _Mixer(network, plan, deviation, tracker, settled=settled, dtype=theta.dtype)
    memory = {} if memory is None else memory
    for step, chosen in draw_batches(samples.warm_up, samples.sizes, nodes, settings.batch, plan.seed, steps):
        rate = settings.step_size.at(step - first, rounds)
        mixer.begin(step, rate, round_of(problem, nodes, chosen, plan, step, rate))
        gradient = deviation.gradients(problem.gradient(theta, nodes, chosen), nodes, GRADIENT, step)
        theta, memory = method.update(theta, gradient, memory, mixer)
        acted = (mixer.capped, mixer.floored, mixer.share, mixer.far_out)
        state = {"tracker": mixer.tracker, "settled": settled, "memory": memory}
        yield Snapshot(step + 1, "optimisation", theta, mixer.inbox, *acted, **state)  # type: ignore[arg-type]
        mixer.inbox = None  # frees the messages before those of the next round arrive


def round_of(problem: Problem, nodes: Tensor, chosen: Tensor, plan: Plan, step: int, rate: float) -> Round:
    """What a rule may know of a round in which nodes use the samples `chosen` [B, s]."""

    def losses(vectors: Tensor, wanted: Tensor, receivers: Tensor | None = None) -> Tensor:
        if receivers is None:
            return problem.losses(vectors, nodes, chosen, wanted)
        return problem.losses(vectors, nodes[receivers], chosen[receivers], wanted)

    return Round(step, plan.steps, losses, rate, plan.seed, nodes)


def mixing_by_rule(network: Network, plan: Plan) -> Tensor:
    """Mask [B] of the nodes that keep the warm-up rule as their mixing: with fewer than `panel.few` neighbours.

    So few can be judged in part only: medians and spreads of them say little, and what is missed must not be averaged.
    """
    panel = None if plan.detector is None else plan.detector.panel
    if panel is None or panel.few is None or not plan.doubly_stochastic or plan.warm_up.rule.plain:
        return torch.zeros_like(network.nodes, dtype=torch.bool)
    return network.arcs.sum(1) < panel.few


class _Mixer:
    """The rounds of one optimisation: the MixingRound of optimisers, and what it did for the Snapshot."""

    def __init__(
        self,
        network: Network,
        plan: Plan,
        deviation: Deviation,
        tracker: Tensor | None,
        *,
        settled: bool,
        dtype: torch.dtype,
    ) -> None:
        self._network, self._plan, self._deviation = network, plan, deviation
        self._settings, self._nodes = plan.optimisation, network.nodes
        factor = None if plan.watch is None else plan.watch.fuse
        # One clipping per topic: each remembers the arcs of its last round.
        self._clipping = None if factor is None else (SelfCentredClipping(factor), SelfCentredClipping(factor))
        self.tracker, self._settled = tracker, settled
        self.adapt_first = self._settings.order == "adapt-then-combine"
        self._step, self._rate, self._dtype = 0, 0.0, dtype
        by_rule = mixing_by_rule(network, plan)
        # The same on all ranks, since rules are collective there; a node of its own asks nobody.
        alone = not getattr(network, "collective", True)
        self._by_rule = by_rule[:, None] if (bool(by_rule.any()) if alone else network.count(by_rule)) else None
        self._round = Round()
        self.inbox: Inbox | None = None
        self.share: Tensor | None = None
        self.far_out: Tensor | None = None
        self.capped = self.floored = torch.zeros_like(self._nodes, dtype=torch.bool)

    def begin(self, step: int, rate: float, context: Round) -> None:
        """Start a round with a step size."""
        self._step, self._rate, self._round, self.share, self.far_out = step, rate, context, None, None

    def mix(self, theta: Tensor) -> Tensor:
        self.inbox, self.tracker, _ = self._exchange(theta, None)
        if self._clipping is None:
            return self._kept(self.inbox, self.inbox.average())
        self.share, self.far_out = self._clipping[0](self.inbox)
        return self._kept(self.inbox, fused(self.inbox, self.share))

    def mix_both(self, theta: Tensor, directions: Tensor, *, push: bool = False) -> tuple[Tensor, Tensor]:
        sent = directions / (1 + self._pushed[1])[:, None].to(directions) if push else directions
        self.inbox, self.tracker, inbox = self._exchange(theta, sent)
        assert inbox is not None
        both = self.inbox.average(), inbox.average()
        if push:  # sums of what was pushed; clipping would lose some of it
            taken = (inbox.heard & inbox.from_node(self._pushed[0])).to(inbox.weight)
            both = both[0], Mixture(torch.ones_like(inbox.self_weight), taken)
        if self._clipping is not None:
            self.share, self.far_out = self._clipping[0](self.inbox)
            share = self.share if push else self._clipping[1](inbox)[0]
            both = fused(self.inbox, self.share), both[1] if push else fused(inbox, share)
        return self._kept(self.inbox, both[0]), self._kept(inbox, both[1], parameters=False)

    def local_steps(self, *, limited: bool = True) -> Tensor:
        steps, self.capped, self.floored = local_steps(
            self.tracker, self._nodes, self._rate, self._settings, self._network.size, limited=limited
        )
        return steps[:, None].to(self._dtype)

    def rescaling(self) -> Tensor:
        size, usual = self._network.size, self._usual or 1.0
        rate = usual if self._settings.convention == "mean" else usual / size
        steps, self.capped, self.floored = local_steps(self.tracker, self._nodes, rate, self._settings, size)
        return (steps / usual)[:, None].to(self._dtype)

    def usual_steps(self, spread: float) -> Tensor:
        steps = torch.full((len(self._nodes), 1), self._usual, dtype=torch.float64, device=self._nodes.device)
        if spread:
            draw = stream(self._plan.seed, "step sizes", node=self._nodes, device=self._nodes.device)
            steps = steps * (1 + spread * (2 * draw.uniform(1) - 1))
        return steps.to(self._dtype)

    @property
    def _usual(self) -> float:
        """Step size for the mean gradient of all nodes."""
        return self._rate * (self._network.size if self._settings.convention == "paper" else 1)

    @cached_property
    def _pushed(self) -> tuple[Tensor, Tensor]:
        """Mask of the arcs along which directions are pushed to nodes held here [B, P], and number of receivers of each [B].

        Nodes push to neighbours that hear them and that they hear: what they push to a node that they cut would be lost.
        """
        graph = getattr(self._network, "graph", None)
        allowed = "any other on a network that does not know who hears whom"
        require(isinstance(graph, Graph), "optimisation.method", type(self._settings.method).__name__, allowed)
        assert isinstance(graph, Graph)
        return graph.mutual[self._nodes], graph.count(graph.mutual)[self._nodes].to(torch.float64)

    def _kept(self, inbox: Inbox, mixture: Mixture, *, parameters: bool = True) -> Tensor:
        """Mixed vectors, or what Byzantine nodes keep in their place."""
        averaged, mixed = self._clipping is None, inbox.mix(mixture)
        if self._by_rule is not None and parameters:
            averaged, rule = False, self._plan.warm_up.rule
            mixed = torch.where(self._by_rule, rule(inbox.where(inbox.weight > 0), self._round).to(mixed), mixed)
        return self._deviation.keep(inbox, mixed, self._nodes, averaged=averaged, step=self._step)

    def _exchange(self, theta: Tensor, directions: Tensor | None) -> tuple[Inbox, Tensor | None, Inbox | None]:
        """Inbox of parameters, the tracker after the round, unchanged once it has settled, and inbox of directions.

        Paper: eq:eupdate.
        """
        topics = {PARAMETERS: theta}
        if directions is not None:
            topics[DIRECTION] = directions
        mixes_tracker = not self._settled and self.tracker is not None
        if mixes_tracker and self.tracker is not None:
            topics[TRACKER] = self.tracker
        inboxes = dict(zip(topics, self._network.exchange(self._step, topics), strict=True))
        tracker = self.tracker
        if mixes_tracker:
            trackers = inboxes[TRACKER].accept_rows(_is_distribution)
            tracker = trackers.mix(trackers.average())
        return inboxes[PARAMETERS], tracker, inboxes.get(DIRECTION)


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
    wanted = how.premix_rounds if how.method.premixed else 0
    if wanted is None and (entries := tracker_limit(network, step)) is not None:
        return entries, True
    # Paper gap: Algorithm 1 prints one common y_0 in R^d, which would never change, docs/adr/0004-tracker.md.
    nodes = network.nodes
    tracker = torch.zeros(len(nodes), network.size, dtype=torch.float64, device=nodes.device)
    tracker.scatter_(1, nodes[:, None], 1.0)
    floor = how.min_weight / network.size
    limit = _PREMIX_PER_NODE * network.size if wanted is None else wanted
    for _ in range(limit):
        (inbox,) = network.exchange(step, {PREMIX: tracker})
        inbox = inbox.accept_rows(_is_distribution)
        mixed = inbox.mix(inbox.average())
        before, after = tracker.gather(1, nodes[:, None]), mixed.gather(1, nodes[:, None])
        tracker = mixed
        unchanged = bool(((after - before).abs() <= _SETTLED * before.clamp_min(floor)).all())
        if wanted is None and network.all_agree(unchanged):
            return tracker, True
    return tracker, False


def local_steps(
    tracker: Tensor | None, nodes: Tensor, rate: float, how: Optimisation, size: int, *, limited: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Step size per node, whether it was capped, and whether its tracker entry was floored, each [B].

    `limited`: by the cap on local steps and the floor under the tracker.
    """
    floor, cap = (how.min_weight / size, how.max_local_step) if limited else (0.0, math.inf)
    unit = size if how.convention == "mean" else 1
    if tracker is None:  # entries of 1 / size: the same for all nodes
        step = rate * (1 / max(1 / size, floor)) / unit  # as torch divides by a tensor
        same = torch.full((len(nodes),), min(step, cap), dtype=torch.float64, device=nodes.device)
        return same, torch.full_like(nodes, step > cap, dtype=torch.bool), torch.zeros_like(nodes, dtype=torch.bool)
    entry = tracker if tracker.ndim == 1 else tracker.gather(1, nodes[:, None]).squeeze(1)
    steps = rate / entry.clamp_min(floor)
    steps = steps if unit == 1 else steps / unit
    return steps.clamp_max(cap), steps > cap, entry < floor
