"""Which rules the slower tests run on: some of every kind. Quicker ones run on all that are listed."""

from __future__ import annotations

KINDS = (
    *("average", "ubar", "ios", "balance", "mean", "median", "trimmed-mean", "geometric-median", "filtering"),
    *("scclip", "drsa", "krum", "bulyan", "cge"),
)
"""Weights by mixing, losses, products, distances, sets, coordinates, coordinates apart from the own, one receiver at a time."""
