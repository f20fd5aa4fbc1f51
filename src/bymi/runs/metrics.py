"""Metrics of a run, computed with the ground truth: error rates of the verdict, the surviving component, optimality gaps.

Arcs are in one order in all files of a run folder: receiver by receiver, the neighbours of each as in `neighbours` of
per_node.json. Numbers of detections.jsonl and per_node.json have four digits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from bymi.core.graph import Core, Graph
from bymi.detection import REASONS, Verdict
from bymi.detection.verdict import SUSPENDED
from bymi.distributed.gathered_snapshots import Models
from bymi.runs.convergence_theory import Look, theory_of
from bymi.runs.evaluators import Evaluator, number
from bymi.runs.run_folder import DETECTIONS, PER_NODE, SUMMARY_KEYS, VERDICT
from bymi.training.state import RoundCounts, Snapshot

_COUNTS = ("local_steps", "fuse_rounds", "detections", "guard_acted")
_SUMS = ("unheard", "capped", "floored", "fused", "cut_for", "ever", "stuck")
_SOON = 2  # detections within which a flagged honest node should be reinstated

Ending = Literal["finished", "diverged", "fragmented", "isolated", "infiltrated"]

ENDING_CODES: dict[Ending, int] = {"diverged": 3, "fragmented": 4, "isolated": 5, "infiltrated": 8, "finished": 0}
"""Exit code per ending, the worst ending first."""

DONE = "all rounds done"
"""Sentence of a run that finished and has nothing to add."""

RUNAWAY = 1e9
"""Norm from which on a parameter vector counts as diverged."""

LARGEST_LOG = 200_000
"""Arcs of the largest graph whose detections are stored arc by arc."""

TRUTH_KEYS = (
    *("fdp", "pa", "found", "honest_edge_loss", "worst_edge_loss", "ever_lost", "stuck", "stuck_nodes", "exiled"),
    "core_byzantine",
)
"""Keys of the summary that say who was flagged rightly: null on real data, where nobody knows."""


def is_lost(lengths: Tensor) -> bool:
    """Whether any model of these norms [n] has diverged; NaN counts as diverged."""
    return not bool((lengths < RUNAWAY).all())


def false_discoveries(flagged: Tensor, graph: Graph, byzantine: Tensor) -> float:
    """FDP: the share of honest nodes among those flagged, averaged over honest receivers. Paper: eq:fdptpr."""
    rows, byzantine_arcs = flagged[~byzantine], graph.at_places(byzantine).expand_as(flagged)[~byzantine]
    wrong = (rows & ~byzantine_arcs).sum(1, dtype=torch.float64)
    return float((wrong / rows.sum(1).clamp_min(1)).mean())


def sure_detection(flagged: Tensor, graph: Graph, byzantine: Tensor) -> float:
    """P_a: the share of honest receivers that flagged all their Byzantine neighbours, if any. Paper: eq:fdptpr."""
    missed = graph.hears & graph.at_places(byzantine) & ~flagged
    return float((~missed[~byzantine].any(1)).to(torch.float64).mean())


def share_found(flagged: Tensor, graph: Graph, byzantine: Tensor) -> float | None:
    """The share of arcs from Byzantine to honest nodes that were flagged; None if there are no such arcs."""
    arcs = (graph.hears & graph.at_places(byzantine))[~byzantine]
    return int((arcs & flagged[~byzantine]).sum()) / int(arcs.sum()) if bool(arcs.any()) else None


def flagged_by_most(flagged: Tensor, graph: Graph, byzantine: Tensor) -> Tensor:
    """Mask [M] of nodes that were flagged by most of the honest nodes that receive from them."""
    arcs = graph.hears & ~byzantine[:, None]
    return 2 * graph.count(flagged & arcs) > graph.count(arcs)


def honest_edge_loss(before: Graph, after: Graph, byzantine: Tensor) -> float:
    """The share of arcs between honest nodes that were cut."""
    inside = _between(before, ~byzantine)
    return int((inside & ~after.hears).sum()) / max(1, int(inside.sum()))


def spaced(rounds: int) -> set[int]:
    """Rounds after the first detection that are measured, each about a quarter later than the one before.

    The measured quantities fall fast at first, which equally spaced rounds would miss.
    """
    rounds_measured, step = {0}, 1
    while step <= rounds:
        rounds_measured.add(step)
        step += max(1, step // 4)
    return rounds_measured


def _between(graph: Graph, chosen: Tensor) -> Tensor:
    """Mask of the arcs between the nodes in `chosen` [M]."""
    return graph.hears & graph.at_places(chosen) & chosen[:, None]


class Recorder:
    """Accumulates metrics over all snapshots of a run, yields the rows of metrics.jsonl, and summarises at the end.

    Without `ground_truth` the data are real: everybody counts as honest, and what says who was flagged rightly is None.
    """

    def __init__(
        self, evaluator: Evaluator, graph: Graph, byzantine: Tensor, *, steps: int, every: int, ground_truth: bool = True
    ) -> None:
        self._evaluator, self._graph, self._byzantine = evaluator, graph, byzantine
        self._ground_truth = ground_truth
        self._honest = (~byzantine).nonzero().flatten()
        self._steps, self._every = steps, every
        self._core: Core | None = None
        self._pruned: Graph | None = None
        self._unheard = torch.zeros(graph.size, dtype=torch.int64, device=byzantine.device)
        self._local_steps = 0
        self._capped, self._floored = torch.zeros_like(self._unheard), torch.zeros_like(self._unheard)
        self._honest_arcs = _between(graph, ~byzantine)
        self._fused, self._fuse_rounds = torch.zeros_like(self._unheard[0]), 0
        self._detections, self._guard_acted, self._worst_loss = 0, 0, 0.0
        self._cut_for = torch.zeros(graph.hears.shape, dtype=torch.int16, device=byzantine.device)
        self._ever, self._stuck = torch.zeros_like(graph.hears), torch.zeros_like(graph.hears)
        self.last: dict[str, Any] = {}  # the last recorded row, empty before the first
        self.rows, self.detections = bytearray(), bytearray()  # of metrics.jsonl and detections.jsonl
        self._start, self.detecting = time.perf_counter(), 0.0  # seconds that detections took
        self._is_stored = int(graph.hears.sum()) <= LARGEST_LOG
        self._looks: list[Look] = []
        self._spaced = spaced(steps) if evaluator.quick else set()
        self._lost: str | None = None
        self.diverged, self.verdict = False, cast(Verdict | None, None)
        self.members = ~byzantine  # [M] nodes whose mean model represents the run: the core after a detection

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without those between an interruption and the next start."""
        return time.perf_counter() - self._start

    def see(self, snapshot: Snapshot, models: Models | None = None) -> dict[str, Any] | None:
        """Record one round; returns a row for metrics.jsonl if due, else None. `models`: if the snapshot lacks them."""
        counts = snapshot.counts
        if counts is None:
            assert snapshot.inbox is not None
            counts = RoundCounts.of(snapshot.inbox, snapshot.far_out, self._graph.size)
        if counts.unheard is not None:
            self._unheard += self._graph.count(counts.unheard & ~self._byzantine[:, None])
        if snapshot.capped is not None and snapshot.floored is not None:
            self._local_steps += 1
            self._capped += snapshot.capped
            self._floored += snapshot.floored
        if counts.far_out is not None:
            self._fuse_rounds += 1
            self._fused += (counts.far_out & self._honest_arcs).sum()
        if snapshot.verdict is not None:
            pruned = getattr(snapshot.network, "graph", None)
            if not isinstance(pruned, Graph):
                raise TypeError("the recorder needs the whole pruned graph, which a network of real nodes does not have")
            self.verdict, self._pruned = snapshot.verdict, pruned
            self._core = self._pruned.core()
            self.members = self._core.members
            self._detections += 1
            cut = self._honest_arcs & ~self._pruned.hears
            self._cut_for = (self._cut_for + 1) * cut
            self._ever, self._stuck = self._ever | cut, self._stuck | (self._cut_for > _SOON)
            self._guard_acted += (
                int(snapshot.verdict.guard_acted[self._honest].sum()) if snapshot.verdict.guard_acted.numel() else 0
            )
            self._worst_loss = max(self._worst_loss, honest_edge_loss(self._graph, self._pruned, self._byzantine))
            self.detections += detection_line(snapshot.step, self.verdict, self._graph, pruned) if self._is_stored else b""
        recorded = self.due(snapshot.step, snapshot.phase, self._steps, self._every) or snapshot.stopped
        # On an accelerator, reading norms in every round would make the host wait.
        if recorded or (snapshot.theta.device.type == "cpu" and not self._in_bounds(snapshot.theta)):
            return self._row(snapshot, models or Models([snapshot.theta]))
        if self._looks and snapshot.step - self._looks[0].step in self._spaced:
            self._look(snapshot.step, models or Models([snapshot.theta]))
        return None

    def _look(self, step: int, models: Models) -> dict[str, Any]:
        """Measures of the models of a round."""
        measures: dict[str, Any] = self._evaluator.look(models, self._core, last=step == self._steps)
        if self._core is not None:
            slope = measures["grad_norm_weighted"]
            gradient = None if slope is None else slope**2
            self._looks.append(Look(step, measures.get("gap_weighted"), gradient, measures["distance_weighted"]))
        return measures

    def _in_bounds(self, theta: Tensor) -> bool:
        lengths = torch.linalg.vector_norm(theta, dim=1)
        return bool(lengths.max() < RUNAWAY) or not is_lost(lengths[self._honest])  # NaN compares false

    @staticmethod
    def due(step: int, phase: str, steps: int, every: int) -> bool:
        """Whether a round is recorded whatever happens in it."""
        return not step % every or step == steps or phase == "detection"

    def _row(self, snapshot: Snapshot, models: Models) -> dict[str, Any]:
        lengths = torch.linalg.vector_norm(snapshot.theta[self._honest], dim=1)
        lost = self._honest[~(lengths < RUNAWAY)].tolist()  # NaN compares false, so it counts as diverged
        if lost:
            self.diverged = True
            self._lost = (
                f"{len(lost)} of {len(lengths)} honest nodes left all bounds by step {snapshot.step}, first node {lost[0]}"
            )
        row = {"step": snapshot.step, "phase": snapshot.phase, **self._look(snapshot.step, models)}
        if snapshot.verdict is not None:
            row.update(self._rates(snapshot.verdict))
        row["unheard"] = int(self._unheard.sum())
        self.last = row
        self.rows += _line(row)
        return row

    def _rates(self, verdict: Verdict) -> dict[str, float | None]:
        """Error rates of a verdict."""
        assert self._pruned is not None
        if not self._ground_truth:
            return dict.fromkeys(("fdp", "pa", "found", "honest_edge_loss"))
        return {
            "fdp": false_discoveries(verdict.flagged, self._graph, self._byzantine),
            "pa": sure_detection(verdict.flagged, self._graph, self._byzantine),
            "found": share_found(verdict.flagged, self._graph, self._byzantine),
            "honest_edge_loss": honest_edge_loss(self._graph, self._pruned, self._byzantine),
        }

    def outcome(self) -> tuple[Ending, str]:
        """How the run ended, the worst ending first, and a sentence on what happened."""
        if self._lost is not None:
            return "diverged", self._lost
        if self._core is None or self.verdict is None or self._pruned is None:
            return self._finished()
        size, total = int(self._core.members.sum()), self._graph.size
        if 2 * size <= total:
            return "fragmented", f"the largest component after pruning holds {size} of {total} nodes"
        heard = self._pruned.hears[self._honest].any(1)
        isolated = self._honest[~heard & self._graph.hears[self._honest].any(1)].tolist()
        if isolated:
            return "isolated", f"{len(isolated)} honest nodes flagged all their neighbours and trained alone: {isolated[:5]}"
        inside = int((self._core.members & self._byzantine).sum())
        if inside:
            return "infiltrated", f"{inside} of the {size} nodes in the core are Byzantine; its mean model counts them in"
        return self._finished()

    def _finished(self) -> tuple[Ending, str]:
        step, start, gap = self.last.get("step", self._steps), self._evaluator.start_gap, self.last.get("gap")
        stopped = f"stopped after round {step} of {self._steps}: most nodes had come to rest"
        sentence = stopped if step < self._steps else DONE
        if start is not None and gap is not None and gap > start:
            sentence += f", but it ended farther from the optimum than it began: gap {gap:.1e}, at the start {start:.1e}"
        return "finished", sentence

    def summary(self, batch: int | None = None) -> dict[str, Any]:
        """All of SUMMARY_KEYS, and those that the evaluator adds. `batch`: size of mini-batches, None if no theorem applies."""
        outcome, sentence = self.outcome()
        summary: dict[str, Any] = dict.fromkeys(SUMMARY_KEYS)
        summary.update({key: self.last.get(key) for key in (*SUMMARY_KEYS, *self._evaluator.extra) if key in self.last})
        senders = self._unheard.nonzero().flatten().tolist()
        summary.update(
            outcome=outcome,
            sentence=sentence,
            steps_done=self.last.get("step"),
            unheard={"messages": int(self._unheard.sum()), "senders": senders},
            seconds=round(self.seconds, 3),
        )
        if self._core is not None and self.verdict is not None and self._pruned is not None:
            summary.update(
                **self._rates(self.verdict),
                worst_edge_loss=self._worst_loss,
                ever_lost=int(self._ever.sum()) / max(1, int(self._honest_arcs.sum())),
                stuck=int(self._stuck.sum()) / max(1, int(self._honest_arcs.sum())),
                stuck_nodes=int((2 * self._graph.count(self._stuck) > self._graph.count(self._honest_arcs)).sum()),
                detections=self._detections,
                exiled=int((flagged_by_most(self.verdict.flagged, self._graph, self._byzantine) & ~self._byzantine).sum()),
                guard_acted=self._guard_acted,
                detection_seconds=round(self.detecting, 3),
                fused=int(self._fused) / max(1, self._fuse_rounds * int(self._honest_arcs.sum())),
                core_size=int(self._core.members.sum()),
                core_byzantine=int((self._core.members & self._byzantine).sum()),
                core_closed=self._core.closed,
                capped=int(self._capped[self._honest].sum()) / max(1, self._local_steps * len(self._honest)),
                floored=int(self._floored[self._honest].sum()) / max(1, self._local_steps * len(self._honest)),
            )
            if batch is not None:
                truth, loss = self._byzantine, self._evaluator.loss
                summary["theory"] = theory_of(self._pruned, self._core, truth, self._looks, loss, batch)
        return summary if self._ground_truth else {**summary, **dict.fromkeys(TRUTH_KEYS)}

    @property
    def flagged_nodes(self) -> int | None:
        """Nodes that were flagged by most of the honest nodes that receive from them; None before a detection."""
        if self.verdict is None:
            return None
        return int(flagged_by_most(self.verdict.flagged, self._graph, self._byzantine).sum())

    def records(self) -> dict[str, bytes]:
        """Further files by name: the last verdict and, unless the graph is too large, what is stored of nodes and arcs."""
        files: dict[str, bytes] = {}
        if self.verdict is None and not self._is_stored:
            return files
        byzantine = self._byzantine.nonzero().flatten().tolist() if self._ground_truth else None
        graph, neighbours = self._graph.to("cpu"), []
        for node, row in enumerate(graph.hears):
            places = row.nonzero().flatten()
            neighbours.append(graph.nodes_at(torch.full_like(places, node), places).tolist())
        if self.verdict is not None:
            receivers = _receivers(self.verdict, graph.hears, neighbours, _earlier_flags(self.detections))
            files[VERDICT] = _line({"byzantine": byzantine, "receivers": receivers})
        if self.detections:
            files[DETECTIONS] = bytes(self.detections)
        if self._is_stored:
            core, steps = self._core, self._local_steps
            nodes = {
                "byzantine": byzantine,
                "neighbours": neighbours,
                "not_heard": self._unheard.tolist(),
                "core": None if core is None else core.members.nonzero().flatten().tolist(),
                "perron": None if core is None else _short(core.perron),
                "capped": _short(self._capped.double() / steps) if steps else None,
                "floored": _short(self._floored.double() / steps) if steps else None,
            }
            files[PER_NODE] = _line(nodes)
        return files

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The recorder's state as tensors and plain values, for a checkpoint."""
        tensors = {name: getattr(self, f"_{name}") for name in _SUMS}
        looks = [[math.nan if value is None else value for value in one] for one in self._looks]
        tensors["looks"] = torch.tensor(looks, dtype=torch.float64).view(-1, len(Look._fields))
        words = {name: getattr(self, f"_{name}") for name in (*_COUNTS, "worst_loss")} | {"last": self.last}
        if self.verdict is not None and self._core is not None:
            tensors.update({f"verdict.{name}": part for name, part in vars(self.verdict).items()})
            tensors.update(members=self._core.members, perron=self._core.perron)
            words["closed"] = self._core.closed
        lines = {"rows": self.rows, "detections": self.detections}
        tensors.update({name: torch.from_numpy(np.array(text, dtype=np.uint8)) for name, text in lines.items()})
        return tensors, {"recorder": words, "seconds": self.seconds, "detecting": self.detecting}

    def take_up(self, tensors: Mapping[str, Tensor], words: Mapping[str, Any], prune: Callable[[Tensor], Graph] | None) -> None:
        """Continue from what a recorder of the same run stored; raises ValueError if it cannot be from the same run.

        `prune` makes the current graph from the flags; None before the first detection.
        """
        times = [words.get("seconds"), words.get("detecting")]
        if not isinstance(words.get("recorder"), dict) or not all(isinstance(seconds, (int, float)) for seconds in times):
            raise ValueError("what was measured is missing")
        self._start, self.detecting = time.perf_counter() - words["seconds"], words["detecting"]
        self.rows = _lines(tensors.get("rows"), "the rows of metrics.jsonl are missing")
        self.detections = _lines(tensors.get("detections", tensors["rows"][:0]), "the lines of detections.jsonl are damaged")
        words, device = words["recorder"], self._byzantine.device
        parts = {name: tensor.to(device) for name, tensor in tensors.items()}
        for name in _SUMS:
            setattr(self, f"_{name}", _like(parts, name, getattr(self, f"_{name}")))
        for name in _COUNTS:
            if type(words.get(name)) is not int or words[name] < 0:
                raise ValueError(f"{name} is {words.get(name)!r}, no count")
            setattr(self, f"_{name}", words[name])
        if not isinstance(words.get("last"), dict) or not isinstance(words.get("worst_loss"), (int, float)):
            raise ValueError("the last row of metrics is missing")
        self.last, self._worst_loss = dict(words["last"]), words["worst_loss"]
        looks = tensors.get("looks")
        if looks is None or looks.dtype != torch.float64 or looks.shape[1:] != (len(Look._fields),):
            raise ValueError("looks are missing")
        self._looks = [Look(int(step), *(None if math.isnan(one) else one for one in rest)) for step, *rest in looks.tolist()]
        if prune is not None:
            blank = torch.zeros(self._cut_for.shape, dtype=torch.float64, device=device)
            # Neighbour lists have fewer columns than there are nodes.
            node, mask = blank.new_zeros(len(blank)), torch.zeros_like(blank, dtype=torch.bool)
            patterns = {"scores": blank, "threshold": node, "flagged": mask, "reason": mask.to(torch.int8)}
            if "verdict.statistic" in parts and parts["verdict.statistic"].numel():  # the hardened profile
                patterns |= {"statistic": blank, "bound": blank, "filtered_weight": node, "pull": node}
                patterns |= {"guard_acted": node > 0, "by_rule": node > 0}
            self.verdict = Verdict(**{name: _like(parts, f"verdict.{name}", part) for name, part in patterns.items()})
            if bool(((self.verdict.reason < 0) | (self.verdict.reason >= len(REASONS))).any()):
                raise ValueError("a verdict for reasons that there are not")
            members, perron = _like(parts, "members", node > 0), _like(parts, "perron", node)
            self._core, self._pruned = Core(members, bool(words.get("closed")), perron), prune(self.verdict.flagged)
            self.members = members


def _like(parts: Mapping[str, Tensor], name: str, pattern: Tensor) -> Tensor:
    """A stored tensor, which must have the type and shape of `pattern`."""
    stored = parts.get(name)
    if stored is None or stored.shape != pattern.shape or stored.dtype != pattern.dtype:
        raise ValueError(f"{name} is missing, or not {list(pattern.shape)} of {pattern.dtype}")
    return stored


def _lines(stored: Tensor | None, wrong: str) -> bytearray:
    """Stored lines, each a JSON object; raises ValueError with `wrong` otherwise."""
    text = b"" if stored is None or stored.dtype != torch.uint8 else stored.numpy().tobytes()
    if (
        stored is None
        or stored.dtype != torch.uint8
        or not all(isinstance(json.loads(line), dict) for line in text.splitlines())
    ):
        raise ValueError(wrong)
    return bytearray(text)


def detection_line(step: int, verdict: Verdict, graph: Graph, pruned: Graph) -> bytes:
    """One line of detections.jsonl: thresholds [M]; per arc the score, statistic, reason (index into `reasons`), flag, cut.

    `bound`: of the statistic of each flagged arc; `kept_bound` [M]: of those of the other arcs of a receiver.
    """
    arcs, bounded = graph.hears, bool(verdict.bound.numel())
    others = verdict.bound.masked_fill(~arcs | verdict.flagged, torch.nan) if bounded else verdict.bound
    numbers = {
        "threshold": verdict.threshold,
        "score": verdict.scores[arcs],
        "statistic": verdict.statistic[arcs] if verdict.statistic.numel() else None,
        "bound": verdict.bound[arcs & verdict.flagged] if bounded else None,
        "kept_bound": others.nanmedian(1).values if bounded else None,
        "filtered_weight": verdict.filtered_weight if verdict.filtered_weight.numel() else None,
    }
    rest = {
        "step": step,
        "reasons": REASONS,
        "reason": verdict.reason[arcs].tolist(),
        "flagged": _bits(verdict.flagged[arcs]),
        "cut": _bits(~pruned.hears[arcs]),
        "guard_acted": verdict.guard_acted.nonzero().flatten().tolist(),
    }
    texts = "".join(f',"{key}":{_short_text(values)}' for key, values in numbers.items())
    return json.dumps(rest, separators=(",", ":"))[:-1].encode() + f"{texts}}}\n".encode()


def _earlier_flags(detections: bytearray) -> dict[int, dict[str, Any]]:
    """By arc of a neighbour that is suspended at the last of these detections: the one that flagged it, with its numbers."""
    suspended = REASONS.index(SUSPENDED)
    found: dict[int, dict[str, Any]] = {}
    wanted: set[int] | None = None
    for text in reversed(detections.splitlines()):  # back to the detection that flagged the last of them
        line = json.loads(text)
        wanted = {arc for arc, code in enumerate(line["reason"]) if code == suspended} if wanted is None else wanted
        if not wanted:
            break
        flagged = (arc for arc, flag in enumerate(line["flagged"]) if flag == "1")
        for place, arc in enumerate(flagged):
            if arc in wanted and line["reason"][arc] != suspended:
                numbers = {key: line[key][arc] for key in ("score", "statistic") if line[key] is not None}
                bound = {} if line["bound"] is None else {"bound": line["bound"][place]}
                found[arc] = {"round": line["step"], "reason": REASONS[line["reason"][arc]], **numbers, **bound}
                wanted.remove(arc)
    return found


def _receivers(
    verdict: Verdict, arcs: Tensor, neighbours: Sequence[list[int]], earlier: Mapping[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    """A verdict as JSON values, an entry per receiver: who was flagged and why; `earlier`: by arc, of those suspended."""
    parts = Verdict(**{name: part.cpu() for name, part in vars(verdict).items()})
    entries, first = [], 0
    for node, (row, senders) in enumerate(zip(arcs, neighbours, strict=True)):
        entry: dict[str, Any] = {
            "node": node,
            "threshold": number(parts.threshold[node]),
            "neighbours": senders,
            "scores": [number(score) for score in parts.scores[node, row].tolist()],
            "flagged": [sender for sender, flag in zip(senders, parts.flagged[node, row].tolist(), strict=True) if flag],
            "reasons": [REASONS[code] for code in parts.reason[node, row].tolist()],
            "earlier": [
                {"neighbour": sender, **earlier[arc]} for arc, sender in enumerate(senders, start=first) if arc in earlier
            ],
        }
        first += len(senders)
        if parts.statistic.numel():  # the hardened profile
            entry["statistics"] = [number(value) for value in parts.statistic[node, row].tolist()]
            entry["bounds"] = [number(value) for value in parts.bound[node, row].tolist()]
            entry["filtered_weight"] = float(parts.filtered_weight[node])
            entry["guard_acted"] = bool(parts.guard_acted[node])
            entry["pull"] = number(parts.pull[node])
            entry["mixing"] = "rule" if bool(parts.by_rule[node]) else "average"
        entries.append(entry)
    return entries


def _line(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _short(values: Tensor) -> list[float | None]:
    """Numbers of four significant digits, None (null) for NaN and infinity."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values.tolist()]


def _short_text(values: Tensor | None) -> str:
    """The JSON text of `_short`, several times as fast: there are two numbers for every arc and detection."""
    if values is None:
        return "null"
    text = ",".join(["%.4g"] * len(values)) % tuple(values.tolist())
    return "[" + text.replace("nan", "null").replace("-inf", "null").replace("inf", "null") + "]"


def _bits(mask: Tensor) -> str:
    """A string of 0 and 1, one character per arc."""
    return bytes((mask.to(torch.uint8) + ord("0")).tolist()).decode()
