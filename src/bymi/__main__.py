"""The command `bymi`, also as `python -m bymi`. What takes time to import is imported when Ctrl-C is quiet already."""

from __future__ import annotations

from bymi.core.exit_on_ctrl_c import end_at_once


def main() -> None:
    end_at_once()
    from bymi.cli import main as command

    command()


if __name__ == "__main__":
    main()
