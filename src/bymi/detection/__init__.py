"""Detection of nodes whose gradients differ in distribution: sample splitting, a robust centre, a score, an FDR threshold."""

from __future__ import annotations

from bymi.detection.array_verdict import ArrayVerdict
from bymi.detection.detection_settings import CENTRES, SCALES, THRESHOLDS, Detector, Panel, Watch
from bymi.detection.hardened_detection import judge_neighbours
from bymi.detection.identify_arrays import PANEL, identify
from bymi.detection.neighbour_half_gradients import HalfGradientMakers, HalfGradients, ProbeMakers, QueriedHalfGradients
from bymi.detection.published_detection import identify_neighbours, judge_replies
from bymi.detection.published_score import Centre, Identity, Principal, PublishedThreshold, Scale, Threshold, threshold
from bymi.detection.update_history import UpdateHistory
from bymi.detection.verdict import REASONS, Suspensions, Verdict

__all__ = [
    "CENTRES",
    "PANEL",
    "REASONS",
    "SCALES",
    "THRESHOLDS",
    "ArrayVerdict",
    "Centre",
    "Detector",
    "HalfGradientMakers",
    "HalfGradients",
    "Identity",
    "Panel",
    "Principal",
    "ProbeMakers",
    "PublishedThreshold",
    "QueriedHalfGradients",
    "Scale",
    "Suspensions",
    "Threshold",
    "UpdateHistory",
    "Verdict",
    "Watch",
    "identify",
    "identify_neighbours",
    "judge_neighbours",
    "judge_replies",
    "threshold",
]
