"""The default experiment as a study, so that the table and the figure of the README come from one set of runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from bymi.experiment.loading import load
from bymi.experiment.spec import Spec


@dataclass(frozen=True)
class DefaultStudy:
    """What `bymi run` runs without arguments: one spec a method, seed 0."""

    name: str
    specs: list[Spec] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{self.name}"


def build_default(*, fast: bool = False) -> DefaultStudy:
    """All methods of the default spec; `fast` has fewer nodes and rounds."""
    changes = ("nodes=60", "steps=600") if fast else ()
    return DefaultStudy("default-fast" if fast else "default", load(None, changes).expand())
