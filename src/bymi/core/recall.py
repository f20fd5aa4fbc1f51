"""Results that are made once for the same objects: successive rounds have the same arcs and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

_KEPT = 4  # results per name


class Recall:
    """Remembers what was made of the last few objects, which are compared by identity and must not be changed."""

    def __init__(self) -> None:
        self._made: dict[str, list[tuple[tuple[object, ...], Any]]] = {}

    def __call__(self, name: str, of: tuple[object, ...], make: Callable[[], T]) -> T:
        """The result of `make`, which depends on the objects `of` and on nothing else that may differ."""
        made = self._made.get(name, [])
        for known, value in made:
            if all(one is other for one, other in zip(known, of, strict=True)):
                return cast(T, value)
        value = make()
        self._made[name] = [*made[1 - _KEPT :], (of, value)]
        return value
