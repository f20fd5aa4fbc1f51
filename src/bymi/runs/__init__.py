"""One run from plain values to its folder: scene, measures, files. Needs torch, numpy and networkx only."""

from __future__ import annotations

from bymi.runs.runner import run, run_all, steps_to_do
from bymi.runs.sheet import Sheet, read_sheets, write_sheets

__all__ = ["Sheet", "read_sheets", "run", "run_all", "steps_to_do", "write_sheets"]
