"""The spec of a run: every key, its type, its default and what is allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, Field, field_validator, model_validator

from bymi import aggregation, attacks, detection
from bymi.core import topology
from bymi.core.errors import InputError
from bymi.core.graph import NOT_MUTUAL
from bymi.core.mixing_weights import Weights
from bymi.experiment.derived_spec_sections import Off, Part, PartOf, Section, derived
from bymi.experiment.validation_errors import validated
from bymi.runs import tasks
from bymi.runs.resolved_spec import LARGEST_SEED, ResolvedSpec
from bymi.training import decentralised_optimisers, plan

RulePart = Annotated[Part, PartOf(aggregation.RULES, aggregation.ALIASES, wrappers=aggregation.WRAPPERS)]
CentrePart = Annotated[Part, PartOf(detection.CENTRES, aggregation.ALIASES)]
ScalePart = Annotated[Part, PartOf(detection.SCALES, {})]
ThresholdPart = Annotated[Part, PartOf(detection.THRESHOLDS, {})]
GraphPart = Annotated[Part, PartOf(topology.TOPOLOGIES, topology.ALIASES)]
AttackPart = Annotated[Part, PartOf(attacks.ATTACKS, attacks.ALIASES)]
MethodPart = Annotated[Part, PartOf(decentralised_optimisers.OPTIMISERS, decentralised_optimisers.ALIASES)]
DataPart = Annotated[Part, PartOf(tasks.TASKS, tasks.ALIASES, unnamed="linear")]


def written(text: str) -> Part:
    """A default as a user would write it; pydantic validates defaults here, so it becomes a Part like any other."""
    return cast(Part, text)


Method = Literal["dsgd", "rule", "published", "drsgd-bymi"]
Profile = Literal["hardened", "paper"]


@derived(plan.WarmUp)
class WarmUp(Section):
    """`steps` rounds of a rule, a tenth of all by default; `cool_down`: share of them in which the step falls to zero."""

    steps: int | None = Field(None, ge=1)
    rule: RulePart = written("balance:gamma=1.0")
    step_size: float = Field(0.05, ge=0)
    schedule: plan.Schedule = "sqrt"


@derived(plan.WarmUp, without={"rule", "cool_down", "order"})
class Alone(Section):
    """Steps of a rule alone over all rounds, where it should not take those of the method round by round."""

    step_size: float = Field(0.05, ge=0)
    schedule: plan.Schedule = "sqrt"


@derived(detection.Detector, without={"panel"})
class Detection(Section):
    """Level of the false discovery rate, threshold and its offset, robust mean, Omega, where gradients are taken, pruning."""

    centre: CentrePart = written("filtering")
    scale: ScalePart = written("identity")
    threshold: ThresholdPart = written("published")

    @field_validator("offset", mode="before", check_fields=False)
    @classmethod
    def _no_truth_value(cls, value: Any) -> Any:
        # True == 1, so a Literal accepts it.
        return str(value) if isinstance(value, bool) else value


@derived(detection.Panel, without={"dimension_free"})
class Panel(Section):
    """Bounds of the tests on half gradients, in spreads or units of noise; off leaves one out. Hardened profile."""


@derived(detection.Watch)
class Watch(Section):
    """After the first detection: rounds to the next, clipping, tests of updates, how long a flag lasts. Hardened profile."""


@derived(plan.Optimisation)
class Optimisation(Section):
    """Optimiser, step convention, size and schedule; cap on local steps; floor on the tracker; rounds of premixing."""

    method: MethodPart = written("drsgd")
    step_size: Annotated[float, Field(ge=0)] | Literal["theorem"] = Field(0.0625, union_mode="left_to_right")
    schedule: plan.Schedule = "linear"


@derived(plan.Stop)
class Stop(Section):
    """End before the last round: when most nodes moved no farther than `tolerance` in `patience` rounds; off by default."""


class Spec(Section):
    """One run, or several that differ in `method` only. The defaults are the paper's Scenario A.

    `profile` names the kind of detection: "hardened" expects to be attacked, "paper" is the published one. Keys that are given
    explicitly take precedence over it. `method`: "dsgd" averages plainly, "rule" runs the warm-up rule alone, "drsgd-bymi" is
    the whole method with all keys as given, "published" the whole method with every key that profile "paper" sets as it sets it
    and all others as given; under profile "paper" these two are one run. `alone`: steps of the two baselines, "dsgd" and
    "rule"; off, they take the step sizes and batches of the whole method round by round. `redraw_every`: rounds after which the
    graph is the next of several draws, which take turns; a detection is over their union. `redraw_graphs`: how many draws.
    """

    profile: Profile = "hardened"
    method: Method | list[Method] = Field(["dsgd", "rule", "published", "drsgd-bymi"])
    nodes: int = Field(150, ge=2)
    byzantine_ratio: float = Field(0.2, ge=0, lt=0.5)
    byzantine_mixing: Literal["plain", "none", "rule"] = "plain"
    byzantine_pruning: Literal["none", "all", "rule"] = "none"
    byzantine_level: attacks.Level | None = None
    byzantine_start: int = Field(0, ge=0)
    byzantine_period: int | None = Field(None, ge=2)
    byzantine_faces: attacks.Shown = "one"
    byzantine_placement: attacks.Placement = "random"
    steps: int = Field(3000, ge=2, le=10**7)
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    record_every: int = Field(50, ge=1)
    graph: GraphPart = written("erdos-renyi")
    weights: Weights = "metropolis"
    redraw_every: Annotated[Annotated[int, Field(ge=1)] | None, Off] = None
    redraw_graphs: int = Field(4, ge=2, le=1000)
    data: DataPart = written("linear")
    warm_up: WarmUp = WarmUp()
    alone: Annotated[Alone | None, Off] = None
    detection: Detection = Detection()
    panel: Annotated[Panel | None, Off] = None
    watch: Annotated[Watch | None, Off] = None
    optimisation: Optimisation = Optimisation()
    stop: Annotated[Stop | None, Off] = None
    attack: AttackPart = written("parameter")

    @model_validator(mode="before")
    @classmethod
    def _by_profile(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("method") in ("published", ["published"]):
            values = published(values)
        return under(values, str(values.get("profile", cls.model_fields["profile"].default)))

    @model_validator(mode="after")
    def _fits_together(self) -> Spec:
        if not self.methods or len(set(self.methods)) < len(self.methods):
            got = "an empty list" if not self.methods else self.methods
            raise ValueError(f"method: got {got}, allowed: one or more of {', '.join(get_args(Method))}, each once")
        if self.optimisation.step_size == "theorem" and self.optimisation.convention != "paper":
            raise ValueError("optimisation.step_size: got 'theorem', allowed: with optimisation.convention = 'paper' only")
        if not 1 <= self.warm_up_steps < self.steps:
            raise ValueError(f"warm_up.steps: got {self.warm_up_steps}, allowed: 1 to steps - 1 = {self.steps - 1}")
        if self.detection.cross_fit and not issubclass(detection.CENTRES[self.detection.centre.name], aggregation.SetRule):
            raise ValueError("detection.cross_fit: got True, allowed: with a centre that is a weighted mean")
        if detection.SCALES[self.detection.scale.name].arrays_only:
            allowed = "identity, pca, projected; bymi detect and identify take all, on arrays"
            raise ValueError(f"detection.scale: got {self.detection.scale.name!r}, allowed: {allowed}")
        self._check_pruning()
        self._check_optimiser()
        self._check_redrawn()
        self._check_hardening()
        self._check_attack()
        return self

    def _check_pruning(self) -> None:
        """Check that no graph drawn with arcs of one way is pruned at both ends; arcs in a file may have their reverses."""
        one_way = getattr(self.graph.build(), "directed", False) and self.graph.name != "file"
        if one_way and self.detection.pruning == "mutual" and "drsgd-bymi" in self.methods:
            raise ValueError(NOT_MUTUAL)

    def _check_optimiser(self) -> None:
        """Check what the optimiser needs of the detection and of the order of steps."""
        method = decentralised_optimisers.OPTIMISERS[self.optimisation.method.name]
        if method.doubly_stochastic and self.detection.pruning != "mutual":
            allowed = "with detection.pruning = 'mutual'; frost, ab or push-pull after one-sided cuts"
            raise ValueError(f"optimisation.method: got {self.optimisation.method.name!r}, allowed: {allowed}")
        if issubclass(method, decentralised_optimisers.DGDRS) and self.optimisation.order != "combine-then-adapt":
            raise ValueError(f"optimisation.order: got {self.optimisation.order!r}, allowed: combine-then-adapt with dgd-rs")

    def _check_redrawn(self) -> None:
        """Check that nothing follows the weights of one graph where it is redrawn."""
        directed = self.detection.pruning != "mutual" and "drsgd-bymi" in self.methods
        if self.redraw_every is not None and ("published" in self.methods or directed):
            allowed = (
                "off, or method = dsgd, rule or drsgd-bymi with profile = hardened: the published tracker follows one graph"
            )
            raise ValueError(f"redraw_every: got {self.redraw_every}, allowed: {allowed}")

    def _check_hardening(self) -> None:
        """Check what the parts of the hardened profile need of each other."""
        if self.panel is None and (self.watch is not None or self.detection.probe):
            raise ValueError("panel: got off, allowed: with watch = off and detection.probe = false only")
        if self.panel is not None and self.watch is None:
            allowed = (
                "without a panel, which profile = hardened and any key panel.NAME switch on; watch.every = off detects once"
            )
            raise ValueError(f"watch: got off, allowed: {allowed}")
        if self.panel is not None:
            if self.detection.every is not None:
                raise ValueError(f"detection.every: got {self.detection.every}, allowed: off with a panel; set watch.every")
            if self.detection.threshold != _DEFAULTS["threshold"]:
                raise ValueError(f"detection.threshold: got {self.detection.threshold.name!r}, allowed: published with a panel")
            if self.detection.scale.name != "identity":
                raise ValueError(f"detection.scale: got {self.detection.scale.name!r}, allowed: identity with a panel")
            ignored = [
                ("centre", self.panel.edge, self.detection.centre != _DEFAULTS["centre"], "panel.edge"),
                ("offset", self.panel.strong, self.detection.offset != 0, "panel.strong"),
            ]
            for key, switch, changed, other in ignored:
                if switch is not None and changed:
                    value = getattr(self.detection, key)
                    got = value.name if isinstance(value, Part) else value
                    raise ValueError(f"detection.{key}: got {got!r}, allowed: with {other} = off")
            if not issubclass(detection.CENTRES[self.detection.centre.name], aggregation.SetRule):
                raise ValueError("detection.centre: allowed with a panel: a centre that is a weighted mean")

    def _check_attack(self) -> None:
        """Check that a data attack fits the kind of data, and that its options fit the attack."""
        attack, task = attacks.ATTACKS[self.attack.name], tasks.TASKS[self.data.name]
        if issubclass(attack, attacks.DataAttack) and not issubclass(task.kind, attack.kind):
            fitting = [name for name, entry in tasks.TASKS.items() if issubclass(entry.kind, attack.kind)]
            raise ValueError(
                f"attack: got {self.attack.name!r} with data {self.data.name!r}, allowed: with {', '.join(fitting)}"
            )
        when = self.byzantine_start, self.byzantine_period
        try:
            attacks.check_options(self.attack.build(), self.byzantine_level, *when, self.byzantine_faces)
        except InputError as problem:
            raise ValueError(str(problem)) from None

    @property
    def warm_up_steps(self) -> int:
        return self.resolved.warm_up_steps

    @property
    def methods(self) -> list[Method]:
        return self.method if isinstance(self.method, list) else [self.method]

    @property
    def label(self) -> str:
        """Short name of the method for tables: DSGD, BALANCE, BALANCE-DRSGD-ByMI, BALANCE-hardened-ByMI."""
        return self.resolved.label

    @property
    def digest(self) -> str:
        """Digest of this spec: equal specs, and no others, have equal digests."""
        return self.resolved.digest

    @property
    def folder_name(self) -> str:
        return self.resolved.folder_name

    @property
    def resolved(self) -> ResolvedSpec:
        """The resolved spec. Defaults of keys that older specs, digests and folders lack are left out."""
        values = self.model_dump(mode="json")
        for key, default in _LATER_DATA_KEYS.items():
            if values["data"].get(key) == default:
                del values["data"][key]
        if self.detection.threshold == _DEFAULTS["threshold"]:
            del values["detection"]["threshold"]
        if self.optimisation.method == _DEFAULTS["method"]:
            del values["optimisation"]["method"]
        elif decentralised_optimisers.OPTIMISERS[self.optimisation.method.name].adapts_first:
            values["optimisation"]["order"] = "adapt-then-combine"
        for part, key in ((values["warm_up"]["rule"], "f"), (values["detection"]["centre"], "f"), (values["warm_up"], "order")):
            if part.get(key, "") is None:
                del part[key]
        if self.weights == type(self).model_fields["weights"].default:
            del values["weights"]
        if self.redraw_every is None:
            del values["redraw_every"], values["redraw_graphs"]
        return ResolvedSpec(values)

    def expand(self) -> list[Spec]:
        """One spec per method; if the published method equals another of them, once."""
        values = self.model_dump(mode="json")
        specs = [
            read_spec(published(values)) if method == "published" else self.model_copy(update={"method": method})
            for method in self.methods
        ]
        return list({spec.digest: spec for spec in specs}.values())


_LATER_DATA_KEYS = {"optimum_spread": 0.0, "covariance_spread": 0.0, "feature_shift": "none", "smallest": 1.0}
_DEFAULTS: dict[str, Any] = {"centre": Detection().centre, "threshold": Detection().threshold, "method": Optimisation().method}


# Profiles: the keys that each name in `profile` sets. Keys that are given explicitly take precedence.


def under(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """`values` with the profile's settings for keys that are not given."""
    filled = dict(values)
    for key, preset in plan.PROFILES.get(profile, {}).items():
        given = filled.get(key, {})
        if isinstance(given, BaseModel):  # a section made in Python: the fields that were set
            given = filled[key] = given.model_dump(exclude_unset=True)
        if key not in filled or preset is None:
            filled.setdefault(key, preset)
        elif isinstance(given, dict):
            filled[key] = {**preset, **given}
    return filled


def over(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """`values` with the profile's settings in place of what is given."""
    changed = {**values, "profile": profile}
    for key, preset in plan.PROFILES.get(profile, {}).items():
        given = changed.get(key)
        given = given.model_dump(exclude_unset=True) if isinstance(given, BaseModel) else given
        # A section with settings of the profile keeps its other keys; one that the profile switches on or off is reset.
        changed[key] = {**given, **preset} if preset and isinstance(given, dict) else preset
    return changed


def published(values: dict[str, Any]) -> dict[str, Any]:
    """`values` of the whole method under profile "paper"; what is set beside that profile stays as it is."""
    whole = {**values, "method": "drsgd-bymi"}
    return whole if values.get("profile") == "paper" else over(whole, "paper")


def default_values() -> dict[str, Any]:
    """The values of `Spec()` with parts as a user would write them, to be changed before they are validated."""
    defaults = {name: field.default for name, field in Spec.model_fields.items()}
    plain = {name: value.model_dump(mode="json") if isinstance(value, Section) else value for name, value in defaults.items()}
    return over(plain, str(plain["profile"]))


def read_spec(values: dict[str, Any]) -> Spec:
    """A Spec from nested plain values; raises InputError, in one line that names the key."""
    return validated(Spec, values)
