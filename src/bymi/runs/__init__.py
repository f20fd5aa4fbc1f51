"""Runs from resolved specs to run folders: setup, engine, metrics, checkpoints. Needs torch, numpy and networkx only."""

from __future__ import annotations

from bymi.runs.resolved_spec import ResolvedSpec, read_sheets, write_sheets
from bymi.runs.runner import run, run_all, steps_to_do

__all__ = ["ResolvedSpec", "read_sheets", "run", "run_all", "steps_to_do", "write_sheets"]
