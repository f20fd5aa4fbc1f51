"""Learning problems. A problem is any object with the five members of `Problem`."""

from __future__ import annotations

from bymi.problems.linear_problem import LinearProblem, LinearShard, linear_problem, linear_shard
from bymi.problems.models import lenet, start_of
from bymi.problems.module_problem import ModuleProblem, Shards
from bymi.problems.problem import Problem
from bymi.problems.sample_split import Split, all_samples, fresh_halves, sizes_of, split_samples

__all__ = [
    "LinearProblem",
    "LinearShard",
    "ModuleProblem",
    "Problem",
    "Shards",
    "Split",
    "all_samples",
    "fresh_halves",
    "lenet",
    "linear_problem",
    "linear_shard",
    "sizes_of",
    "split_samples",
    "start_of",
]
