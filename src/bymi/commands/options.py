"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_words(text: str) -> list[str]:
    """Completions of a word of `bymi run` or `bymi sweep`: recipes and keys, after KEY= the parts that it can name."""
    from bymi.experiment.list_named_parts import catalogue

    tables = catalogue()
    key, equals, _ = text.partition("=")
    names = [name for name, _, _ in tables.get(key, [])] if equals else []
    words = [f"{key}={name}" for name in names] if equals else [name for name, _, _ in tables["recipe"]]
    words += [] if equals else [f"{name}=" for name, _, _ in tables["key"]]
    return [word for word in words if word.startswith(text)]


FdrLevel = Annotated[
    float | None, typer.Option("--fdr-level", help="Target false discovery rate, the key detection.fdr_level.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the run folders.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at a time, each in a process. Default: one per core.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1. auto: a GPU for models that gain from one.")]
Gradients = Annotated[
    str, typer.Option("--gradients", help="auto, loop, stacked, batched or captured: how those of all nodes are made.")
]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data sets. Default: BYMI_DATA, the cache, else a download.")
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option("--checkpoint-every", min=0, help="Rounds between checkpoints. Default: about every 30 s; 0: none."),
]
KeepModels = Annotated[
    str, typer.Option("--keep-models", help="Trained models in a run folder: mean (of the core, and one node's), all or none.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1.0, max=1e6, help="Under torchrun: seconds after which a silent rank counts as lost.")
]
Imports = Annotated[
    bool, typer.Option("--allow-imports", help="Import module:Name parts of a run folder's spec.json: runs their code.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per run on stdout, everything else on stderr.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Report runs to tensorboard, wandb or mlflow (each an extra), or to module:Name."),
]
