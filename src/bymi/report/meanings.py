"""What the columns of tables mean, in one line each: for the terminal and for report pages."""

from __future__ import annotations

from collections.abc import Iterable

MEANINGS: dict[str, tuple[str, str]] = {
    "fdp": ("FDP", "share of honest nodes among the flagged"),
    "pa": ("P_a", "share of honest nodes that flagged all of their Byzantine neighbours"),
    "gap": ("gap", "excess risk of the averaged model over the honest optimum"),
    "acc_all": ("Acc (all)", "test accuracy of the mean model of all nodes, Byzantine ones included"),
    "acc_normal": ("Acc (normal)", "test accuracy of the mean model of the honest nodes"),
    "acc_scc": ("Acc (scc)", "test accuracy of the mean model of the core"),
    "honest_edge_loss": ("honest edges lost", "share of edges between honest nodes that were cut"),
    "core_size": ("core", "nodes in the largest strongly connected component after pruning"),
}
"""Name and meaning by key of summary.json."""


def meanings(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Names and meanings of these keys, without those that explain themselves."""
    return [MEANINGS[key] for key in keys if key in MEANINGS]
