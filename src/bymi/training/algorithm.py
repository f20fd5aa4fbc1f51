"""DRSGD-ByMI: warm-up, detection, optimisation, in order. Paper: alg:DRSGD-ByMI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from bymi.core.linalg import norms
from bymi.core.network import Network
from bymi.detection import Suspensions, UpdateHistory, Verdict
from bymi.detection.clipping import shorten
from bymi.detection.rollback import to_roll_back
from bymi.problems import Problem, Split, all_samples, sizes_of, split_samples
from bymi.training.phases import Deviation, FollowsProtocol, apply_verdict, detect_hardened, detect_published, optimise, warm_up
from bymi.training.plan import Plan
from bymi.training.preflight import check_run
from bymi.training.state import Snapshot, State

_FUSE = 3.0  # by which deeds are measured where no fuse acts


def drsgd_bymi(
    problem: Problem, network: Network, plan: Plan, deviation: Deviation | None = None, state: State | None = None
) -> Iterator[Snapshot]:
    """Yield a Snapshot after every round. A plan without a detector is its warm-up rule alone, on all samples: a baseline.

    The hardened profile takes the last two phases in turns, with an eye on what neighbours really send. With the `state` that
    a Snapshot of the same run has, only the rounds after that one are run, and give the same numbers.

    What does not fit together is an InputError at once: a problem of another number of nodes, a graph that is not connected.
    """
    check_run(problem, network, plan, deviation, state)
    return _rounds(problem, network, plan, deviation or FollowsProtocol(), state)


def _rounds(problem: Problem, network: Network, plan: Plan, deviation: Deviation, state: State | None) -> Iterator[Snapshot]:
    here = _start(problem, network, plan) if state is None else state.copy()
    split, whole = _split(problem, network, plan), network
    if here.stopped:
        return
    if here.flagged is not None and here.judged is not None:
        network = apply_verdict(network, plan, here.flagged, deviation, step=here.judged)
    last = plan.steps if plan.detector is None else plan.warm_up_steps
    pool, sizes = split.warm_up, split.sizes
    for snapshot in warm_up(
        problem, network, plan, pool, deviation, rounds=last, start=here.step, theta=here.theta, sizes=sizes
    ):
        # No deeds to judge yet: under a robust rule good nodes stand apart, too, those whom it makes refuse most others.
        here = _after(snapshot, here, network, plan)
        yield replace(snapshot, state=here, stopped=here.stopped)
        del snapshot  # with all messages of its round
        if here.stopped:
            return

    rounds = plan.steps - plan.warm_up_steps
    for start, end in pairwise([*plan.detections, plan.steps]):
        if here.step >= end:
            continue
        if here.step == start and here.phase != "detection":
            detection, here = _judged(problem, network, whole, plan, split, deviation, here)
            assert detection.network is not None
            network = detection.network
            yield replace(detection, state=here)
            del detection
        left, tracker, settled = range(here.step, end), here.tracker, here.settled
        for snapshot in optimise(problem, network, plan, here.theta, deviation, steps=left, tracker=tracker, settled=settled):
            if here.trail is not None and end < plan.steps:
                rate = plan.optimisation.step_size.at(snapshot.step - 1 - plan.warm_up_steps, rounds)
                assert snapshot.inbox is not None
                here.trail.see(snapshot.inbox, rate, *_shorten(plan, snapshot))
            here = _after(snapshot, here, network, plan)
            yield replace(snapshot, state=here, stopped=here.stopped)
            del snapshot
            if here.stopped:
                return


def _start(problem: Problem, network: Network, plan: Plan) -> State:
    theta = problem.initial(network.nodes)
    anchor = theta if plan.stop is not None and plan.stop_from == 0 else None
    if plan.watch is None:
        return State(0, "start", theta, anchor=anchor)
    return State(
        0, "start", theta, record=Suspensions.blank(network.arcs, plan.watch.longest), trail=UpdateHistory(), before=theta
    )


def _split(problem: Problem, network: Network, plan: Plan) -> Split:
    """Which samples serve the warm-up and which the detection; where they are drawn anew each time, all warm up."""
    nodes = network.nodes
    if plan.detector is None or plan.watch is not None:
        return all_samples(problem, nodes)
    sizes = sizes_of(problem, nodes)
    return split_samples(nodes, samples=problem.samples, identification=plan.identification, seed=plan.seed, sizes=sizes)


def _judged(
    problem: Problem, network: Network, whole: Network, plan: Plan, split: Split, deviation: Deviation, here: State
) -> tuple[Snapshot, State]:
    """A detection, and the state after it."""
    if here.trail is None or here.record is None:
        if here.judged is not None:
            split = split.again(network.nodes, seed=plan.seed, step=here.step)
        detection = detect_published(
            problem, network, plan, split, here.theta, deviation, step=here.step, whole=whole, earlier=here.flagged
        )
        assert detection.verdict is not None
        flagged, anchor = detection.verdict.flagged, _anchor(here, plan)
        return detection, State(here.step, detection.phase, here.theta, here.step, flagged, anchor=anchor)
    detection, record = detect_hardened(
        problem, network, plan, here.theta, deviation, step=here.step, trail=here.trail, record=here.record
    )
    verdict = detection.verdict
    assert verdict is not None
    theta = _go_back(plan, network, here, verdict)
    after = State(
        here.step, detection.phase, theta, here.step, verdict.flagged, record=record, trail=UpdateHistory(), before=theta
    )
    return replace(detection, theta=theta), replace(after, anchor=_anchor(here, plan))


def _anchor(here: State, plan: Plan) -> Tensor | None:
    """Where the criterion of `plan.stop` starts from after a detection: the first one begins to look at it."""
    return None if plan.stop is None else here.theta if here.anchor is None else here.anchor


def _after(snapshot: Snapshot, here: State, network: Network, plan: Plan) -> State:
    """The state after a round, and whether the run ends with it."""
    after, stop, done = here.after(snapshot), plan.stop, snapshot.step - plan.stop_from
    if stop is None or here.anchor is None or done % stop.patience:
        return after
    distance, scale = norms(snapshot.theta - here.anchor), 1 + norms(snapshot.theta)
    if stop.on == "gradient":
        scale = torch.full_like(scale, plan.step_sum(range(snapshot.step - stop.patience, snapshot.step), network.size))
    resting = network.count(distance <= stop.tolerance * scale)
    return replace(after, anchor=snapshot.theta, stopped=2 * resting > network.size)


def _go_back(plan: Plan, network: Network, here: State, verdict: Verdict) -> Tensor:
    """Where nodes go on from: at the last detection, those who were misled from where they stood at the one before."""
    assert plan.watch is not None
    first, *_, last = [*plan.detections, plan.detections[-1]]
    if not first < here.step == last or plan.watch.retreat is None:
        return here.theta
    assert here.flagged is not None
    assert here.before is not None
    back = to_roll_back(verdict, network.arcs & ~here.flagged, plan.watch.retreat)
    return torch.where(back[:, None], here.before, here.theta)


def _shorten(plan: Plan, snapshot: Snapshot) -> tuple[Tensor, Tensor]:
    """What the fuse did to the messages of a round, or would have done."""
    if snapshot.share is not None and snapshot.far_out is not None:
        return snapshot.share, snapshot.far_out
    factor = None if plan.watch is None else plan.watch.fuse
    assert snapshot.inbox is not None
    share, far_out = shorten(snapshot.inbox, factor or _FUSE)
    return share, far_out if factor is not None else torch.zeros_like(far_out)
