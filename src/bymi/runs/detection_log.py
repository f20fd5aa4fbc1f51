"""What a report needs beyond the last verdict: every detection arc by arc, and every node's part in the run.

detections.jsonl has one line per detection, per_node.json one list per quantity. Arcs are in one order throughout: receiver by
receiver, the neighbours of each as in `neighbours` of per_node.json. Numbers are rounded to four digits. A run with more than
`LARGEST` arcs has neither file.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from bymi.core.graph import Core, Graph
from bymi.detection import REASONS, Verdict

DETECTIONS, PER_NODE = "detections.jsonl", "per_node.json"
LARGEST = 200_000
"""Arcs of the largest graph whose detections are stored."""


def is_stored(graph: Graph) -> bool:
    """Whether a run on this graph stores its detections arc by arc."""
    return int(graph.hears.sum()) <= LARGEST


def detection_line(step: int, verdict: Verdict, graph: Graph, pruned: Graph) -> bytes:
    """One line of JSON: thresholds [M], and per arc the score, statistic, reason (an index into `reasons`), flag and cut."""
    arcs = graph.hears
    line = {
        "step": step,
        "reasons": REASONS,
        "threshold": [_short(limit) for limit in verdict.threshold.tolist()],
        "score": [_short(score) for score in verdict.scores[arcs].tolist()],
        "statistic": [_short(one) for one in verdict.statistic[arcs].tolist()] if verdict.statistic.numel() else None,
        "reason": verdict.reason[arcs].tolist(),
        "flagged": _bits(verdict.flagged[arcs]),
        "cut": _bits(~pruned.hears[arcs]),
        "filtered_weight": [_short(one) for one in verdict.filtered_weight.tolist()]
        if verdict.filtered_weight.numel()
        else None,
        "guard_acted": verdict.guard_acted.nonzero().flatten().tolist(),
    }
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def per_node_json(
    graph: Graph, byzantine: Tensor, core: Core | None, *, unheard: Tensor, capped: Tensor, floored: Tensor, local_steps: int
) -> dict[str, Any]:
    """Every node's part in the run; `capped` and `floored` are shares of its `local_steps`, `not_heard` counts by sender."""
    graph = graph.to("cpu")
    neighbours = []
    for node, row in enumerate(graph.hears):
        columns = row.nonzero().flatten()
        neighbours.append(graph.nodes_at(torch.full_like(columns, node), columns).tolist())
    return {
        "byzantine": byzantine.nonzero().flatten().tolist(),
        "neighbours": neighbours,
        "not_heard": unheard.tolist(),
        "core": None if core is None else core.members.nonzero().flatten().tolist(),
        "perron": None if core is None else [_short(weight) for weight in core.perron.tolist()],
        "capped": [_short(count / local_steps) for count in capped.tolist()] if local_steps else None,
        "floored": [_short(count / local_steps) for count in floored.tolist()] if local_steps else None,
    }


def _short(value: float) -> float | None:
    """Four significant digits, or None (null) for NaN and infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _bits(mask: Tensor) -> str:
    """A string of 0 and 1, one character per arc."""
    return bytes((mask.to(torch.uint8) + ord("0")).tolist()).decode()
