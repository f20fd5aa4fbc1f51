"""Runs from resolved specs to run folders: setup, engine, metrics, checkpoints. Needs torch, numpy and networkx only."""

from __future__ import annotations

from bymi.runs.parallel_runs import run_all
from bymi.runs.resolved_spec import ResolvedSpec, read_resolved_specs, write_resolved_specs
from bymi.runs.single_run import run

__all__ = ["ResolvedSpec", "read_resolved_specs", "run", "run_all", "write_resolved_specs"]
