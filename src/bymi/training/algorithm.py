"""DRSGD-ByMI: the loop over warm-up, detection and optimisation. Paper: alg:DRSGD-ByMI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from bymi.core.byzantine_hooks import Deviation, FollowsProtocol
from bymi.core.errors import GraphError, require
from bymi.core.graph import NOT_MUTUAL, Graph, check_connected
from bymi.core.linalg import norms
from bymi.core.network import Network
from bymi.detection import Suspensions, UpdateHistory, Verdict
from bymi.detection.clip_parameter_messages import shorten
from bymi.detection.verdict import DEEDS, has_reason
from bymi.problems import Problem
from bymi.training.phases import apply_verdict, detect_hardened, detect_published, optimise, warm_up
from bymi.training.plan import Plan
from bymi.training.samples import Split, all_samples, sizes_of, split_samples
from bymi.training.state import KEPT, KeptStates, Snapshot, State

_TINY = 1e-300  # a window in which no step is longer than rounding
_FUSE = 3.0  # clipping factor for the update history where no clipping is applied


def drsgd_bymi(
    problem: Problem, network: Network, plan: Plan, deviation: Deviation | None = None, state: State | None = None
) -> Iterator[Snapshot]:
    """Yield a Snapshot after every round and every detection.

    A plan without a detector runs its warm-up rule alone on all samples: a baseline. The hardened profile alternates
    detection and optimisation and records the updates of neighbours in between. With `state`, taken from a Snapshot of the
    same run, only later rounds are run, with the same numbers.

    Raises InputError before the first round if the arguments do not fit together: a problem with another number of nodes, a
    graph that is not connected.
    """
    check_run(problem, network, plan, deviation, state)
    return _rounds(problem, network, plan, deviation or FollowsProtocol(), state)


def _rounds(problem: Problem, network: Network, plan: Plan, deviation: Deviation, state: State | None) -> Iterator[Snapshot]:
    """Yield the Snapshots of the run, after `state` if given."""
    current = _start(problem, network, plan) if state is None else state.copy()
    split, whole = _split(problem, network, plan), network
    if current.stopped:
        return
    if current.flagged is not None and current.judged is not None:
        network = apply_verdict(network, plan, current.flagged, deviation, step=current.judged)
    last = plan.steps if plan.detector is None else plan.warm_up_steps
    pool, sizes = split.warm_up, split.sizes
    for snapshot in warm_up(
        *(problem, network, plan, pool, deviation),
        rounds=last,
        start=current.step,
        theta=current.theta,
        sizes=sizes,
        memory=current.memory,
    ):
        # Updates are not recorded yet: a robust rule that rejects most messages moves honest nodes apart, too.
        current = _after(snapshot, current, network, plan)
        yield replace(snapshot, state=current, stopped=current.stopped)
        del snapshot  # frees the messages of the round
        if current.stopped:
            return

    rounds = plan.steps - plan.warm_up_steps
    for start, end in pairwise([*plan.detections, plan.steps]):
        if current.step >= end:
            continue
        if current.step == start and current.phase != "detection":
            window = getattr(network, "window", None)  # the union of graphs that take turns
            detection, current = _judged(problem, window or network, whole, plan, split, deviation, current)
            if window is not None and current.flagged is not None:
                pruned = apply_verdict(network, plan, current.flagged, deviation, step=current.step)
                detection = replace(detection, network=pruned)
            assert detection.network is not None
            network = detection.network
            yield replace(detection, state=current)
            del detection
        sums = plan.step_sums(range(start, end), network.size) if current.history is not None else []
        carried = {"tracker": current.tracker, "settled": current.settled, "memory": current.memory}
        for snapshot in optimise(
            problem,
            network,
            plan,
            current.theta,
            deviation,
            steps=range(current.step, end),
            **carried,  # type: ignore[arg-type]
        ):
            if current.history is not None and end < plan.steps:
                rate = plan.optimisation.step_size.at(snapshot.step - 1 - plan.warm_up_steps, rounds)
                assert snapshot.inbox is not None
                progress = sums[snapshot.step - start - 1] / max(sums[-1], _TINY)
                current.history.see(snapshot.inbox, rate, *_shorten(plan, snapshot), progress)
            current = _after(snapshot, current, network, plan)
            yield replace(snapshot, state=current, stopped=current.stopped)
            del snapshot
            if current.stopped:
                return


def _start(problem: Problem, network: Network, plan: Plan) -> State:
    """The state before the first round."""
    theta = problem.initial(network.nodes)
    anchor = theta if plan.stop is not None and plan.stop_from == 0 else None
    if plan.watch is None:
        return State(0, "start", theta, anchor=anchor)
    record, history = Suspensions.blank(network.arcs, plan.watch.longest), UpdateHistory(plan.watch.rates)
    return State(0, "start", theta, record=record, history=history, kept=KeptStates.blank(theta))


def _split(problem: Problem, network: Network, plan: Plan) -> Split:
    """Samples for the warm-up and for detection. Where detection draws its own each time, the warm-up uses all."""
    nodes = network.nodes
    if plan.detector is None or plan.watch is not None:
        return all_samples(problem, nodes)
    sizes = sizes_of(problem, nodes)
    return split_samples(nodes, samples=problem.samples, identification=plan.identification, seed=plan.seed, sizes=sizes)


def _judged(
    problem: Problem, network: Network, whole: Network, plan: Plan, split: Split, deviation: Deviation, current: State
) -> tuple[Snapshot, State]:
    """The snapshot of a detection, and the state after it."""
    if current.history is None or current.record is None:
        if current.judged is not None:
            split = split.again(network.nodes, seed=plan.seed, step=current.step)
        detection = detect_published(
            problem, network, plan, split, current.theta, deviation, step=current.step, whole=whole, earlier=current.flagged
        )
        assert detection.verdict is not None
        flagged, anchor = detection.verdict.flagged, _anchor(current, plan)
        return detection, State(current.step, detection.phase, current.theta, current.step, flagged, anchor=anchor)
    detection, record = detect_hardened(
        problem, network, plan, current.theta, deviation, step=current.step, history=current.history, record=current.record
    )
    verdict = detection.verdict
    assert verdict is not None
    assert plan.watch is not None
    assert current.kept is not None
    theta, history = _go_back(plan, network, current, verdict), UpdateHistory(plan.watch.rates)
    kept = current.kept.add(current.theta, verdict.mean_claim)
    after = State(
        current.step, detection.phase, theta, current.step, verdict.flagged, record=record, history=history, kept=kept
    )
    return replace(detection, theta=theta), replace(after, anchor=_anchor(current, plan))


def _anchor(current: State, plan: Plan) -> Tensor | None:
    """Parameters [B, D] from which `plan.stop` measures after a detection; the first detection sets them."""
    return None if plan.stop is None else current.theta if current.anchor is None else current.anchor


def _after(snapshot: Snapshot, current: State, network: Network, plan: Plan) -> State:
    """The state after a round, with `stopped` set if the run ends with it. Collective where `plan.stop` is checked."""
    after, stop, done = current.after(snapshot), plan.stop, snapshot.step - plan.stop_from
    if stop is None or current.anchor is None or done % stop.patience:
        return after
    distance, scale = norms(snapshot.theta - current.anchor), 1 + norms(snapshot.theta)
    if stop.on == "gradient":
        scale = torch.full_like(scale, plan.step_sum(range(snapshot.step - stop.patience, snapshot.step), network.size))
    resting = network.count(distance <= stop.tolerance * scale)
    return replace(after, anchor=snapshot.theta, stopped=2 * resting > network.size)


def _go_back(plan: Plan, network: Network, current: State, verdict: Verdict) -> Tensor:
    """Parameters [B, D] after a detection. At the last detection, misled nodes return to the best of the last ones."""
    assert plan.watch is not None
    first, *_, last = [*plan.detections, plan.detections[-1]]
    if not first < current.step == last or plan.watch.retreat is None:
        return current.theta
    assert current.flagged is not None
    assert current.kept is not None
    back = to_roll_back(verdict, network.arcs & ~current.flagged, plan.watch.retreat)
    best = current.kept.add(current.theta, verdict.mean_claim, KEPT + 1).best
    return torch.where(back[:, None], best, current.theta)


def to_roll_back(verdict: Verdict, used: Tensor, share: float) -> Tensor:
    """Mask [B] of receivers that flag more than `share` of the nodes they used [B, M] for their updates.

    A share, not a number: the influence of Byzantine nodes grows with their weight, and one honest node flagged by chance is no
    reason.
    """
    deviating = used & has_reason(verdict.reason, DEEDS)
    return deviating.sum(1) > share * used.sum(1)


def _shorten(plan: Plan, snapshot: Snapshot) -> tuple[Tensor, Tensor]:
    """Share kept of each message and mask of messages far out, each [B, P]: as clipped, or as clipping would have done."""
    if snapshot.share is not None and snapshot.far_out is not None:
        return snapshot.share, snapshot.far_out
    factor = None if plan.watch is None else plan.watch.fuse
    assert snapshot.inbox is not None
    share, far_out = shorten(snapshot.inbox, factor or _FUSE)
    return share, far_out if factor is not None else torch.zeros_like(far_out)


# Checks before the first round of a run: that problem, network, plan and state fit together.


_PROBLEM = ("dim", "samples", "initial", "gradient", "losses")
_NETWORK = ("nodes", "size", "arcs", "exchange", "ask", "all_agree", "prune", "reweight")
_DEVIATION = ("gradients", "keep", "asks", "prune")


def check_run(problem: Problem, network: Network, plan: Plan, deviation: Deviation | None, state: State | None) -> None:
    """Raise an InputError unless `drsgd_bymi` can run with these arguments."""
    require(_has(problem, _PROBLEM), "problem", problem, "a LinearProblem, a ModuleProblem or any Problem")
    require(_has(network, _NETWORK), "network", network, "a Network, such as LocalNetwork(graph)")
    require(isinstance(plan, Plan), "plan", plan, "a Plan")
    require(deviation is None or _has(deviation, _DEVIATION), "deviation", deviation, "an Adversary or None")
    _check_nodes(problem, network)
    _check_samples(problem.samples, plan)
    if state is not None:
        require(isinstance(state, State), "state", state, "the State of a Snapshot, or None")
        shape = (len(network.nodes), problem.dim)
        require(state.theta.shape == shape, "state", f"models of shape {list(state.theta.shape)}", f"{list(shape)}")
    graph = getattr(network, "graph", None)
    if isinstance(graph, Graph) and getattr(network, "whole_here", False):
        check_connected(graph)
        _check_redrawn(network, plan)
        mutual = plan.detector is not None and plan.detector.pruning == "mutual"
        if mutual and not graph.symmetric:
            raise GraphError(NOT_MUTUAL)
        if plan.optimisation.method.push and plan.detector is not None:
            name = type(plan.optimisation.method).__name__
            require(graph.symmetric, "optimisation.method", name, "frost on a graph in which some arcs have no reverse")


def _check_redrawn(network: Network, plan: Plan) -> None:
    """Refuse what follows the weights of one graph where the graph is redrawn."""
    if getattr(network, "window", None) is None or plan.detector is None:
        return
    allowed = "mutual (profile hardened) with redraw_every: the tracker of one-sided cuts follows the weights of one graph"
    require(plan.doubly_stochastic, "detection.pruning", plan.detector.pruning, allowed)
    name = type(plan.optimisation.method).__name__
    require(not plan.optimisation.method.push, "optimisation.method", name, "any other with redraw_every")


def _has(thing: object, names: tuple[str, ...]) -> bool:
    return not isinstance(thing, type) and all(hasattr(thing, name) for name in names)


def _check_nodes(problem: Problem, network: Network) -> None:
    """Check `problem.node_numbers` [M], if given: it has samples of all nodes held here, and of none beyond the network."""
    numbers = getattr(problem, "node_numbers", None)
    if numbers is not None:
        fits = int(numbers.max()) < network.size and bool(torch.isin(network.nodes, numbers.to(network.nodes.device)).all())
        require(fits, "problem", f"samples of {len(numbers)} nodes", f"samples of the {network.size} nodes of the graph")


def _check_samples(samples: int, plan: Plan) -> None:
    """Check sample counts: detection needs 2 per node and at most all; the published one leaves some for the warm-up."""
    if plan.detector is None:
        return
    if plan.watch is None:
        most = samples + samples % 2 - 1
        require(plan.identification <= most, "identification", plan.identification, f"2 to {most} with {samples} samples")
    elif plan.detector.sample != "all":
        name = "identification" if plan.detector.sample == "identification" else "sample"
        count = plan.identification if plan.detector.sample == "identification" else plan.detector.sample
        require(2 <= int(count) <= samples, name, count, f"2 to {samples}, all samples of a node")
