"""Learning tasks. A task is anything with the five members of `Problem`."""

from __future__ import annotations

from bymi.problems.base import Problem
from bymi.problems.linear import LinearProblem, LinearShard, linear_problem, linear_shard
from bymi.problems.split import Split, split_samples

__all__ = ["LinearProblem", "LinearShard", "Problem", "Split", "linear_problem", "linear_shard", "split_samples"]
