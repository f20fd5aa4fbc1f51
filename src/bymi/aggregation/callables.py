"""Aggregators of other libraries, and plain functions, as rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bymi.aggregation.base import Rule
from bymi.aggregation.each_receiver import each_receiver
from bymi.core.errors import InputError, require, shown
from bymi.core.inbox import Inbox, Round

_PLAIN = bool | int | float | str | None
_ALLOWED = "a function of n vectors (a tensor [n, d], an array or a list) that returns a finite vector [d]"


@dataclass(frozen=True, eq=False)
class CallableRule(Rule):
    """What a callable makes of the vectors of N_i and i, one receiver after the other; the own vector comes first.

    `target`: an object with `aggregate(vectors)` or `__call__(vectors)`, or a function. `aggregate` gets a list of tensors [d],
    anything else a tensor [n, d]; if it refuses that with a TypeError, an array, then a list of arrays. A receiver that hears
    nobody keeps its vector. A result that is not a finite vector [d] is an InputError, as is any error of the callable.
    """

    target: object

    def __post_init__(self) -> None:
        super().__post_init__()
        require(callable(_function(self.target)), "rule", self.target, _ALLOWED)

    @property
    def name(self) -> str:
        """Name of the function or class, for labels."""
        return str(getattr(self.target, "__name__", type(self.target).__name__)).strip("<>")

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        output = inbox.own.clone()
        for receiver, _, messages in each_receiver(inbox):
            output[receiver] = _call(self.target, torch.cat([inbox.own[receiver, None], messages]), self.name)
        return output


def _function(target: Any) -> Any:
    method = getattr(target, "aggregate", None)
    return target if method is None or isinstance(target, type) else method


def _call(target: Any, vectors: Tensor, name: str) -> Tensor:
    """The callable's vector [d], in the type of the vectors [n, d]."""
    function = _function(target)
    forms: list[Callable[[], Any]] = [
        vectors.clone if function is target else lambda: [*vectors.clone()],
        lambda: vectors.numpy(force=True).copy(),
        lambda: [*vectors.numpy(force=True)],
    ]
    result: Any = None
    for number, form in enumerate(forms):
        try:
            result = function(form())
            break
        except TypeError as problem:
            if number == len(forms) - 1:
                raise InputError(f"rule: {name} raised TypeError: {problem}; allowed: {_ALLOWED}") from problem
        except Exception as problem:  # code of others may raise anything
            raise InputError(f"rule: {name} raised {type(problem).__name__}: {problem}; allowed: {_ALLOWED}") from problem
    try:
        vector = result.detach() if isinstance(result, Tensor) else torch.from_numpy(np.asarray(result, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"rule: {name} returned {type(result).__name__}, allowed: {_ALLOWED}") from None
    fits = vector.shape == vectors.shape[1:] and bool(torch.isfinite(vector).all())
    shown = (
        f"{name} returned shape {list(vector.shape)}" if vector.shape != vectors.shape[1:] else f"{name} returned NaN or Inf"
    )
    require(fits, "rule", shown, _ALLOWED)
    return vector.to(vectors)


def as_rule(given: Any) -> Any:
    """A callable as a rule; rules, names and everything else as they are, such as an attack given by mistake."""
    if isinstance(given, type):
        raise InputError(f"rule: got {shown(given)}, allowed: an instance of it, such as {given.__name__}()")
    if isinstance(given, (str, Rule)) or given is None or _is_other_part(given):
        return given
    return CallableRule(given) if callable(_function(given)) else given


def _is_other_part(given: Any) -> bool:
    """Whether an object is of a class of this library, or derived from one: attacks can be called, too."""
    return any(base.__module__.partition(".")[0] == "bymi" for base in type(given).__mro__)


class NamedCallable(Rule):
    """Base of rules made from classes and functions of other modules: a dataclass with the arguments of these."""

    source: ClassVar[Any] = None

    @cached_property
    def rule(self) -> CallableRule:
        """The object, or the function, as a rule."""
        if not isinstance(self.source, type):
            return CallableRule(self.source)
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]
        try:
            return CallableRule(self.source(**values))
        except Exception as problem:  # code of others may raise anything
            raise InputError(f"{self.source.__name__}: {problem}") from None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.rule  # which builds the object

    def combine(self, inbox: Inbox, round: Round) -> Tensor:
        return self.rule.combine(inbox, round)


@cache
def wrapped(name: str, source: Any) -> type[Rule]:
    """The class of rules for a class or function of another module: its arguments with plain defaults are the parameters."""
    require(callable(source), "rule", name, "a class or function that can be imported")
    fields: list[Any] = []
    if isinstance(source, type):
        for one in inspect.signature(source).parameters.values():
            plain = one.default is None or isinstance(one.default, (bool, int, float, str))
            if plain and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                kind: Any = type(one.default) if one.default is not None else _PLAIN
                fields.append((one.name, kind, field(default=one.default)))
    space = {"source": staticmethod(source), "__module__": source.__module__, "__doc__": source.__doc__ or f"{name}."}
    made: type[Rule] = make_dataclass(source.__name__, fields, bases=(NamedCallable,), namespace=space, frozen=True)
    return made
