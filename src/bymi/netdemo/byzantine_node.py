"""A Byzantine node for `bymi net demo`: it speaks the protocol and trains against the others.

A program of its own, `python -m bymi.netdemo.byzantine_node NODE.toml`: real nodes contain no attack.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor

from bymi.node.own_data import OwnProblem
from bymi.node.run_node import NodeRun

FACTOR = -3.0


class ReversedGradients(OwnProblem):
    """The node's own gradients, turned round and lengthened, in training and in every answer to a question."""

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        return FACTOR * super().gradient(theta, nodes, chosen)


def main() -> None:
    run = NodeRun(Path(sys.argv[1]))
    run.problem.__class__ = ReversedGradients
    run.run()


if __name__ == "__main__":
    main()
