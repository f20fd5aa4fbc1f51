"""Settings of a run as plain values: `Plan` and its parts, one per phase."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from bymi.aggregation import ALIASES, BALANCE, RULES, Order, Rule, as_rule
from bymi.core.errors import InputError, is_number, require, shown
from bymi.core.named_parts import bounded, check_fields, part_by_name
from bymi.detection import Detector, Panel, Watch
from bymi.training.decentralised_optimisers import ALIASES as METHODS
from bymi.training.decentralised_optimisers import DGDRS, DRSGD, OPTIMISERS, Optimiser

Schedule = Literal["constant", "sqrt", "linear", "trapezoid"]

PROFILES: dict[str, dict[str, Any]] = {
    "paper": {
        "warm_up": {"cool_down": 0.4},
        "detection": {
            "point": "sender",
            "cross_fit": False,
            "probe": False,
            "sample": "identification",
            "pruning": "directed",
        },
        "panel": None,
        "watch": None,
    },
    "hardened": {
        "warm_up": {"cool_down": 0.0},
        "detection": {
            "point": "receiver",
            "cross_fit": True,
            "probe": True,
            "sample": "all",
            "pruning": "mutual",
            "every": None,
        },
        "panel": {},
        "watch": {},
    },
}
"""Settings by profile. "paper": detection and updates as published. "hardened": made for networks under attack.

Both add what the paper does not print and convergence needs: the cap on local steps, the floor under the tracker, the
decaying step size, and a tracker that starts at its limit. `bymi reproduce published-step` has runs without these.
"""

_UNSAID: Any = object()
_RISE, _FALL = 0.1, 0.2  # shares of all rounds in which a trapezoid rises and falls
_STILL = 3  # rounds without a step at the end of a cool-down


@dataclass(frozen=True)
class StepSize:
    """A step size schedule: constant, value / sqrt(k + 1), falling linearly to zero at the last round, or a trapezoid.

    "trapezoid" rises linearly in the first tenth of the rounds and falls linearly to zero in the last fifth: for neural
    networks, which need large steps for long but diverge when these come too early.

    The warm-up counts all rounds of the plan, the optimisation its own.
    """

    value: float
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        require(is_number(self.value) and self.value >= 0, "step_size", self.value, "a finite number, 0 or above")
        check_fields(self)

    def at(self, step: int, steps: int) -> float:
        """Step size of round `step` (from 0) out of `steps`."""
        if self.schedule == "sqrt":
            return self.value / math.sqrt(step + 1)
        if self.schedule == "linear":
            return self.value * (1 - step / steps)
        if self.schedule == "trapezoid":
            return self.value * min(1.0, (step + 1) / (_RISE * steps), (1 - step / steps) / _FALL)
        return self.value


@dataclass(frozen=True)
class WarmUp:
    """Settings of the warm-up: a rule with gradient steps. Without a detector it continues, as that rule's own algorithm.

    `rule` may be a name in RULES with parameters, "ios:share=0.3", or an aggregator of another library or a function, which is
    called with the vectors of each neighbourhood; `step_size` may be a number, for a constant one.
    `cool_down`: share of the warm-up's rounds at its end over which the step size falls linearly to zero; in the last three
    rounds it is zero. Mixing continues, so honest nodes agree when they are compared, as asp:warm_up requires. This is our
    reading: the paper states the assumption and no step size. Detection at the sender's point needs it on neural networks.
    `order`: whether nodes take their gradient step before they exchange, or subtract it after; None: as the rule was published.
    """

    rule: Rule = field(default_factory=lambda: BALANCE(gamma=1.0))
    step_size: StepSize = StepSize(0.05, "sqrt")
    batch: int = bounded(8, ge=1)
    cool_down: float = bounded(0.0, ge=0, le=1)
    order: Order | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", part_by_name("rule", as_rule(self.rule), Rule, RULES, ALIASES))
        object.__setattr__(self, "step_size", _step_size(self.step_size))
        check_fields(self)

    def cooling(self, step: int, rounds: int) -> float:
        """Factor on the step size in round `step` (from 0) of a warm-up of `rounds`."""
        falling = round(self.cool_down * rounds)
        if not falling:
            return 1.0
        zero_rounds = min(_STILL, falling)
        return min(1.0, max(0, rounds - zero_rounds - step) / max(1, falling - zero_rounds))


@dataclass(frozen=True)
class Optimisation:
    """Settings of the third phase. `step_size` may be a number, for a constant one.

    `method`: the optimiser, or its name in OPTIMISERS with parameters, "frost:heavy_ball=0.3". `batch`: samples per node and
    round, or "all" for exact local gradients. `convention`: "paper" takes local steps eta / [y]_ii, about the number of nodes
    times a usual step size; "mean" takes eta / (m [y]_ii), so that a usual step size fits. `max_local_step` caps a local step,
    `min_weight` / m floors [y]_ii: a node that few others receive from has a tiny [y]_ii and would take a huge step. Uses of
    the cap and the floor are counted. `premix_rounds`: rounds of y without data before the first step; None: until y has
    reached its limit. `order`: "combine-then-adapt" as published, or "adapt-then-combine", which averages the noise of a step
    before the next gradient is taken and so allows larger steps. Method "push-pull" is always in the latter order.
    """

    step_size: StepSize = StepSize(0.0625, "linear")
    batch: int | Literal["all"] = bounded(32, ge=1)
    convention: Literal["paper", "mean"] = "mean"
    max_local_step: float = bounded(0.08, gt=0)
    min_weight: float = bounded(0.1, gt=0, le=1)
    premix_rounds: int | None = bounded(None, ge=0, le=10**6)
    order: Order = "combine-then-adapt"
    method: Optimiser = field(default_factory=DRSGD)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", part_by_name("method", self.method, Optimiser, OPTIMISERS, METHODS))
        object.__setattr__(self, "step_size", _step_size(self.step_size))
        check_fields(self)
        if isinstance(self.method, DGDRS):
            require(self.order == "combine-then-adapt", "order", self.order, "combine-then-adapt with dgd-rs")
        if self.method.adapts_first:
            object.__setattr__(self, "order", "adapt-then-combine")

    def usual_step(self, step: int, steps: int, nodes: int) -> float:
        """Local step of a node with [y]_ii = 1 / m in round `step` of `steps`: the step size of DSGD."""
        rate = self.step_size.at(step, steps) * (nodes if self.convention == "paper" else 1)
        return min(rate, self.max_local_step)


@dataclass(frozen=True)
class Stop:
    """Criterion for early stopping: more than half of all nodes have converged.

    Every `patience` rounds each node measures the distance that its own parameters moved in these rounds. "movement": relative
    to 1 + the norm of the parameters. "gradient": over the sum of the step sizes, an estimate of the norm of the gradient,
    averaged over these rounds and over the nodes that mix. A node has converged if this is at most `tolerance`. Messages are
    not used, so a Byzantine minority can neither force the end nor prevent it.

    It is checked in the optimisation only; for a baseline, in all rounds. Step size schedules still count the planned rounds.
    """

    tolerance: float = bounded(gt=0)
    on: Literal["gradient", "movement"] = "gradient"
    patience: int = bounded(50, ge=1)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Plan:
    """Settings of a run: `steps` rounds in all, the first `warm_up_steps` of them warm-up.

    Use `Plan.hardened(...)`, `Plan.paper(...)`, or pass a detector. With `detector=None` the plan is a baseline, the warm-up
    rule alone: it takes the step sizes and batches of the warm-up, then those of the optimisation, as the method does round by
    round. With `warm_up_steps` = `steps` it keeps those of the warm-up.

    `watch`: monitoring after the first detection, hardened profile only. `stop`: early stopping.
    """

    steps: int
    warm_up_steps: int
    warm_up: WarmUp = field(default_factory=WarmUp)
    detector: Detector | None = _UNSAID
    optimisation: Optimisation = field(default_factory=Optimisation)
    watch: Watch | None = None
    identification: int = 50
    seed: int = 0
    stop: Stop | None = None

    @staticmethod
    def hardened(steps: int, warm_up_steps: int, *, detection: Mapping[str, Any] | None = None, **settings: Any) -> Plan:
        """The plan of profile "hardened", made for networks under attack and the default of `bymi run`.

        `detection`: fields of the Detector to replace; `settings`: other fields of the plan to replace.
        """
        return _by_profile("hardened", steps, warm_up_steps, detection or {}, settings)

    @staticmethod
    def paper(steps: int, warm_up_steps: int, *, detection: Mapping[str, Any] | None = None, **settings: Any) -> Plan:
        """The plan of profile "paper", the published method; arguments as for `Plan.hardened`."""
        return _by_profile("paper", steps, warm_up_steps, detection or {}, settings)

    def __post_init__(self) -> None:
        allowed = "a Detector, or None for the rule alone; Plan.hardened(...) and Plan.paper(...) have those of the profiles"
        require(self.detector is not _UNSAID, "detector", "nothing", allowed)
        check_fields(self)
        require(self.steps >= 1, "steps", self.steps, "1 or more")
        require(self.warm_up_steps >= 0, "warm_up_steps", self.warm_up_steps, "0 or more")
        require(self.identification >= 2, "identification", self.identification, "2 or more")
        require(self.seed >= 0, "seed", self.seed, "0 or more")
        if self.detector is not None:
            allowed = f"1 to steps - 1 = {self.steps - 1}"
            require(0 < self.warm_up_steps < self.steps, "warm_up_steps", self.warm_up_steps, allowed)
        if self.watch is not None:
            require(self.detector is not None and self.detector.panel is not None, "watch", "on", "with a panel")
        elif self.detector is not None:
            # The published phases would silently ignore these.
            require(self.detector.panel is None, "watch", "off", "without a panel; Watch(every=None) detects once")
            require(self.detector.pruning == "directed", "pruning", self.detector.pruning, "directed without watch")
        if self.detector is not None:
            name = type(self.detector.scale).__name__
            require(not self.detector.scale.arrays_only, "scale", name, "identity, pca, projected in a network")
        if self.detector is not None and self.optimisation.method.doubly_stochastic:
            allowed = "with pruning = mutual; frost, ab or push-pull after one-sided cuts"
            require(self.doubly_stochastic, "method", type(self.optimisation.method).__name__, allowed)

    @property
    def doubly_stochastic(self) -> bool:
        """Whether the detection leaves weights whose columns sum to one, too."""
        return self.detector is not None and self.detector.pruning == "mutual"

    @property
    def handover(self) -> int:
        """First round in which a baseline takes the step sizes and batches of the optimisation; `steps` for never."""
        return min(self.warm_up_steps, self.steps) if self.detector is None else self.steps

    def rule_step(self, step: int, nodes: int) -> float:
        """Step size of the rule in round `step`, in a network of `nodes` nodes. It cools down only before a detection."""
        if step >= self.handover:
            return self.optimisation.usual_step(step - self.handover, self.steps - self.handover, nodes)
        rate = self.warm_up.step_size.at(step, self.steps)
        return rate if self.detector is None else rate * self.warm_up.cooling(step, self.warm_up_steps)

    @property
    def stop_from(self) -> int:
        """First round in which `stop` is checked."""
        return 0 if self.detector is None else self.warm_up_steps

    def step_sum(self, steps: range, size: int) -> float:
        """Sum of the step sizes of rounds after `stop_from`, in the convention "mean" for `size` nodes."""
        return self.step_sums(steps, size)[-1] if steps else 0.0

    def step_sums(self, steps: range, size: int) -> list[float]:
        """`step_sum` of the first, the first two, ... of these rounds."""
        if self.detector is None:
            return list(accumulate(self.rule_step(step, size) for step in steps))
        first, settings = self.warm_up_steps, self.optimisation
        sums = accumulate(settings.step_size.at(step - first, self.steps - first) for step in steps)
        return [total * size if settings.convention == "paper" else total for total in sums]

    @property
    def detections(self) -> list[int]:
        """Rounds before which detection takes place."""
        if self.detector is None:
            return []
        every = self.detector.every if self.watch is None else self.watch.every
        if every is None:
            return [self.warm_up_steps]
        regular = list(range(self.warm_up_steps, self.steps, every))
        if self.watch is None:
            return regular
        # An early detection, for attacks that begin with plain averaging, and a late one: rounds after the last detection
        # are not judged, so they are few and have small steps.
        soon, last = self.warm_up_steps + every // 4, self.steps - max(1, every // 10)
        return sorted({*regular, *(moment for moment in (soon, last) if regular[0] < moment < self.steps)})


def _by_profile(name: str, steps: int, warm_up_steps: int, detection: Mapping[str, Any], settings: Mapping[str, Any]) -> Plan:
    """The plan of a profile, with fields of the detector and of the plan replaced."""
    preset = PROFILES[name]
    panel, watch = (None if preset[key] is None else kind(**preset[key]) for key, kind in (("panel", Panel), ("watch", Watch)))
    detector = Detector(**{**preset["detection"], "panel": panel, **detection})
    given = {"warm_up": WarmUp(**preset["warm_up"]), "watch": watch, **settings}
    return Plan(steps, warm_up_steps, detector=detector, **given)


def _step_size(value: object) -> StepSize:
    """The StepSize itself, or a constant one from a number."""
    value = StepSize(float(value)) if is_number(value) else value  # type: ignore[arg-type]
    if not isinstance(value, StepSize):
        raise InputError(f"step_size: got {shown(value)}, allowed: a StepSize, or a finite number, 0 or above")
    return value


def theorem_step(nodes: int, steps: int) -> float:
    """Step size of the convergence theorem, sqrt(1 / (m K)), for convention "paper". Paper: thm:main0.

    A node does not know how many others are honest, so m counts all nodes.
    """
    return math.sqrt(1 / (nodes * steps))
