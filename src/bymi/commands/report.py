"""`bymi report`: a page of run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bymi.commands.console_lines import print_line


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of them, such as runs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for figures in a paper's style: PNG, SVG and PDF.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page of a run, of several runs side by side, or of a sweep."""
    from bymi.report.page import write_page

    write_page(runs, output)
    print_line(f"Report: {output}")
    if figures is not None:
        from bymi.report.publication_figures import write_figures

        print_line(f"Figures: {len(write_figures(runs, figures))} files in {figures}")
    if show:
        import webbrowser

        if not webbrowser.open_new_tab(output.resolve().as_uri()):
            print_line(f"No browser was found; open {output.resolve().as_uri()}")
