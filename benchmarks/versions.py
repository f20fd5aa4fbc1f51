"""Times of this checkout beside those of another one: `python benchmarks/versions.py OTHER [run images large] [--turns N]`.

OTHER is a checkout of an earlier version (`git worktree add ../bymi-0.10.0 5317711` makes one). The benchmarks of both run
in turns, each with its own sources, on one machine; of each row the quickest time counts. Writes results/versions-DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
OUTPUT = {"run": "--out", "images": "--out", "large": "--json"}  # the option of each script that names its JSON
OPTIONS = {"large": ("--quick",)}


def rows_of(found: Any) -> dict[str, float]:
    """Seconds of each row, by what it measures and for how many nodes, wherever rows stand in a benchmark's JSON."""
    if isinstance(found, list):
        return {name: value for each in found for name, value in rows_of(each).items()}
    if not isinstance(found, dict):
        return {}
    if "what" in found and "seconds" in found:
        name = f"{found['what']}, {found['nodes']} nodes" if "nodes" in found else str(found["what"])
        return {name: float(found["seconds"])}
    return {name: value for each in found.values() for name, value in rows_of(each).items()}


def measure(checkout: Path, script: str, device: str) -> dict[str, float]:
    """One run of a benchmark of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        options = [*OPTIONS.get(script, ()), *(("--device", device) if script == "images" else ()), OUTPUT[script], str(path)]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        command = [sys.executable, str(checkout / "benchmarks" / f"{script}.py"), *options]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if not path.exists():  # a missed bound exits with 1, but has its numbers
            raise SystemExit(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}")
        return rows_of(json.loads(path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times of this checkout beside those of another one.")
    parser.add_argument("other", type=Path)
    parser.add_argument("scripts", nargs="*", default=["run", "images", "large"], help="run, images, large")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of images")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    checkouts = {"other": given.other.resolve(), "this": HERE}
    best: dict[str, dict[str, float]] = {}
    for turn in range(given.turns):
        for script in given.scripts:
            for name, checkout in checkouts.items() if turn % 2 == 0 else reversed(checkouts.items()):
                for row, seconds in measure(checkout, script, given.device).items():
                    times = best.setdefault(f"{script}: {row}", {})
                    times[name] = min(seconds, times.get(name, seconds))
    both = {row: times for row, times in best.items() if len(times) == len(checkouts)}
    rows = [{"row": row, **times, "ratio": times["this"] / times["other"]} for row, times in both.items()]
    for row in rows:
        print(f"{row['ratio']:6.2f}  {row['other']:9.4f} -> {row['this']:9.4f} s  {row['row']}")
    from bymi.runs.run_folder import environment

    path = given.out or HERE / "benchmarks" / "results" / f"versions-{given.device}.json"
    others = {name: value for name, value in environment().items() if name != "bymi"}
    found = {"command": "python " + " ".join(["benchmarks/versions.py", *sys.argv[1:]]), "turns": given.turns, "rows": rows}
    path.write_text(json.dumps({**found, "environment": {"this": environment()["bymi"], **others}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
