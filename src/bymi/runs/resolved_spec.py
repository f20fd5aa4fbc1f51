"""Resolved specs: all settings of a run as plain values.

Specs are validated by pydantic once, where a person writes them. From here on only torch, numpy and networkx are needed, so
that a file of resolved specs runs on a bare machine with an accelerator.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bymi.core import files
from bymi.core.errors import InputError
from bymi.core.graph import EDGE_FILE_LIMIT
from bymi.runs.foreign_source_digests import foreign_source

LARGEST_INTEGER, LARGEST_NUMBER, LARGEST_SEED = 10**9, 1e100, 2**63 - 1
"""Bounds of all integers and numbers in a spec that have no closer ones, and of the seed; their squares are finite."""

_SHEETS_LIMIT = 256 * files.MEBIBYTE
Made = TypeVar("Made")

_KEYS = {
    *("method", "seed", "steps", "nodes", "graph", "data", "attack", "warm_up", "detection", "panel", "watch", "optimisation"),
    *("byzantine_ratio", "byzantine_mixing", "byzantine_pruning", "byzantine_level", "byzantine_start", "byzantine_period"),
    *("byzantine_faces", "byzantine_placement", "record_every", "alone", "stop"),
}


@dataclass(frozen=True, eq=False)
class ResolvedSpec:
    """All keys of a spec with one method, resolved, as JSON values."""

    values: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def method(self) -> str:
        method = self.values["method"]
        return str(method[0] if isinstance(method, list) else method)

    @property
    def warm_up_steps(self) -> int:
        given = self.values["warm_up"]["steps"]
        return max(1, self.values["steps"] // 10) if given is None else int(given)

    @property
    def label(self) -> str:
        """Short name of the method for tables: DSGD, BALANCE, BALANCE-DRSGD-ByMI for the published detection.

        With a panel BALANCE-hardened-ByMI; without one, but with gradients at the receiver's point, BALANCE-receiver-ByMI. An
        optimiser other than DRSGD is named: BALANCE-FROST-ByMI, BALANCE-hardened-FROST-ByMI.
        """
        part = self.values["warm_up"]["rule"]
        rule = str(part.get("label", re.sub(r"[^+]*:", "", part["name"]))).upper()  # without modules
        receiver = self.values["detection"]["point"] == "receiver"
        method = self.values["optimisation"].get("method", {"name": "drsgd"})["name"].rpartition(":")[2].upper()
        kind = "hardened" if self.values["panel"] is not None else "receiver" if receiver else ""
        whole = "-".join(word for word in (kind, "" if kind and method == "DRSGD" else method) if word)
        names = {"dsgd": "DSGD", "rule": rule, "published": f"{rule}-{method}-ByMI", "drsgd-bymi": f"{rule}-{whole}-ByMI"}
        return str(names[self.method])

    @property
    def remark(self) -> str | None:
        """One line on a step size that the cap will shorten in every round; None without one."""
        how = self.values["optimisation"]
        size, most = how["step_size"], how["max_local_step"]
        if self.method in ("dsgd", "rule") or how["convention"] == "paper" or isinstance(size, str) or size <= most:
            return None
        above = f"optimisation.step_size {size:g} is above optimisation.max_local_step {most:g}"
        return f"{self.label}: {above}, which steps are shortened to; set the latter, too, for longer steps"

    @property
    def folder_name(self) -> str:
        """Name of the run folder: the same spec finds it again."""
        return f"{self.label.lower()}-seed{self.values['seed']}-{self.digest}"

    @property
    def digest(self) -> str:
        """Digest of this spec: equal specs, and no others, have equal digests.

        With parts of the user's own, it also depends on their source.
        """
        text = json.dumps(self.values, sort_keys=True)
        return hashlib.sha256(text.encode() + self._graph_file() + foreign_source(self.values)).hexdigest()[:10]

    def _graph_file(self) -> bytes:
        """Content of the edge file, if there is one: other edges under the same name are another experiment."""
        path = self.values["graph"].get("path")
        if path is None or not Path(path).is_file():
            return b""
        return files.read_bytes(Path(path), limit=EDGE_FILE_LIMIT)


def make(kind: type[Made], values: Mapping[str, Any]) -> Made:
    """An object from plain values that fit its annotations; raises InputError with the key otherwise."""
    require_types(values, get_type_hints(kind))
    return kind(**values)


def require_types(values: Mapping[str, Any], hints: Mapping[str, Any], before: str = "") -> None:
    """Raise InputError with the key if a value does not fit its annotation; keys without one are ignored."""
    for key, value in values.items():
        if key in hints and not fits(value, hints[key]):
            allowed = getattr(hints[key], "__name__", str(hints[key]))
            raise InputError(f"{before}{key}: got {repr(value)[:60]}, allowed: {allowed.replace('typing.', '')}")


def fits(value: object, hint: Any) -> bool:
    """Whether a plain value is of an annotated type and, if a number, within bounds. A bool is not a number."""
    if hint in (int, float):
        if type(value) is int:  # an integer given for a float stays one, so its square must be finite, too
            return abs(value) <= LARGEST_INTEGER
        return hint is float and isinstance(value, float) and abs(value) <= LARGEST_NUMBER
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(hint))
    return hint not in (bool, str, dict, types.NoneType) or type(value) is hint


def write_resolved_specs(path: Path, specs: list[ResolvedSpec]) -> None:
    """Write a file of resolved specs, for `python -m bymi.runs`."""
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"cannot write {path}: {'Is a directory' if path.is_dir() else 'No such file or directory'}")
    files.write_bytes(path, (json.dumps([spec.values for spec in specs]) + "\n").encode())


def read_resolved_specs(path: Path) -> list[ResolvedSpec]:
    """The resolved specs of a file, each with all keys. Their values are checked by `run_setup.check_resolved_spec`."""
    content = files.read_bytes(path, limit=_SHEETS_LIMIT)
    try:
        listed = files.parse_json(content)
        if not isinstance(listed, list) or not all(isinstance(one, dict) and set(one) >= _KEYS for one in listed):
            raise ValueError(f"expected a list of tables with the keys {', '.join(sorted(_KEYS))}")
        return [ResolvedSpec(values) for values in listed]
    except (ValueError, TypeError) as problem:
        raise InputError(f"{path} is not a file of resolved specs: {problem}") from None
