"""Who is different, without p-values: sample splitting, a robust centre, a symmetric score, an FDR threshold."""

from __future__ import annotations

from bymi.detection.array_verdict import ArrayVerdict
from bymi.detection.arrays import PANEL, identify
from bymi.detection.asked import identify_asked, identify_neighbours
from bymi.detection.claims import Answers, ClaimMakers, Claims, ProbeMakers
from bymi.detection.identify import Detector, Verdict
from bymi.detection.panel import Panel
from bymi.detection.products import Centre
from bymi.detection.reasons import REASONS
from bymi.detection.record import Record
from bymi.detection.scale import Identity, Principal, Scale
from bymi.detection.tables import CENTRES, SCALES, THRESHOLDS
from bymi.detection.threshold import PublishedThreshold, Threshold, threshold
from bymi.detection.trail import Trail
from bymi.detection.tribunal import sit
from bymi.detection.watch import Watch

__all__ = [
    "CENTRES",
    "PANEL",
    "REASONS",
    "SCALES",
    "THRESHOLDS",
    "Answers",
    "ArrayVerdict",
    "Centre",
    "ClaimMakers",
    "Claims",
    "Detector",
    "Identity",
    "Panel",
    "Principal",
    "ProbeMakers",
    "PublishedThreshold",
    "Record",
    "Scale",
    "Threshold",
    "Trail",
    "Verdict",
    "Watch",
    "identify",
    "identify_asked",
    "identify_neighbours",
    "sit",
    "threshold",
]
