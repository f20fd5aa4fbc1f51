"""A node whose disk is full for some rounds: a small file system of its own, or a limit on the size of files."""

from __future__ import annotations

import ctypes
import json
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bymi.node import node_checkpoints
from bymi.node.event_log import AUDIT, LOG, verify_audit
from bymi.node.run_node import CHECKPOINTS, NodeRun
from bymi.training.state import Snapshot
from tests.node_fixtures import entries

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_FILLER = "filler"


def mount_small_disk(folder: Path, size: int) -> str | None:
    """Mount a file system of `size` bytes at a folder, for this process alone; returns why it cannot be done."""
    system = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    try:
        if system.unshare(_NEW_USER | _NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        if system.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
            raise OSError(ctypes.get_errno(), "mount")
    except (OSError, AttributeError) as problem:
        return f"no file system can be mounted: {problem}"
    return None


@dataclass(frozen=True)
class FullDisk:
    """A setup of a node: no byte can be written to its state folder from the end of round `first` to that of round `last`.

    `report` gets what the node says in the end: whether it was done, its checkpoints while the disk was full, its audit log.
    """

    kind: str
    first: int
    last: int
    report: Path

    def __call__(self, path: Path) -> Callable[[NodeRun], None] | None:
        state = path.parent / "state"
        state.mkdir(exist_ok=True)
        problem = mount_small_disk(state, 1 << 18) if self.kind == "file system" else None
        if problem is not None:
            self.report.write_text(json.dumps({"skip": problem}))
            raise SystemExit
        self.report.with_suffix(".ready").touch()
        see, found = NodeRun._see, {}

        def see_and_fill(run: NodeRun, snapshot: Snapshot) -> None:
            if snapshot.step == self.last and "kept" not in found:
                found["kept"] = sorted(one.name for one in (state / CHECKPOINTS).iterdir())
                found["failures"] = run.journal.failures
                self._free(state)
            see(run, snapshot)
            if snapshot.step == self.first:
                self._fill(state)

        def report(run: NodeRun) -> None:
            self.report.write_text(
                json.dumps(
                    {
                        **found,
                        "done": run.progress.done,
                        "failed": run.journal.counts["checkpoint failed"],
                        "audit": verify_audit(state / AUDIT),
                        "lines": entries(state / AUDIT),
                        "lost": [
                            line["lost_before"]
                            for name in (LOG, AUDIT)
                            for line in entries(state / name)
                            if "lost_before" in line
                        ],
                        "stored": [path.name for path in node_checkpoints._stored(state / CHECKPOINTS)],
                        "folder": sorted(one.name for one in (state / CHECKPOINTS).iterdir()),
                    }
                )
            )

        setattr(NodeRun, "_see", see_and_fill)  # noqa: B010
        return report

    def _fill(self, state: Path) -> None:
        if self.kind == "file system":
            with (state / _FILLER).open("wb", buffering=0) as file:
                for size in (4096, 1):
                    try:
                        while file.write(bytes(size)):
                            pass
                    except OSError:
                        continue
        else:  # half of the next line still fits
            most = (state / AUDIT).stat().st_size + 100
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def _free(self, state: Path) -> None:
        if self.kind == "file system":
            (state / _FILLER).unlink()
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
