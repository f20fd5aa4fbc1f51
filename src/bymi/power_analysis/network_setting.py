"""Setting of a power analysis: nodes, degree and share of Byzantine nodes, and how these fall into neighbourhoods."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.core.errors import is_integer, is_number, require
from bymi.detection import Panel

_MOST_NODES = 100_000
_LOWEST_LEVEL = 1e-6


@dataclass(frozen=True)
class Setting:
    """`nodes` in all, each with `degree` neighbours drawn from the others; floor(ratio nodes) of all are Byzantine.

    A real graph has nodes with fewer neighbours than its mean degree: check those, too.
    """

    nodes: int
    degree: int
    ratio: float = 0.2
    fdr_level: float = 0.2

    def __post_init__(self) -> None:
        require(is_integer(self.nodes) and 2 <= self.nodes <= _MOST_NODES, "nodes", self.nodes, f"2 to {_MOST_NODES}")
        require(
            is_integer(self.degree) and 1 <= self.degree < self.nodes,
            "degree",
            self.degree,
            f"1 to nodes - 1 = {self.nodes - 1}",
        )
        require(is_number(self.ratio) and 0 <= self.ratio < 0.5, "ratio", self.ratio, "0 <= ratio < 0.5")
        require(is_number(self.fdr_level) and 0 < self.fdr_level < 1, "fdr_level", self.fdr_level, "strictly between 0 and 1")
        require(self.fdr_level >= _LOWEST_LEVEL, "fdr_level", self.fdr_level, f"{_LOWEST_LEVEL:g} or above")

    @property
    def byzantine(self) -> int:
        return math.floor(self.ratio * self.nodes + 1e-9)

    def odds(self) -> Tensor:
        """Probabilities [degree + 1] of 0, 1, ... `degree` Byzantine neighbours of an honest node (hypergeometric)."""
        count = torch.arange(self.degree + 1, dtype=torch.float64)
        others = self.nodes - 1
        logs = _log_choose(self.byzantine, count) + _log_choose(others - self.byzantine, self.degree - count)
        chance = (logs - _log_choose(others, torch.tensor(float(self.degree), dtype=torch.float64))).exp()
        return chance / chance.sum()

    def outnumbered(self) -> float:
        """Probability that an honest node has more Byzantine than honest neighbours."""
        return self._chance_above(self.degree / 2)

    def overwhelmed(self) -> float:
        """Probability that they are more than the filter may remove from the node's neighbours and itself."""
        return self._chance_above(Panel().most * (self.degree + 1))

    def anywhere(self, chance: float) -> float:
        """Probability that an event of this chance happens to some honest node, as if independent."""
        return -math.expm1((self.nodes - self.byzantine) * math.log1p(-chance)) if chance < 1 else 1.0

    def _chance_above(self, bound: float) -> float:
        odds = self.odds()
        return float(odds[torch.arange(len(odds)) > bound + 1e-9].sum())


def _log_choose(among: int, count: Tensor) -> Tensor:
    """log of the binomial coefficient; -inf where it is zero."""
    possible = (count >= 0) & (count <= among)
    chosen = count.clamp(0, among)
    whole = torch.tensor(float(among), dtype=torch.float64)
    logs = torch.lgamma(whole + 1) - torch.lgamma(chosen + 1) - torch.lgamma(whole - chosen + 1)
    return torch.where(possible, logs, -torch.inf)
