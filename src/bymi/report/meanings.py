"""What columns of tables and reasons of flags mean, in one line each: for the terminal and for report pages."""

from __future__ import annotations

from collections.abc import Iterable

MEANINGS: dict[str, tuple[str, str]] = {
    "fdp": ("FDP", "share of honest nodes among the flagged"),
    "pa": ("P_a", "share of honest nodes that flagged all of their Byzantine neighbours"),
    "gap": ("gap", "excess risk of the averaged model over the honest optimum"),
    "loss": ("loss", "mean loss of the averaged model over the samples of honest nodes"),
    "acc_all": ("Acc (all)", "test accuracy of the mean model of all nodes, Byzantine ones included"),
    "acc_normal": ("Acc (normal)", "test accuracy of the mean model of the honest nodes"),
    "acc_scc": ("Acc (scc)", "test accuracy of the mean model of the core"),
    "honest_edge_loss": ("honest edges lost", "share of edges between honest nodes that were cut"),
    "core_size": ("core", "nodes in the largest strongly connected component after pruning"),
}
"""Name and meaning by key of summary.json."""


REASONS: dict[str, str] = {
    "score": "its two half gradients lie off the centre in the same direction, beyond the threshold",
    "not heard": "no usable answer, so it cannot be judged",
    "absurd": "its gradients are many times longer than those of others",
    "duplicate": "its gradients repeat those of others",
    "inconsistent": "its two halves differ too much, or too little, for two samples of its data",
    "too good": "its gradients are closer to the centre than a sample can be",
    "extreme score": "a score of three times the bound or more",
    "direction": "its gradients, or those of a group with it, are shifted along one direction",
    "fuse": "its parameters were far out, or missing, in too many rounds",
    "drift": "its parameters were far from those of others for long",
    "deed": "its updates do not follow from the gradients that it claimed",
    "suspended": "flagged by an earlier detection, and not judged again yet",
    "alike": "the noise in its halves resembles that of others",
    "far": "its gradients are farther off than data of another distribution explain",
    "backward": "its gradients point against the mean gradient",
    "joint update": "its updates, or those of a group with it, are shifted along one direction",
}
"""What each reason of a flag says about a neighbour."""

UNITS: dict[str, str] = {
    **dict.fromkeys(("kept", "score", "extreme score", "far"), "x usual score"),
    **dict.fromkeys(("inconsistent", "too good", "alike", "direction", "backward"), "spreads"),
    **dict.fromkeys(("drift", "deed", "joint update"), "spreads"),
    "absurd": "x usual length",
    "fuse": "of the rounds",
}
"""Unit of the statistic of each test with a bound; "kept": of the score of a neighbour that no test flagged."""


def meanings(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Names and meanings of these keys, without those that explain themselves."""
    return [MEANINGS[key] for key in keys if key in MEANINGS]
