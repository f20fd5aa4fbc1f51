"""Run folders: their files, and when one is complete.

A run is written to a hidden folder beside its final place and renamed when everything is in it, so that an interrupted run
never looks complete; checkpoints lie in another hidden folder until the run is complete. A folder is named by method, seed and
digest of the spec, so the same spec finds it again. SHA256SUMS has the checksum of each file, as `sha256sum -c` reads it: a
folder with a damaged file does not count, and the run is repeated. No symbolic link is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import networkx
import numpy
import torch

import bymi
from bymi.core import files
from bymi.core.errors import BymiError, InputError, StorageError
from bymi.runs.resolved_spec import ResolvedSpec

_CHECKPOINTS = ".checkpoints"
_ASIDE = ".replaced"
SPEC, ENVIRONMENT, METRICS, VERDICT, SUMMARY = "spec.json", "environment.json", "metrics.jsonl", "verdict.json", "summary.json"
DETECTIONS, PER_NODE, SUMS = "detections.jsonl", "per_node.json", "SHA256SUMS"
_LARGEST = 4 << 30  # bytes of a file in a run folder

SUMMARY_KEYS = (
    *("outcome", "sentence", "fdp", "pa", "found", "gap", "gap_weighted", "gap_true", "gap_population"),
    *("honest_edge_loss", "worst_edge_loss", "ever_lost", "stuck", "stuck_nodes"),
    *("core_size", "core_byzantine", "core_closed", "consensus"),
    *("acc_all", "acc_normal", "acc_scc", "acc_farthest", "grad_norm", "steps_done", "model_bytes", "model_finite"),
    *("unheard", "capped", "floored", "fused", "detections", "exiled", "guard_acted"),
    *("theory", "detection_seconds", "seconds"),
)
"""Keys of summary.json, beside those that identify the run. What does not apply is null, never missing.

Error rates and components are those of the last detection; `worst_edge_loss` is over all `detections`, `ever_lost` the share of
arcs between honest nodes that were cut at any of them, `stuck` the share still cut two detections later, `stuck_nodes` the
number of honest nodes most of whose arcs are stuck (their data are extreme, or Byzantine nodes frame them). `found`: share of
the arcs from Byzantine to honest nodes that were flagged. `capped` and `floored` are shares of the local steps of honest nodes,
`fused` of messages between honest nodes (clipped as far out). `gap` and `acc_scc` are of the mean model of the core: all of its
`core_size` nodes, of which `core_byzantine` are Byzantine; without a detection `gap` is of the mean over honest nodes.
`acc_farthest`: accuracy of the honest node whose model is farthest from the honest mean, after the last round. `exiled`:
honest nodes that were flagged by most of the honest nodes that receive from them. `guard_acted`: verdicts of honest
nodes, over all detections, that flagged a majority and were reduced to hard evidence. `model_bytes`: size of the files of
trained models in the folder; `model_finite`: whether all numbers in them are finite. `theory`: what the convergence theorem
requires over the pruned graph, and what the run did (bymi.runs.convergence_theory).
"""


class Named(Protocol):
    """A spec, resolved or not."""

    @property
    def folder_name(self) -> str: ...


def folder_of(out: Path, run: Named) -> Path:
    """The folder of a run."""
    return out / run.folder_name


def checkpoints_of(out: Path, run: Named) -> Path:
    """The folder of a run's checkpoints while it is under way."""
    return out / f".{folder_of(out, run).name}{_CHECKPOINTS}"


def is_complete(folder: Path) -> bool:
    """Whether all files are as they were written, the summary has all keys, and the folder is of this version.

    All files are read, two small ones are parsed.
    """
    try:
        files.refuse_link(folder)
        sums = _read_sums(folder / SUMS)
        if not {SPEC, ENVIRONMENT, METRICS, SUMMARY} <= set(sums) or any(_sum(folder / name) != sums[name] for name in sums):
            return False
        summary, made_by = read_json(folder / SUMMARY), read_json(folder / ENVIRONMENT)
    except (BymiError, OSError, ValueError):
        return False
    if not isinstance(summary, dict) or not set(SUMMARY_KEYS) <= set(summary):
        return False
    return isinstance(made_by, dict) and made_by.get("bymi") == bymi.__version__


def seal(folder: Path) -> None:
    """Flush all files of a run folder to disk and write their checksums to SHA256SUMS."""
    lines = []
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS):
        lines.append(f"{_sum(path)}  {path.name}\n")
        with path.open("r+b") as file:
            os.fsync(file.fileno())
    files.write_bytes(folder / SUMS, "".join(lines).encode())


def _read_sums(path: Path) -> dict[str, str]:
    """Checksum by file name."""
    lines = files.decode(files.read_bytes(path, limit=files.MEBIBYTE, links=False)).splitlines()
    pairs = (line.split("  ", 1) for line in lines)
    return {name: checksum for checksum, name in pairs if name == Path(name).name}


def _sum(path: Path) -> str:
    with files.opened(path, limit=_LARGEST, links=False) as file:
        digest = hashlib.sha256()
        while block := file.read(files.MEBIBYTE):
            digest.update(block)
        return digest.hexdigest()


def prepare(out: Path) -> None:
    """Create the folder for runs and remove the scratch folders of dead processes; raises an error of one line if it cannot.

    Checkpoints stay until their run is complete.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
        for scratch in out.glob(f".*-seed*.{platform.node()}.*"):
            if scratch.suffix[1:].isdigit() and not _alive(int(scratch.suffix[1:])):
                _clear(scratch)
        for checkpoints in out.glob(f".*{_CHECKPOINTS}"):
            if is_complete(out / checkpoints.name.removeprefix(".").removesuffix(_CHECKPOINTS)):
                shutil.rmtree(checkpoints, ignore_errors=True)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        # A path that cannot be a folder is a mistake in the command; anything else is the disk.
        wrong = isinstance(problem, (FileExistsError, NotADirectoryError, ValueError))
        message = f"cannot write to the folder {out}: {getattr(problem, 'strerror', None) or problem}"
        raise (InputError if wrong else StorageError)(message) from None


@contextmanager
def writing(out: Path, spec: ResolvedSpec, *, again: bool = False) -> Iterator[Path]:
    """Yield a scratch folder for one run; it is renamed to its final place if the block succeeds, else removed.

    An incomplete folder in that place is replaced. If another process has completed the same run in the meantime its folder
    stays, unless `again`.
    """
    place = folder_of(out, spec)
    files.refuse_link(place)
    if place.exists() and not place.is_dir():
        raise InputError(f"{place}: got a file, allowed: a run folder, or nothing yet")
    scratch = out / f".{place.name}.{platform.node()}.{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        write_json(scratch / SPEC, spec.values)
        yield scratch
        seal(scratch)
        if again or not is_complete(place):
            _put(scratch, place)
            files.sync_folder(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _put(scratch: Path, place: Path) -> None:
    """Move a finished folder to its place. The old one is set aside meanwhile, where `prepare` finds it after a crash."""
    aside = place.with_name(f".{place.name}{_ASIDE}.{platform.node()}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    if place.exists():
        os.replace(place, aside)
    os.replace(scratch, place)
    shutil.rmtree(aside, ignore_errors=True)


def _clear(scratch: Path) -> None:
    """Remove the scratch folder of a dead process; a folder that it had set aside goes back if its place is still empty."""
    name, aside, _ = scratch.name.rpartition(f"{_ASIDE}.")
    if aside and not (place := scratch.with_name(name.removeprefix("."))).exists():
        os.replace(scratch, place)
    shutil.rmtree(scratch, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True


def environment() -> dict[str, Any]:
    """Versions and machine, for comparing results later."""
    return {
        "bymi": bymi.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "networkx": networkx.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def read_json(path: Path) -> Any:
    return files.read_json(path, limit=_LARGEST, links=False)


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    files.write_bytes(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl."""
    lines = files.read_bytes(path, limit=_LARGEST, links=False).splitlines()
    return [json.loads(line) for line in lines]
