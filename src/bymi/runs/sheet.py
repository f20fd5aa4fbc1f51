"""What a run needs to know, as plain values: a spec that was checked and written down.

Specs are checked by pydantic, once, where a person writes them. From here on nothing outside of torch, numpy and networkx is
needed, so that a file of sheets can be run on a bare machine with an accelerator.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bymi.errors import InputError
from bymi.runs.foreign import foreign_source

_KEYS = {
    *("method", "seed", "steps", "nodes", "graph", "data", "attack", "warm_up", "detection", "panel", "watch", "optimisation"),
    *("byzantine_ratio", "byzantine_mixing", "byzantine_pruning", "byzantine_level", "byzantine_start", "byzantine_period"),
    *("byzantine_faces", "byzantine_placement", "record_every", "alone", "stop"),
}


@dataclass(frozen=True, eq=False)
class Sheet:
    """All keys of a spec with one method, resolved, as JSON has them."""

    values: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def method(self) -> str:
        method = self.values["method"]
        return str(method[0] if isinstance(method, list) else method)

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    @property
    def steps(self) -> int:
        return int(self.values["steps"])

    @property
    def warm_up_steps(self) -> int:
        given = self.values["warm_up"]["steps"]
        return max(1, self.steps // 10) if given is None else int(given)

    @property
    def label(self) -> str:
        """A short name of the method for tables: DSGD, BALANCE, BALANCE-DRSGD-ByMI for the published detection.

        With a panel BALANCE-hardened-ByMI; without one, but with gradients at the receiver's point, BALANCE-receiver-ByMI.
        """
        rule = self.values["warm_up"]["rule"]["name"].upper()
        receiver = self.values["detection"]["point"] == "receiver"
        whole = "hardened" if self.values["panel"] is not None else "receiver" if receiver else "DRSGD"
        names = {"dsgd": "DSGD", "rule": rule, "published": f"{rule}-DRSGD-ByMI", "drsgd-bymi": f"{rule}-{whole}-ByMI"}
        return str(names[self.method])

    @property
    def digest(self) -> str:
        """A name for exactly this spec: equal specs have equal digests, and nothing else does.

        With parts of the user's own in the tables, it also depends on the source of these.
        """
        text = json.dumps(self.values, sort_keys=True)
        return hashlib.sha256(text.encode() + self._graph_file() + foreign_source(self.values)).hexdigest()[:10]

    def _graph_file(self) -> bytes:
        """What is in the edge file, if there is one: the same name with other edges is another experiment."""
        path = self.values["graph"].get("path")
        return Path(path).read_bytes() if path is not None and Path(path).is_file() else b""


def write_sheets(path: Path, sheets: list[Sheet]) -> None:
    """A file of sheets, for `python -m bymi.runs`."""
    try:
        path.write_text(json.dumps([sheet.values for sheet in sheets]) + "\n")
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from None


def read_sheets(path: Path) -> list[Sheet]:
    """The sheets of a file; they were checked when they were written."""
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, list) or not all(isinstance(one, dict) and set(one) >= _KEYS for one in found):
            raise ValueError(f"expected a list of tables with the keys {', '.join(sorted(_KEYS))}")
        return [Sheet(values) for values in found]
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    except (ValueError, TypeError) as problem:
        raise InputError(f"{path} is not a file of sheets: {problem}") from None
