"""The node file: what the owner of one node sets, for this node alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bymi.core.errors import require
from bymi.core.named_parts import Checked, bounded
from bymi.node.roster import from_table, parse_file, require_endpoint, toml_table

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")


@dataclass(frozen=True)
class NodeFile(Checked):
    """Settings of one node. Paths are relative to the file.

    `key`: folder that `bymi node keygen` made. `state`: folder for checkpoints, logs and the model. `listen`: where neighbours
    connect to. `status`: loopback address of metrics and the live page. `data`, `held_out`, `model`, `loss`: see `own_data`.
    `clip`, `noise`: norm to which own gradients are clipped, and noise added to them as a multiple of it.
    """

    roster: str
    key: str
    data: str | dict[str, str]
    model: str
    listen: str
    state: str = "state"
    status: str = "127.0.0.1:0"
    held_out: str | dict[str, str] | None = None
    loss: str = "cross-entropy"
    checkpoint_every: int = bounded(10, ge=1)
    evaluate_every: int = bounded(10, ge=1)
    clip: float | None = bounded(None, gt=0)
    noise: float = bounded(0.0, ge=0)
    threads: int = bounded(1, ge=1, le=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("data", "held_out"):
            if isinstance(table := getattr(self, key), dict):
                fits = set(table) == {"inputs", "targets"} and all(isinstance(path, str) for path in table.values())
                require(fits, key, table, "inputs and targets, two IDX files")
        for key in ("listen", "status"):
            require_endpoint(key, getattr(self, key))
        host = self.status.rpartition(":")[0]
        require(host in LOOPBACK, "status", self.status, f"an address of this machine only: {', '.join(LOOPBACK)}")
        require(self.noise == 0 or self.clip is not None, "noise", self.noise, "0 unless clip is set")


def parse_node_file(content: bytes) -> NodeFile:
    """The settings in the bytes of a file; a one-line InputError for anything else."""
    return from_table(NodeFile, "", toml_table(content))


def read_node_file(path: Path) -> NodeFile:
    """A node file, checked."""
    return parse_file(path, parse_node_file)
