"""Runs specs: `bymi.runs` for a Spec in place of a resolved spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bymi import runs
from bymi.core.errors import is_integer, require
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment.spec import Spec
from bymi.runs.observers import RunStatus
from bymi.runs.parallel_runs import Result, Watch


def run(
    spec: Spec,
    out: str | Path = "runs",
    watch: Callable[[RunStatus], None] | None = None,
    host: Host | None = None,
    *,
    again: bool = False,
) -> dict[str, Any]:
    """The summary of one run of a spec with one method. A complete folder is read, not run again, unless `again`.

    `watch` is told where the run stands, a few times per second.
    """
    _check(out, host, again, [spec])
    require(len(spec.methods) == 1, "method", spec.methods, "one method a run; use spec.expand() and run_all for several")
    return runs.run(spec.resolved, out, watch, replace(host or Host(), again=again))


def _check(out: object, host: object, again: object, specs: Sequence[object]) -> None:
    require(isinstance(out, (str, Path)), "out", out, "the path of a folder")
    require(host is None or isinstance(host, Host), "host", host, "a Host or None")
    require(isinstance(again, bool), "again", again, "True or False")
    for spec in specs:
        require(isinstance(spec, Spec), "spec", spec, "a Spec, such as bymi.experiment.load() makes")


def run_all(
    specs: Sequence[Spec],
    out: str | Path,
    *,
    jobs: int | None = None,
    watch: Watch | None = None,
    host: Host | None = None,
    group: Group | None = None,
    apart: bool = False,
    again: bool = False,
) -> list[Result]:
    """Summaries of many specs, in order, computed by `jobs` processes at a time (default: one per core).

    A spec that cannot be run has its error in its place. The results do not depend on `jobs`. With the `group` of ranks that
    this process belongs to, each run is sharded over them or, with `apart`, is whole on one of them; then only rank 0 has
    summaries. `again`: run all of them from the first round; each complete folder stays until its new one replaces it.
    `watch` is told the index of a run and where it stands.
    """
    require(isinstance(specs, (list, tuple)), "specs", specs, "a list of Specs")
    require(jobs is None or (is_integer(jobs) and jobs >= 1), "jobs", jobs, "an integer, 1 or more, or None")
    _check(out, host, again, specs)
    host = replace(host or Host(), again=again)
    how: dict[str, Any] = {"host": host, "group": group, "apart": apart}
    return runs.run_all([spec.resolved for spec in specs], out, jobs=jobs, watch=watch, **how)
