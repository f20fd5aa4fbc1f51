"""What processes of `tests.forked` have imported when they start."""

# ruff: noqa: F401
import gc
import importlib.util

import matplotlib.pyplot
import torch.distributed

import bymi.cli
import bymi.experiment
import bymi.report.figures
import bymi.runs.simulate
import tests.commands
import tests.golden.record

if importlib.util.find_spec("grpc") is not None:
    import tests.node_fixtures

gc.freeze()  # copies need not look through all that was imported
