"""Who is different, without p-values: sample splitting, a robust centre, a symmetric score, an FDR threshold."""

from __future__ import annotations

from bymi.aggregation import Filtering, GeometricMedian, Mean, Median, TrMean
from bymi.detection.asked import identify_asked
from bymi.detection.identify import REASONS, Detector, Verdict, identify, identify_neighbours
from bymi.detection.products import Centre
from bymi.detection.scale import Identity, Principal, Scale
from bymi.detection.threshold import threshold

CENTRES: dict[str, type[Centre]] = {
    "filtering": Filtering,
    "geometric-median": GeometricMedian,
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrMean,
}

SCALES: dict[str, type[Scale]] = {"identity": Identity, "pca": Principal}

__all__ = [
    "CENTRES",
    "REASONS",
    "SCALES",
    "Centre",
    "Detector",
    "Identity",
    "Principal",
    "Scale",
    "Verdict",
    "identify",
    "identify_asked",
    "identify_neighbours",
    "threshold",
]
