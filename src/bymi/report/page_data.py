"""From run folders to the plain values that a report page draws.

Long arrays are packed: numbers as the upper half of a float32 (three digits), codes as bytes, flags as bits, all in base64, so
that a run of 150 nodes with a dozen detections takes about a megabyte.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from bymi.core.errors import BymiError
from bymi.report.tables import UNITS
from bymi.runs import run_folder as store
from bymi.runs.results_table import ListedRun

MEASURES: tuple[tuple[str, str, bool], ...] = (
    ("gap", "optimality gap", True),
    ("acc_scc", "test accuracy, core", False),
    ("acc_normal", "test accuracy, honest nodes", False),
    ("acc_all", "test accuracy, all nodes", False),
    ("loss", "loss", True),
    ("grad_norm", "gradient norm", True),
    ("grad_norm_weighted", "gradient norm, Perron-weighted mean", True),
    ("consensus", "largest distance from the mean", True),
)
"""Key in metrics.jsonl, name, and whether the axis is logarithmic. Keys of an own evaluation follow, on linear axes."""

_NOT_CURVES = {
    *("step", "phase", "unheard", "fdp", "pa", "found", "honest_edge_loss"),
    *("gap_weighted", "gap_true", "gap_population", "distance_weighted"),
}
PACKED = 1_800_000
"""Characters for the detections of all runs of a page; beyond them the page shows some of the detections only."""
_POINTS = 400  # of a curve
_CROWDED = 12  # neighbours per node from which on a drawing by forces is a ball of wool
_SPRINGS = 400  # nodes up to which a drawing by forces is tried


def rank(run: ListedRun) -> tuple[int, str]:
    """Baselines first, the hardened method last, as the terminal shows them."""
    kinds = ("dsgd", "rule", "published", "drsgd-bymi")
    method = (run.spec or {}).get("method")
    method = method[0] if isinstance(method, list) and method else method
    return (kinds.index(method) if method in kinds else len(kinds), run.label)


def run_data(run: ListedRun, graphs: list[dict[str, Any]], budget: int = PACKED) -> dict[str, Any]:
    """The data of one run with its detections; its graph is appended to `graphs` unless one there is the same."""
    assert run.spec is not None
    assert run.summary is not None
    rows = store.read_rows(run.folder / store.METRICS)
    data: dict[str, Any] = {
        "label": run.label,
        "seed": run.seed,
        "folder": run.folder.name,
        "summary": {key: value for key, value in run.summary.items() if key != "theory"},
        "curves": curves(rows),
        "phases": phases(rows),
        "looks": [
            {key: row.get(key) for key in ("step", "fdp", "pa", "found", "honest_edge_loss")}
            for row in rows
            if row["phase"] == "detection"
        ],
        "graph": None,
        "nodes": None,
        "detections": [],
    }
    if per_node := read_optional(run.folder / store.PER_NODE):
        data["graph"] = _graph(per_node, graphs)
        data["nodes"] = {
            **{key: per_node[key] for key in ("not_heard", "core", "perron", "capped", "floored")},
            "step_factor": step_factors(per_node["perron"], run.spec),
        }
        if (run.folder / store.DETECTIONS).exists():
            data.update(_detections(run.folder / store.DETECTIONS, budget))
    return data


def read_optional(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    try:
        value = store.read_json(path)
    except BymiError:
        return {}
    return value if isinstance(value, dict) else {}


def flags_by_node(folder: Path) -> dict[int, tuple[int, int, str]]:
    """Nodes that most of their neighbours flagged at the last detection, most flags first: flags, neighbours, commonest reason.

    Of a suspended node the reason for which it was suspended.
    """
    heard: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = {}
    for one in read_optional(folder / store.VERDICT).get("receivers", ()):
        heard.update(one["neighbours"])
        why = dict(zip(one["neighbours"], one["reasons"], strict=True))
        why |= {flag["neighbour"]: flag["reason"] for flag in one.get("earlier", ())}
        for sender in one["flagged"]:
            reasons.setdefault(sender, Counter())[why[sender]] += 1
    most = [node for node, why in reasons.items() if 2 * why.total() > heard[node]]
    most.sort(key=lambda node: (-reasons[node].total(), node))
    return {node: (reasons[node].total(), heard[node], reasons[node].most_common(1)[0][0]) for node in most}


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Steps, and values per measure that any row has; at most about 400 points, the last one among them."""
    stride = max(1, math.ceil(len(rows) / _POINTS))
    chosen = [row for index, row in enumerate(rows) if (len(rows) - 1 - index) % stride == 0]
    extra = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in _NOT_CURVES]
    names = [key for key, _, _ in MEASURES if key in extra]
    names += [key for key in extra if key not in names and any(_is_number(row.get(key)) for row in rows)]
    values = {key: [_short(row.get(key)) for row in chosen] for key in names}
    values = {key: column for key, column in values.items() if any(value is not None for value in column)}
    return {"step": [row["step"] for row in chosen], **values}


def phases(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Phases in order: name, first and last step."""
    spans: list[list[Any]] = []
    before = 0
    for row in rows:
        if row["phase"] != "detection" and (not spans or spans[-1][0] != row["phase"]):
            spans.append([row["phase"], before, row["step"]])
        if spans:
            spans[-1][2] = row["step"]
        before = row["step"]
    return spans


def measures_of(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Key, name and scale of each measure that a run has a curve of."""
    known = {key: (name, log) for key, name, log in MEASURES}
    keys = list(dict.fromkeys(key for run in runs for key in run["curves"] if key != "step"))
    keys.sort(key=lambda key: list(known).index(key) if key in known else len(known))
    return [{"key": key, "name": known.get(key, (key, False))[0], "log": known.get(key, (key, False))[1]} for key in keys]


def step_factors(perron: Sequence[float | None] | None, spec: Mapping[str, Any]) -> list[float | None] | None:
    """Factor on the step size per node in the last phase: 1 / (M v_i) at its Perron weight v_i, the floor applied."""
    if perron is None or "method" in spec["optimisation"]:  # another optimiser than the default has no tracker of its own
        return None
    if spec["detection"]["pruning"] == "mutual":
        return [1.0] * len(perron)  # doubly stochastic weights: there is no tracker
    least = float(spec["optimisation"]["min_weight"])
    return [None if weight is None else _short(1 / max(len(perron) * weight, least, 1e-12)) for weight in perron]


def _graph(per_node: Mapping[str, Any], graphs: list[dict[str, Any]]) -> int:
    """Index of the graph in `graphs`, with places of its nodes for a drawing."""
    graph = {"neighbours": per_node["neighbours"], "byzantine": per_node["byzantine"]}
    for index, known in enumerate(graphs):
        if all(known[key] == graph[key] for key in graph):
            return index
    graphs.append({**graph, "places": _places(graph["neighbours"], set(graph["byzantine"] or ()))})
    return len(graphs) - 1


def _places(neighbours: Sequence[Sequence[int]], byzantine: set[int]) -> list[list[float]]:
    """A place in the unit circle per node: by forces in a sparse graph, else honest nodes on a ring around the others."""
    nodes = len(neighbours)
    if 0 < sum(map(len, neighbours)) <= _CROWDED * nodes and nodes <= _SPRINGS:
        graph = nx.Graph((sender, node) for node, senders in enumerate(neighbours) for sender in senders)
        graph.add_nodes_from(range(nodes))
        drawn = nx.spring_layout(graph, seed=0, iterations=80)
        reach = max(float(np.abs(place).max()) for place in drawn.values()) or 1.0
        return [[round(float(x) / reach, 3) for x in drawn[node]] for node in range(nodes)]
    places: list[list[float]] = [[0.0, 0.0]] * nodes
    honest = [node for node in range(nodes) if node not in byzantine]
    for ring, radius in ((honest, 1.0), (sorted(byzantine), 0.55)):
        for index, node in enumerate(ring):
            angle = 2 * math.pi * index / len(ring) - math.pi / 2
            places[node] = [round(radius * math.cos(angle), 3), round(radius * math.sin(angle), 3)]
    return places


def _detections(path: Path, budget: int) -> dict[str, Any]:
    """All detections, packed; if they take more than `budget` characters, the first, the last and some between."""
    lines = store.read_rows(path)
    packed = [_pack(line) for line in lines]
    size = max(sum(len(value) for value in one.values() if isinstance(value, str)) for one in packed)
    count = max(2, budget // max(1, size))
    if count < len(packed):
        chosen = sorted({round(index * (len(packed) - 1) / (count - 1)) for index in range(count)})
        packed = [packed[index] for index in chosen]
    names = lines[0]["reasons"]
    used = [names[code] for code in sorted({code for line in lines for code in line["reason"]})]
    units = [UNITS.get(name, "") for name in names]
    return {"detections": packed, "detections_stored": len(lines), "reasons": names, "reasons_used": used, "units": units}


def _pack(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": line["step"],
        "threshold": [_short(value) for value in line["threshold"]],
        "score": halves(line["score"]),
        "statistic": None if line["statistic"] is None else halves(line["statistic"]),
        "bound": None if line.get("bound") is None else halves(line["bound"]),  # runs before 0.14 have none
        "kept_bound": line.get("kept_bound"),
        "reason": base64.b64encode(bytes(line["reason"])).decode(),
        "flagged": _bits(line["flagged"]),
        "cut": _bits(line["cut"]),
        "guarded": line["guard_acted"],
    }


def halves(values: Sequence[float | None]) -> str:
    """The upper 16 bits of each number as a float32, rounded, little-endian, in base64; NaN for None."""
    numbers = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    numbers = np.clip(numbers, -3e38, 3e38).astype(np.float32)
    bits = numbers.view(np.uint32).astype(np.uint64)
    rounded = np.where(np.isnan(numbers), bits, bits + 0x8000) >> 16
    return base64.b64encode(rounded.astype("<u2").tobytes()).decode()


def _bits(text: str) -> str:
    """A string of 0 and 1 as bits, the first in the lowest bit of the first byte, in base64."""
    flags = np.frombuffer(text.encode(), dtype=np.uint8) == ord("1")
    return base64.b64encode(np.packbits(flags, bitorder="little").tobytes()).decode()


def _short(value: Any) -> float | None:
    return float(f"{value:.4g}") if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
