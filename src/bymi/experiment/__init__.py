"""Experiments: validated specs, recipes, and running them into run folders."""

from __future__ import annotations

from bymi.experiment.loading import load
from bymi.experiment.recipes import RECIPES
from bymi.experiment.spec import Spec, read_spec
from bymi.experiment.spec_runner import run, run_all

__all__ = ["RECIPES", "Spec", "load", "read_spec", "run", "run_all"]
