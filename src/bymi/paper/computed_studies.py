"""All studies without run folders, by name."""

from __future__ import annotations

from bymi.paper import page_optimisers, study_centralised, study_centres, study_pieces_on_arrays
from bymi.paper.computed_study import ComputedStudy

COMPUTED: dict[str, ComputedStudy] = {
    module.STUDY.name: module.STUDY for module in (page_optimisers, study_centres, study_centralised, study_pieces_on_arrays)
}
"""Measured point by point by `bymi reproduce NAME`; their folders below docs/results have the same names."""
