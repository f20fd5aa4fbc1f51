"""Robust means, scales and thresholds of a detector by name."""

from __future__ import annotations

from bymi.aggregation import Filtering, GeometricMedian, Mean, Median, TrMean
from bymi.detection.products import Centre
from bymi.detection.scale import Identity, Principal, Scale
from bymi.detection.threshold import PublishedThreshold, Threshold
from bymi.parts import Table

_CENTRES: dict[str, type[Centre]] = {
    "filtering": Filtering,
    "geometric-median": GeometricMedian,
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrMean,
}
CENTRES: Table[Centre] = Table(Centre, _CENTRES)

SCALES: Table[Scale] = Table(Scale, {"identity": Identity, "pca": Principal})

THRESHOLDS: Table[Threshold] = Table(Threshold, {"published": PublishedThreshold}, "bymi.thresholds")
