"""Experiments: validated specs, recipes, and running them into run folders."""

from __future__ import annotations

from bymi.experiment.loading import load
from bymi.experiment.recipes import RECIPES
from bymi.experiment.run_specs import run, run_all
from bymi.experiment.spec import Spec, read_spec

__all__ = ["RECIPES", "Spec", "load", "read_spec", "run", "run_all"]
