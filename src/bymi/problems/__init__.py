"""Learning problems. A problem is any object with the five members of `Problem`."""

from __future__ import annotations

from bymi.problems.lenet import lenet, start_of
from bymi.problems.linear_problem import LinearProblem, LinearShard, linear_problem, linear_shard
from bymi.problems.module_problem import ModuleProblem, Shards
from bymi.problems.problem import Problem

__all__ = [
    "LinearProblem",
    "LinearShard",
    "ModuleProblem",
    "Problem",
    "Shards",
    "lenet",
    "linear_problem",
    "linear_shard",
    "start_of",
]
