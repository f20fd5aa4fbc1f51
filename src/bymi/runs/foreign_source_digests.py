"""Source digests of the parts of a spec that are not bymi's own, as a component of a run's name.

A spec names its parts. The version of bymi fixes what its own names mean; for "module:Name", an entry point or a name that a
user added to a table, the source does. So results of a changed rule are not confused with those in an old run folder.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from bymi import aggregation, attacks, datasets, detection
from bymi.aggregation.callables import NamedCallable
from bymi.aggregation.chain import NamedChain
from bymi.core import topology
from bymi.core.errors import require
from bymi.core.named_parts import Table, full_name, is_import, read_shorthand
from bymi.runs.tasks import TASKS
from bymi.training.decentralised_optimisers import OPTIMISERS

_KNOWN = {"bymi", "torch", "numpy", "networkx", *sys.stdlib_module_names}
_WITHOUT_SOURCE = os.urandom(16).hex()  # a part without source differs in every process: no stored result is taken for it
_PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset)


def foreign_source(values: Mapping[str, Any]) -> bytes:
    """SHA-256 of the source of all parts of a resolved spec that are not bymi's own; empty if there are none.

    The source of a part is that of its class, its bases, and the functions, classes and constants that these name, unless they
    belong to bymi, torch, numpy, networkx or Python. What is reached in another way, such as through a module or a file, is not
    covered.
    """
    texts = {text for entry in _entries(values) for text in sources_of(entry)}
    return hashlib.sha256("\0".join(sorted(texts)).encode()).digest() if texts else b""


def refuse_imports(values: Any, where: str) -> None:
    """Raise InputError if any string in plain values is "module:Name", with or without parameters: that would run its code.

    For specs from untrusted sources, such as a file of resolved specs or the spec of a run folder. `where`: the key so far.
    """
    if isinstance(values, str):
        allowed = "a name without an import, or --allow-imports, which runs the code of that module"
        require(not is_import(read_shorthand(values)["name"]), where, values, allowed)
    elif isinstance(values, (dict, list)):
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            refuse_imports(value, f"{where}: {key}" if ": " not in where else f"{where}.{key}")


def _entries(values: Mapping[str, Any]) -> Iterator[Any]:
    """The class of each part of a spec."""
    for table, name in _named(values):
        if name in table:
            yield table[name]


def _named(values: Mapping[str, Any]) -> Iterator[tuple[Table[Any], str]]:
    """Table and name of each part of a resolved spec."""
    yield aggregation.RULES, values["warm_up"]["rule"]["name"]
    for key, table in (("centre", detection.CENTRES), ("scale", detection.SCALES), ("threshold", detection.THRESHOLDS)):
        if key in values["detection"]:
            yield table, values["detection"][key]["name"]
    if "method" in values["optimisation"]:
        yield OPTIMISERS, values["optimisation"]["method"]["name"]
    yield topology.TOPOLOGIES, values["graph"]["name"]
    yield attacks.ATTACKS, values["attack"]["name"]
    yield TASKS, values["data"]["name"]
    if isinstance(partition := values["data"].get("partition"), str):
        yield datasets.PARTITIONS, full_name(read_shorthand(partition)["name"], datasets.ALIASES)


@cache
def sources_of(entry: Any) -> frozenset[str]:
    """Source texts of a class or function that is not bymi's own; cached, since a file may change while its old code runs."""
    texts: dict[int, str] = {}
    for thing, text, used in _reached(entry):
        texts[id(thing)] = text
        texts.update({id(value): f"{name} = {_shown(value)}" for name, value in used.items() if isinstance(value, _PLAIN)})
    return frozenset(texts.values())


def globals_of(entry: Any) -> dict[str, Any]:
    """Global variables that a class or function of others and what it calls name, by module and name, as they are now."""
    code = (type, FunctionType, ModuleType)
    found: dict[str, Any] = {}
    for thing, _, used in _reached(entry):
        found |= {f"{thing.__module__}.{name}": value for name, value in used.items() if not isinstance(value, code)}
    return dict(sorted(found.items()))


def _reached(entry: Any) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """A class or function and all that it names, but for known modules: each with its source and the globals that it names."""
    seen: set[int] = set()
    waiting = [_written(entry)]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or (thing.__module__ or "bymi").partition(".")[0] in _KNOWN:
            continue
        seen.add(id(thing))
        text = _text(thing)
        space = vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}
        used = {name: space[name] for name in _names(thing, text) if name in space}
        waiting += [value for value in used.values() if isinstance(value, (type, FunctionType))]
        waiting += thing.__mro__ if isinstance(thing, type) else []
        yield thing, text, used


def _written(entry: Any) -> Any:
    """The class or function that a user wrote, behind a class that was made of it for a spec."""
    if isinstance(entry, type) and issubclass(entry, NamedChain):
        return _written(entry.kinds[-1])
    return entry.source if isinstance(entry, type) and issubclass(entry, NamedCallable) and entry.source else entry


@cache
def _text(thing: Any) -> str:
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):  # defined where no source is kept, such as by exec
        return f"{thing.__qualname__} {_WITHOUT_SOURCE}"
    # The source of a lambda is the line that it is on, with all that is there.
    return text + "".join(map(_instructions, _codes(thing.__code__))) if _is_lambda(thing) else text


def _is_lambda(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and thing.__name__ == "<lambda>"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the comprehensions and functions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _instructions(code: CodeType) -> str:
    constants = [_shown(one) for one in code.co_consts if not isinstance(one, CodeType)]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _shown(constant: object) -> str:
    # The order of a set of texts differs from process to process.
    return f"frozenset({sorted(map(repr, constant))})" if isinstance(constant, frozenset) else repr(constant)


def _names(thing: Any, text: str) -> set[str]:
    if _is_lambda(thing):
        return {name for code in _codes(thing.__code__) for name in code.co_names}
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
