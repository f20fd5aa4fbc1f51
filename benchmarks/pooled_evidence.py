"""Evidence pooled over the detections of a run: realised false discovery rate and power of three ways, on the linear model.

    python benchmarks/pooled_evidence.py                 # prints the table, writes benchmarks/results/pooled_evidence.json

One run is one receiver with n neighbours, a fifth of which shift their gradients by one common vector, and eight detections at
the optimum. "new": each detection draws 100 new samples per node; "same": other halves of the same 100. Ways, all at a level of
0.2 with offset 1: *each*: a neighbour is flagged if any detection flags it; *sums*: scores are added over detections, and the
last sum decides; *e-values*: n 1{S >= T} / (1 + #{S <= -T}) with T at half the level, averaged over detections, with e-BH.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from bymi.core.random_streams import stream
from bymi.detection.half_gradient_products import Evidence
from bymi.detection.noise_bounded_mean import NoiseEdge
from bymi.detection.published_score import threshold

LEVEL, DETECTIONS, RUNS, DIM, SAMPLES = 0.2, 8, 100, 30, 100
NEIGHBOURS, SHIFTS = (6, 10, 20, 75), (0.0, 0.3, 0.6, 1.0)
_OUT = Path(__file__).parent / "results" / "pooled_evidence.json"


def scores_of(count: int, shift: float, fresh: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Scores [detections, runs, n] about the centre of the noise-edge filter, cross-fitted, and who is Byzantine [n]."""
    byzantine = torch.arange(count) < max(1, count // 5)
    everybody, half_size = torch.ones(RUNS, count, dtype=torch.bool), SAMPLES // 2
    samples = None if fresh else stream(seed, "samples").normal(RUNS, count, DIM, SAMPLES)
    found = []
    for detection in range(DETECTIONS):
        if samples is None:
            halves = list(stream(seed, "new halves", step=detection).normal(2, RUNS, count, DIM) / half_size**0.5)
        else:
            chosen = torch.zeros(SAMPLES, 2, dtype=torch.float64)
            chosen[stream(seed, "halves", step=detection).permutation(SAMPLES), torch.arange(SAMPLES) % 2] = 1 / half_size
            halves = list((samples @ chosen).unbind(3))
        for half in halves:
            half[:, byzantine, 0] += shift
        products = (halves[0] @ halves[0].mT, halves[1] @ halves[1].mT, halves[0] @ halves[1].mT)
        evidence = Evidence(*products, everybody, everybody, (halves[0], halves[1]))
        weights = NoiseEdge().weights(evidence).weights[:, None, :]
        one, two = (half - weights @ half for half in halves)
        found.append((one * two).sum(2))
    return torch.stack(found), byzantine


def flags(scores: Tensor) -> Tensor:
    """Flags [runs, n] of one detection."""
    everybody = torch.ones_like(scores, dtype=torch.bool)
    return scores >= threshold(scores, everybody, fdr_level=LEVEL, offset=1)[:, None]


def by_e_values(scores: Tensor) -> Tensor:
    """Flags [runs, n] of e-BH on e-values averaged over detections [detections, runs, n]."""
    count = scores.shape[2]
    values = torch.zeros_like(scores[0])
    for each in scores:
        # At half the level: at the level itself an e-value is at its bound, and one detection that misses a row drops it.
        limit = threshold(each, torch.ones_like(each, dtype=torch.bool), fdr_level=LEVEL / 2, offset=1)[:, None]
        values += count * (each >= limit) / (1 + (each <= -limit).sum(1, keepdim=True))
    values /= len(scores)
    ordered = values.sort(1, descending=True).values
    rank = torch.arange(1, count + 1)
    number = ((ordered >= count / (LEVEL * rank)) * rank).amax(1, keepdim=True)
    return (values > 0) & (values >= count / (LEVEL * number.clamp_min(1))) & (number > 0)


def rates(flagged: Tensor, byzantine: Tensor) -> dict[str, float]:
    wrong = (flagged & ~byzantine).sum(1) / flagged.sum(1).clamp_min(1)
    return {"fdr": float(wrong.mean()), "power": float(flagged[:, byzantine].double().mean())}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for samples in ("new", "same"):
        for count in NEIGHBOURS:
            for shift in SHIFTS:
                scores, byzantine = scores_of(count, shift, samples == "new", seed=100)
                truth = byzantine if shift else torch.zeros_like(byzantine)
                ways = {
                    "each": torch.stack([flags(each) for each in scores]).any(0),
                    "sums": flags(scores.sum(0)),
                    "e-values": by_e_values(scores),
                }
                for way, flagged in ways.items():
                    value = rates(flagged, truth)
                    value["power"] = value["power"] if shift else float("nan")
                    rows.append({"samples": samples, "neighbours": count, "shift": shift, "way": way, **value})
    rows = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    _OUT.write_text(json.dumps({"runs": RUNS, "detections": DETECTIONS, "level": LEVEL, "rows": rows}, indent=1) + "\n")
    print("| samples | neighbours | shift | FDR: each | sums | e-values | power: each | sums | e-values |")
    print("|---|---|---|---|---|---|---|---|---|")
    for index in range(0, len(rows), 3):
        group = rows[index : index + 3]
        cells = [f"{100 * row['fdr']:.1f}" for row in group]
        cells += ["-" if row["power"] is None else f"{100 * row['power']:.0f}" for row in group]
        print(f"| {group[0]['samples']} | {group[0]['neighbours']} | {group[0]['shift']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
