"""Tables of robust means, scales and thresholds by name."""

from __future__ import annotations

from bymi.aggregation import CAF, Filtering, GeometricMedian, Mean, Median, TrMean
from bymi.core.named_parts import Table
from bymi.detection.half_products import Centre
from bymi.detection.robust_means import AgnosticFilter, BudgetFilter, NoRegret, SpectralSolver, StabilityFilter
from bymi.detection.scale import Identity, Principal, Projected, Scale
from bymi.detection.threshold import PublishedThreshold, Threshold

_CENTRES: dict[str, type[Centre]] = {
    "filtering": Filtering,
    "caf": CAF,
    "agnostic-filter": AgnosticFilter,
    "budget-filter": BudgetFilter,
    "no-regret": NoRegret,
    "spectral-solver": SpectralSolver,
    "stability-filter": StabilityFilter,
    "geometric-median": GeometricMedian,
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrMean,
}
CENTRES: Table[Centre] = Table(Centre, _CENTRES)

SCALES: Table[Scale] = Table(Scale, {"identity": Identity, "pca": Principal, "projected": Projected})

THRESHOLDS: Table[Threshold] = Table(Threshold, {"published": PublishedThreshold}, "bymi.thresholds")
