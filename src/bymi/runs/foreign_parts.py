"""The parts that a spec names, and the source of those that are not bymi's own, as a part of a run's name.

A spec names its parts. What a name of bymi's own stands for is fixed by the version of bymi; what "module:Name", the name of
an entry point or a name that a user added to a table stands for is its source, so that a changed rule is not taken for the one
that made the results in a run folder.
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
from types import FunctionType
from typing import Any

from bymi import aggregation, attacks, datasets, detection
from bymi.core import topology
from bymi.core.errors import require
from bymi.core.named_parts import Table, full_name, is_import, read_shorthand
from bymi.runs.tasks import TASKS

_KNOWN = {"bymi", "torch", "numpy", "networkx", *sys.stdlib_module_names}
_WITHOUT_SOURCE = os.urandom(16).hex()  # such a part is another one in every process: nothing old is taken for its result
_PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset)


def foreign_source(values: Mapping[str, Any]) -> bytes:
    """A hash of the source of all parts of a resolved spec that are not bymi's own; empty without any.

    The source of a part is that of its class, of its bases, and of the functions, classes and constants that these name and
    that are not of bymi, torch, numpy, networkx or Python. What is reached in another way, such as through a module or a file,
    is not seen.
    """
    texts = {text for entry in _entries(values) for text in sources_of(entry)}
    return hashlib.sha256("\0".join(sorted(texts)).encode()).digest() if texts else b""


def refuse_imports(values: Any, where: str) -> None:
    """An InputError if any string in plain values is "module:Name", with or without parameters: that would run its code.

    For specs that may come from anybody, such as a file of sheets or the spec of a run folder. `where`: the key so far.
    """
    if isinstance(values, str):
        allowed = "a name without an import, or --allow-imports, which runs the code of that module"
        require(not is_import(read_shorthand(values)["name"]), where, values, allowed)
    elif isinstance(values, (dict, list)):
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            refuse_imports(value, f"{where}: {key}" if ": " not in where else f"{where}.{key}")


def _entries(values: Mapping[str, Any]) -> Iterator[Any]:
    """The classes of all parts of a spec."""
    for table, name in _named(values):
        if name in table:
            yield table[name]


def _named(values: Mapping[str, Any]) -> Iterator[tuple[Table[Any], str]]:
    """Table and name of each part of a resolved spec."""
    yield aggregation.RULES, values["warm_up"]["rule"]["name"]
    for key, table in (("centre", detection.CENTRES), ("scale", detection.SCALES), ("threshold", detection.THRESHOLDS)):
        if key in values["detection"]:
            yield table, values["detection"][key]["name"]
    yield topology.TOPOLOGIES, values["graph"]["name"]
    yield attacks.ATTACKS, values["attack"]["name"]
    yield TASKS, values["data"]["name"]
    if isinstance(partition := values["data"].get("partition"), str):
        yield datasets.PARTITIONS, full_name(read_shorthand(partition)["name"], datasets.ALIASES)


@cache
def sources_of(entry: Any) -> frozenset[str]:
    """Source texts of a class or function that is not bymi's own; read once, for a file may change while its old code runs."""
    found: dict[int, str] = {}
    waiting = [entry]
    while waiting:
        thing = waiting.pop()
        if id(thing) in found or (thing.__module__ or "bymi").partition(".")[0] in _KNOWN:
            continue
        found[id(thing)] = text = _text(thing)
        space = vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}
        used = {name: space[name] for name in _names(text) if name in space}
        waiting += [value for value in used.values() if isinstance(value, (type, FunctionType))]
        waiting += thing.__mro__ if isinstance(thing, type) else []
        found.update({id(value): f"{name} = {value!r}" for name, value in used.items() if isinstance(value, _PLAIN)})
    return frozenset(found.values())


def _text(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # defined where nothing is kept, such as by exec
        return f"{thing.__qualname__} {_WITHOUT_SOURCE}"


def _names(text: str) -> set[str]:
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
