"""Robust means and scales of a detector by name."""

from __future__ import annotations

from bymi.aggregation import Filtering, GeometricMedian, Mean, Median, TrMean
from bymi.detection.products import Centre
from bymi.detection.scale import Identity, Principal, Scale

CENTRES: dict[str, type[Centre]] = {
    "filtering": Filtering,
    "geometric-median": GeometricMedian,
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrMean,
}

SCALES: dict[str, type[Scale]] = {"identity": Identity, "pca": Principal}
