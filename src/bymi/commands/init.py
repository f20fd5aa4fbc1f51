"""`bymi init`: a commented spec to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bymi.commands.console_lines import own_command, print_line
from bymi.core.errors import require

TEMPLATE = """\
# A spec of bymi: bymi run {name}. All keys with their defaults: bymi list keys. What is left out keeps its default.

# Methods to compare: dsgd averages plainly, rule runs the warm-up rule alone, published is the method as in the paper,
# drsgd-bymi the whole method with the keys below.
method = ["dsgd", "rule", "published", "drsgd-bymi"]
profile = "hardened"      # "hardened" expects attackers that know the method; "paper" is the published detection

nodes = 60                # nodes in all
byzantine_ratio = 0.2     # share of them that is Byzantine, below 0.5
steps = 1000              # rounds, the warm-up included
seed = 0                  # of all random streams: the same seed gives the same numbers
record_every = 50         # rounds between two rows of metrics.jsonl

graph = "erdos-renyi:p=0.5"   # who is connected to whom: bymi list graphs
attack = "ipm:a=2.0"          # what Byzantine nodes do: bymi list attacks
data = "linear:dim=30"        # what is learnt: bymi list data

[warm_up]                 # robust averaging until the first detection
# steps = 100             # rounds; a tenth of all by default
rule = "balance:gamma=1.0"    # bymi list rules
step_size = 0.05
batch = 8                 # samples per node and round

[detection]
fdr_level = 0.2           # target false discovery rate: share of honest nodes among the flagged

[optimisation]            # after the detection, over the edges that are left
step_size = 0.0625
batch = 32

# For bymi sweep, give any key a list: attack = ["ipm:a=2.0", "gradient"], and set seeds = 5.
"""


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Write a commented spec: every key that most experiments change, with what it means."""
    from bymi.core import files

    require(path.suffix == ".toml", "FILE", str(path), "a name that ends in .toml")
    require(force or not path.exists(), "FILE", str(path), "a file that is not there yet, or --force")
    files.write_bytes(path, TEMPLATE.format(name=path.name).encode())
    print_line(f"Wrote {path}. Next: {own_command()} run {path}")
