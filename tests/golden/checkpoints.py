"""Stored checkpoints: a run that is taken up from one gives the rounds of the run that was never interrupted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from unittest.mock import patch

import torch

from bymi import State
from bymi.runs import checkpoints
from bymi.runs.checkpoints import Place
from bymi.runs.pack_state import StateShape
from bymi.runs.safetensors_file import TensorFile
from bymi.runs.simulate import local_network
from tests.golden.forms import forced, resolved_spec_of, rounds, scene_of
from tests.golden.record import Record, join, play
from tests.golden.stored import CHECKPOINTS
from tests.golden.table import NODES, RUNS

_WHOLE = Place(torch.arange(NODES))


def folder_of(name: str) -> Path:
    return CHECKPOINTS / re.sub(r"\W+", "-", name)


def save(name: str, step: int) -> None:
    """Store the state of a run in one process after a round."""
    run, folder = RUNS[name], folder_of(name)
    shutil.rmtree(folder, ignore_errors=True)
    for (part,) in rounds(run.words, run.form):
        state = part.snapshot.state
        if state is not None and state.step == step and state.phase != "detection":
            checkpoints.save(folder, resolved_spec_of(run.words, run.form).digest, state, _WHOLE)


def resume(name: str, scratch: Path) -> Record:
    """The rounds after a stored checkpoint. It was written by some version of bymi for a spec as it was then: both may differ
    now, as long as the state can be read and means the same. Reads a copy: what cannot be used is removed by the library.
    """
    run, folder = RUNS[name], scratch / folder_of(name).name
    shutil.copytree(folder_of(name), folder)
    (path,) = folder.rglob("*.safetensors")
    words, refused = TensorFile(path).words, list[str]()
    with forced(run.form):
        scene = scene_of(run.words, run.form)
        frame = StateShape.of(scene.problem, local_network(scene.graph, scene.adversary), scene.plan)
        with patch("bymi.__version__", words["bymi"]):
            state: State | None = checkpoints.newest(
                folder, words["digest"], frame, [_WHOLE], lambda saved: saved.states[0], refused.append
            )
        if state is None:
            raise ValueError(f"{name}: {'; '.join(refused) or 'no checkpoint'}")
        return join([play(run, state=state)])


def fits(resumed: Record, whole: Record) -> bool:
    """Whether what was resumed is the end of the whole run."""
    count = len(resumed.rounds)
    return 0 < count < len(whole.rounds) and resumed.rounds == whole.rounds[-count:] and resumed.values == whole.values
