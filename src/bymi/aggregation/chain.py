"""Wrappers and a rule in a row: `Chain(NNM(f=5), Krum(f=5))`, or "nnm+krum:f=5" by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor

from bymi.aggregation.base import NeighbourhoodRule, Order, Rule
from bymi.aggregation.bucketing import Bucketing
from bymi.aggregation.callables import as_rule, wrapped
from bymi.aggregation.clip_before_rule import Clipping
from bymi.aggregation.each_receiver import each_receiver
from bymi.aggregation.gradient_estimators import LocalGradient
from bymi.aggregation.momentum import Momentum
from bymi.aggregation.nnm import NNM
from bymi.aggregation.wrapper import Points, Wrapper, applied, combined
from bymi.core.errors import InputError, require
from bymi.core.inbox import Inbox, Round
from bymi.core.named_parts import Table

WRAPPERS: dict[str, type[Wrapper]] = {"nnm": NNM, "bucketing": Bucketing, "clipping": Clipping, "momentum": Momentum}


@dataclass(frozen=True, init=False)
class Chain(Rule):
    """A rule on vectors that went through wrappers, in the order given: `Chain(Momentum(), NNM(f=5), Krum(f=5))`.

    The rule may be an aggregator of another library or a function, see `CallableRule`; each part has parameters of its own.
    Rules by weights are computed from inner products. For others, the vectors of one receiver after the other are formed.
    """

    parts: tuple[Wrapper | Rule, ...]

    def __init__(self, *parts: Any) -> None:
        parts = (*parts[:-1], *map(as_rule, parts[-1:]))
        fits = len(parts) > 0 and isinstance(parts[-1], Rule) and all(isinstance(part, Wrapper) for part in parts[:-1])
        require(fits, "Chain", parts, f"wrappers ({', '.join(WRAPPERS)}), then one rule")
        object.__setattr__(self, "parts", parts)

    @property
    def rule(self) -> Rule:
        """The rule at the end."""
        rule = self.parts[-1]
        assert isinstance(rule, Rule)
        return rule

    @property
    def wrappers(self) -> list[Wrapper]:
        """Those that change vectors."""
        return [part for part in self.parts if isinstance(part, Wrapper) and not isinstance(part, Momentum)]

    @property
    def order(self) -> Order:  # type: ignore[override]
        return self.rule.order

    @property
    def local_gradient(self) -> LocalGradient:
        estimate = self.rule.local_gradient
        for part in self.parts:
            if isinstance(part, Momentum):
                estimate = part.around(estimate)
        return estimate

    def descent(self, gradient: Tensor, round: Round) -> Tensor:
        return self.rule.descent(gradient, round)

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        if not self.wrappers:
            return self.rule.combine(inbox, round)
        if isinstance(self.rule, NeighbourhoodRule):
            hoods = inbox.neighbourhoods("products")
            return inbox.mix(inbox.mixture((hood, self._weights(Points.of(inbox, hood, round), round)) for hood in hoods))
        return self._one_by_one(inbox, round)

    def _weights(self, points: Points, round: Round) -> Tensor:
        """Weights [b, n] on the vectors themselves."""
        assert isinstance(self.rule, NeighbourhoodRule)
        points = applied(self.wrappers, points, round)
        weight = self.rule.weights_at(points.hood(), points.mixing, round)
        return weight if points.sums is None else (weight[:, None, :] @ points.sums).squeeze(1)

    def _one_by_one(self, inbox: Inbox, round: Round) -> Tensor:
        output = inbox.own.clone()
        for receiver, places, messages in each_receiver(inbox):
            one = torch.tensor([receiver], device=messages.device)
            moment = dataclasses.replace(
                round,
                losses=_losses_of(round, one),
                nodes=one if round.nodes is None else round.nodes[one],
            )
            lone = _alone(inbox, receiver, places, messages)
            (hood,) = lone.neighbourhoods("products")
            assert hood.index is not None
            rows, mixing = combined(
                applied(self.wrappers, Points.of(lone, hood, moment), moment), lone.rows.vectors[hood.index[0]]
            )
            share = mixing / mixing.sum()
            seen = Inbox.receive(
                rows[:1],
                rows[1:],
                expected=torch.ones_like(share[None, 1:], dtype=torch.bool),
                weight=share[None, 1:],
                self_weight=share[:1],
            )
            output[receiver] = self.rule.combine(seen, moment)[0]
        return output

    def named(self) -> tuple[str, dict[str, Any]]:
        """Name and parameters in a spec; parts that share a parameter must agree on it, or all have defaults of their own."""
        values: dict[str, Any] = {}
        kinds: list[Any] = [type(part) for part in self.parts]
        for name in dict.fromkeys(one.name for kind in kinds for one in dataclasses.fields(kind)):
            sharing = [(part, one) for part, kind in zip(self.parts, kinds, strict=True) for one in dataclasses.fields(kind)]
            found = [(getattr(part, name), one.default) for part, one in sharing if one.name == name]
            alike = all(value == found[0][0] for value, _ in found)
            fits = alike or all(value == default for value, default in found)
            require(fits, name, [value for value, _ in found], "one value for all parts of a chain that a spec names")
            values[name] = found[0][0] if alike else None
        names = {kind: name for name, kind in WRAPPERS.items()}
        rules = {kind: name for name, kind in _rules().items()}
        require(kinds[-1] in rules, "rule", self.rule, "a listed rule at the end of a chain")
        return "+".join([*(names[kind] for kind in kinds[:-1]), rules[kinds[-1]]]), values


def _losses_of(round: Round, receiver: Tensor) -> Any:
    if round.losses is None:
        return None
    losses = round.losses
    return lambda vectors, wanted, receivers=None: losses(vectors, wanted, receiver)


def _alone(inbox: Inbox, receiver: int, places: Tensor, messages: Tensor) -> Inbox:
    """The inbox of one receiver, from its messages [n, D] at `places` [n]."""
    numbers = inbox.messages_at(torch.tensor([receiver], device=places.device), places[None])[0]
    return Inbox.receive(
        inbox.own[receiver, None],
        messages,
        expected=torch.ones(1, len(places), dtype=torch.bool, device=messages.device),
        weight=inbox.weight[receiver, places][None],
        self_weight=inbox.self_weight[receiver, None],
        senders=numbers if inbox.senders is None else inbox.senders[numbers],
    )


class NamedChain(Rule):
    """Base of chains by name: a dataclass with the parameters of all parts. Those that share one get the same value of it.

    Where their defaults differ the chain's is None, which means each part's own: "nnm+bulyan" has share 0.35 in NNM and 0.24 in
    Bulyan, "nnm+bulyan:share=0.2" has 0.2 in both. A `Chain` in Python may have different values.
    """

    kinds: ClassVar[tuple[type[Any], ...]] = ()

    @cached_property
    def chain(self) -> Chain:
        """The chain itself."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}  # type: ignore[arg-type]
        return Chain(*(kind(**_given(kind, values)) for kind in self.kinds))

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.chain  # which checks the parameters

    @property
    def local_gradient(self) -> LocalGradient:
        return self.chain.local_gradient

    def descent(self, gradient: Tensor, round: Round) -> Tensor:
        return self.chain.descent(gradient, round)

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        return self.chain.combine(inbox, round)


class RuleTable(Table[Rule]):
    """Rules by name, and chains of wrappers and a rule as "nnm+krum"."""

    def __missing__(self, name: str) -> type[Rule]:
        *wrappers, last = name.split("+") if isinstance(name, str) else [name]
        if not wrappers:
            return super().__missing__(name)
        unknown = [one for one in wrappers if one not in WRAPPERS]
        if unknown or last not in self:
            allowed = f"wrappers ({', '.join(WRAPPERS)}) and then a rule or module:Name, joined by +"
            raise InputError(f"got {name!r}, allowed: {allowed}")
        return _named_chain(name, (*(WRAPPERS[one] for one in wrappers), self[last]))

    def adapt(self, name: str, entry: Any) -> type[Rule]:
        called = callable(entry) if not isinstance(entry, type) else "__call__" in dir(entry) or hasattr(entry, "aggregate")
        if not called or (entry.__module__ or "").partition(".")[0] == "bymi" or issubclass(type(entry), Rule):
            return super().adapt(name, entry)
        return wrapped(name, entry)


def _given(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one part of a chain: its fields in `values`; without those that are None for its own default."""
    fields = {one.name: one.default for one in dataclasses.fields(kind)}
    return {name: values[name] for name, default in fields.items() if values[name] is not None or default is None}


@cache
def _named_chain(name: str, kinds: tuple[type[Any], ...]) -> type[Rule]:
    fields: dict[str, tuple[str, Any, Any]] = {}
    for kind in kinds:
        hints = get_type_hints(kind)
        for one in dataclasses.fields(kind):
            _, hint, first = fields.get(one.name, ("", hints[one.name], one))
            default: dict[str, Any] = {"default": None}  # each part's own
            if (alike := first.default == one.default) and first.default_factory is not dataclasses.MISSING:
                default = {"default_factory": first.default_factory}
            elif alike:
                default = {"default": first.default}
            value = field(kw_only=True, metadata=first.metadata, **default)
            fields[one.name] = (one.name, hint if alike else hint | None, value)
    space = {"kinds": kinds, "order": kinds[-1].order, "__module__": __name__, "__doc__": f"The chain {name}."}
    if kinds[-1].__module__.partition(".")[0] != "bymi":  # so that run folders are named by its source
        space |= {"__module__": kinds[-1].__module__, "__qualname__": kinds[-1].__qualname__}
    made: type[Rule] = make_dataclass(name, fields.values(), bases=(NamedChain,), namespace=space, frozen=True)
    return made


def _rules() -> Mapping[str, type[Rule]]:
    from bymi.aggregation import RULES

    return RULES
