"""What a study shows: its files, and a table for the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from bymi.experiment.images import ImageStudy
from bymi.experiment.red_team import RedTeam
from bymi.experiment.studies import Study
from bymi.experiment.theory import TheoryStudy
from bymi.report import images, red_team, studies, theory
from bymi.report.tables import plain_table


def show(study: Study | ImageStudy | RedTeam | TheoryStudy, folder: Path, command: str) -> tuple[list[Path], Table | None]:
    """Draw a study from all of its runs that are there: the files written, and the table if there is one to print."""
    if isinstance(study, ImageStudy):
        return images.draw(study, folder, command), None
    if isinstance(study, RedTeam):
        return red_team.draw(study, folder, command), None
    if isinstance(study, TheoryStudy):
        return theory.draw(study, folder, command), None
    paths = studies.draw(study, folder)
    return paths, plain_table(*studies.medians(study, studies.collect(study, folder)), title=study.title)
