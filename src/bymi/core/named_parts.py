"""Parts with a name (rules, attacks, topologies, ...): read from text, looked up in a table, built and checked."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import operator
import re
import tomllib
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bymi.core.errors import BymiError, InputError, did_you_mean, first_line, is_integer, is_number, require

Entry = TypeVar("Entry")

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
_WORDS = {
    ("ge",): "{ge} or more",
    ("gt",): "above {gt}",
    ("ge", "le"): "{ge} to {le}",
    ("ge", "lt"): "{ge} up to, not including, {lt}",
    ("gt", "le"): "above {gt}, up to {le}",
    ("gt", "lt"): "strictly between {gt} and {lt}",
}

_IMPORTED = re.compile(r"\s*((?:[\w-]+\+)*[A-Za-z_][\w.]*:[A-Z_]\w*)\s*")  # module:Name, or wrapper+module:Name
_SMALL = re.compile(r"\s*((?:[\w-]+\+)*[A-Za-z_][\w.]*:[a-z]\w*)\s*(:.*)?")  # a function whose name has no capital letter


class Table(dict[str, type[Entry]]):
    """Classes of one `kind` by name: bymi's own, those of installed packages, and any that can be imported.

    A lookup tries, in this order, the listed names, the entry points of `group`, and "module:Name" (a class, so Name begins
    with a capital letter). The last one imports the module, which runs its code. Iteration yields listed names only.
    """

    def __init__(self, kind: Any, entries: Mapping[str, type[Entry]], group: str | None = None) -> None:
        super().__init__(entries)
        self.kind, self.group = kind, group

    def __missing__(self, name: str) -> type[Entry]:
        points = () if self.group is None or is_import(name) else importlib.metadata.entry_points(group=self.group, name=name)
        if not points and not is_import(name):
            raise KeyError(name)
        try:
            module, _, attribute = name.partition(":")
            entry = next(iter(points)).load() if points else getattr(importlib.import_module(module), attribute)
        except BymiError:
            raise
        except Exception as problem:  # the code of the module may raise anything
            why = f"{type(problem).__name__}: {first_line(problem)}"
            raise InputError(f"got {name!r}, allowed: a class that can be imported ({why})") from None
        if isinstance(entry, type) and issubclass(entry, self.kind) and dataclasses.is_dataclass(entry):
            return entry  # type: ignore[return-value]
        return self.adapt(name, entry)

    def adapt(self, name: str, entry: Any) -> type[Entry]:
        """A class of this kind for something else that a lookup imported."""
        raise InputError(f"got {name!r}, allowed: a dataclass derived from {_kinds(self.kind)}")

    def __contains__(self, name: object) -> bool:
        """Whether a lookup succeeds. It imports what `name` refers to."""
        if super().__contains__(name):
            return True
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False

    def installed(self) -> list[str]:
        """Sorted names of the entry points of the group."""
        return [] if self.group is None else sorted({point.name for point in importlib.metadata.entry_points(group=self.group)})


def is_import(name: object) -> bool:
    """Whether a name has the form "module:Name", so that looking it up runs the code of a module."""
    return isinstance(name, str) and _IMPORTED.fullmatch(name) is not None


def read_shorthand(text: str) -> dict[str, Any]:
    """A part from text: "ipm:a=2.0" gives {"name": "ipm", "a": 2.0}, "module:Name:k=3" {"name": "module:Name", "k": 3}."""
    imported = _IMPORTED.match(text)
    if imported is not None and text[imported.end() :][:1] in ("", ":"):
        name, rest = imported[1], text[imported.end() + 1 :]
    else:
        name, _, rest = text.partition(":")
    part: dict[str, Any] = {"name": name.strip()}
    for piece in rest.split(",") if rest else []:
        key, _, value = piece.partition("=")
        part[key.strip()] = read_value(value.strip())
    return part


def read_value(text: str) -> Any:
    """A value from TOML; text that is not TOML stays a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also an integer of thousands of digits, which Python refuses to read
        return text


def require_capital(text: object, table: Mapping[str, Any]) -> None:
    """Raise an InputError if a text is "module:name" with a small letter, which is not taken for an import."""
    small = _SMALL.fullmatch(text) if isinstance(text, str) else None
    if small is not None and small[1].partition(":")[0].lower().rpartition("+")[2] not in table:
        raise InputError(f"got {small[1]!r}, allowed: module:Name, whose Name begins with a capital letter or an underscore")


def full_name(name: str, aliases: Mapping[str, str]) -> str:
    """The name in a table for a name written by a user: aliases resolved, lower case but for an import."""
    if is_import(name):
        wrappers, plus, imported = name.strip().rpartition("+")
        return wrappers.lower() + plus + imported
    return aliases.get(name.lower(), name.lower())


def build_part(table: Mapping[str, type[Any]], part: Mapping[str, Any]) -> Any:
    """An instance of a table's entry: {"name": "ios", "share": 0.3} gives IOS(share=0.3)."""
    try:
        return table[part["name"]](**{key: value for key, value in part.items() if key != "name"})
    except (KeyError, TypeError) as problem:
        raise InputError(f"{dict(part)}: not one of {', '.join(table)} with its parameters ({problem})") from None


def part_by_name(key: str, value: Any, kind: Any, table: Mapping[str, type[Any]], aliases: Mapping[str, str]) -> Any:
    """The part that a string such as "ios" or "ios:share=0.3" names, or the value itself if it is an instance of `kind`.

    Anything else, an unknown name or an unknown parameter is an InputError that names `key`, the argument.
    """
    if not isinstance(value, str):
        require(isinstance(value, kind), key, value, f"{_describe(kind)}, or a name: {', '.join(table)}")
        return value
    part = read_shorthand(value)
    part["name"] = name = full_name(part["name"], aliases)
    try:
        require_capital(value, {**table, **aliases})
        known_name = name in table
    except InputError as problem:
        raise InputError(f"{key}: {problem}") from None
    require(known_name, key, value, f"{', '.join(table)}{did_you_mean(name, table)}")
    if dataclasses.is_dataclass(table[name]):
        known = [field.name for field in dataclasses.fields(table[name])]
        allowed = f"{name} with {', '.join(known)}" if known else f"{name}, which has no parameters"
        require(part.keys() <= {"name", *known}, key, value, allowed)
    try:
        return build_part(table, part)
    except InputError as problem:
        raise InputError(f"{key}: got {value!r} ({problem})") from None


def bounded(default: Any = dataclasses.MISSING, **bounds: float) -> Any:
    """A dataclass field with bounds on its numbers: a lower one (ge or gt), optionally an upper one (le or lt).

    `check_fields` enforces them, and spec keys are derived with them.
    """
    return dataclasses.field(default=default, metadata=bounds)


def check_fields(part: Any) -> None:
    """Raise an InputError unless every field of a dataclass matches its annotation and bounds.

    A float field takes any finite real number, an int field any integer; booleans are neither. Literals, unions and classes are
    checked, other annotations are not. Call it first in `__post_init__`: later comparisons can then rely on the types.
    """
    for name, kind in _annotations(part.__class__).items():
        value = getattr(part, name)
        require(_fits(value, kind), name, value, _describe(kind))
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.metadata and value is not None and not isinstance(value, str):
            within = all(_COMPARE[name](value, bound) for name, bound in field.metadata.items())
            require(within, field.name, value, _WORDS[tuple(field.metadata)].format(**field.metadata))


class Checked:
    """Base of dataclasses whose fields are checked at construction; an own `__post_init__` must call this one."""

    def __post_init__(self) -> None:
        check_fields(self)


@cache
def _annotations(entry: type[Any]) -> dict[str, Any]:
    try:
        hints = get_type_hints(entry)
    except NameError:  # annotations of a class defined within a function
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(entry)}


def _kinds(kind: Any) -> str:
    return " or ".join(one.__name__ for one in get_args(kind) or (kind,))


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(kind))
    if get_origin(kind) is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(kind))
    if kind is float:
        return is_number(value)
    if kind is int:
        return is_integer(value)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or get_origin(kind) is not None:
        return True
    return isinstance(value, kind)


def _describe(kind: Any) -> str:
    """Text that says what an annotation allows."""
    words = {float: "a finite number", int: "an integer", bool: "True or False", str: "a string", types.NoneType: "None"}
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(kind)).replace(" or an instance of", " or")
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    return words.get(kind) or f"an instance of {getattr(kind, '__name__', kind)}"
