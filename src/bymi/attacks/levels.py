"""Where in the protocol an attack acts: its level, and the parts that each level is made of."""

from __future__ import annotations

from typing import Literal

Level = Literal["gradient", "training", "pair", "message", "tracker"]
"""gradient: gradients used in training and both detection halves; training: those of training alone, with true halves;
pair: detection halves alone; message: parameters as they are sent; tracker: tracker vectors as they are sent."""

Part = Literal["training", "first half", "second half", "message", "tracker"]

PARTS: dict[Level, frozenset[Part]] = {
    "gradient": frozenset({"training", "first half", "second half"}),
    "training": frozenset({"training"}),
    "pair": frozenset({"first half", "second half"}),
    "message": frozenset({"message"}),
    "tracker": frozenset({"tracker"}),
}

_TOPICS: dict[str, Part] = {"gradient": "training", "parameters": "message", "premix": "tracker", "tracker": "tracker"}
_FOR = " for "


def part_of(topic: str) -> Part | None:
    """The part of the protocol that a topic belongs to; halves may have more words around them.

    >>> part_of("first half for 17"), part_of("tracker"), part_of("anything else")
    ('first half', 'tracker', None)
    """
    halves: tuple[Part, Part] = ("first half", "second half")
    return next((half for half in halves if half in topic), _TOPICS.get(topic))


def asker_of(topic: str) -> int | None:
    """The node for whom an answer is meant, if the topic names one.

    >>> asker_of("first half for 17"), asker_of("first half")
    (17, None)
    """
    _, found, number = topic.rpartition(_FOR)
    return int(number) if found and number.isdigit() else None
