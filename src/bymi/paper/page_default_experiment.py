"""The table and the figure of the default experiment.

`draw` turns run folders into one JSON and one figure; `text` writes the table of the README from that JSON alone.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from bymi.paper.provenance import fingerprints, origin
from bymi.paper.study_default_experiment import DefaultStudy
from bymi.report.figures import describe, draw_comparison
from bymi.report.tables import remarks, terminal_table
from bymi.runs import run_folder as store

_WIDTH = 140


def draw(study: DefaultStudy, folder: Path) -> list[Path]:
    """Write the figure (PNG, SVG) and the summaries of all runs (JSON) into the study's folder."""
    places = [store.folder_of(folder, spec) for spec in study.specs]
    complete = [place for place in places if store.is_complete(place)]
    figures = draw_comparison(complete, folder, study.name) if complete else []
    data = folder / f"{study.name}.json"
    values = {
        "study": describe(study.specs[0].resolved.values),
        "command": "bymi run",
        "environment": store.environment(),
        "figures": fingerprints(figures),
        "runs": [{**store.read_json(place / store.SUMMARY), **origin(place)} for place in complete],
    }
    store.write_json(data, values, indent=1)
    return [*figures, data]


def text(values: dict[str, Any]) -> str:
    """What `bymi run` prints above the names of its files: the table, then its remarks."""
    output = io.StringIO()
    console = Console(width=_WIDTH, file=output)
    console.print(terminal_table(values["runs"], title=values["study"]))
    for line in (line for summary in values["runs"] for line in remarks(summary)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n") + "\n"
