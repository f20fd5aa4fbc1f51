"""Which samples serve which phase."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bymi.errors import InputError
from bymi.streams import stream
from bymi.topic import FIRST_HALF, SECOND_HALF, Topic


@dataclass(frozen=True, eq=False)
class Split:
    """Sample numbers of each node: a warm-up set, and an identification set in two random halves of one size."""

    warm_up: Tensor  # [B, N - n]
    first: Tensor  # [B, n / 2]
    second: Tensor  # [B, n / 2]

    @property
    def halves(self) -> dict[Topic, Tensor]:
        """The identification set by topic of the message that it makes."""
        return {FIRST_HALF: self.first, SECOND_HALF: self.second}

    def again(self, nodes: Tensor, *, seed: int, step: int) -> Split:
        """The same sets with other random halves of the identification set, for a further detection before round `step`."""
        everything = torch.cat([self.first, self.second], 1)
        order = stream(seed, "halves again", node=nodes, step=step).permutation(everything.shape[1])
        first, second = torch.gather(everything, 1, order).split(self.first.shape[1], dim=1)
        return Split(self.warm_up, first, second)


def split_samples(nodes: Tensor, *, samples: int, identification: int, seed: int) -> Split:
    """Split `samples` at random: `identification` of them (rounded down to even) for detection, the rest for warm-up.

    The sets are disjoint, so that the models of the warm-up are independent of the halves. Paper: eq:gradients.
    """
    half = identification // 2
    if half < 1 or 2 * half >= samples:
        raise InputError(
            f"identification: got {identification} of {samples} samples, need at least 2 and some left for warm-up"
        )
    order = stream(seed, "split", node=nodes).permutation(samples)
    return Split(order[:, 2 * half :], order[:, :half], order[:, half : 2 * half])


def fresh_halves(nodes: Tensor, *, samples: int, count: int, seed: int, step: int) -> dict[Topic, Tensor]:
    """`count` random samples of each node, drawn anew for every step, as two halves [B, count / 2] by topic."""
    half = count // 2
    if half < 1 or count > samples:
        raise InputError(f"sample: got {count} of {samples} samples, need at least 2 and no more than there are")
    order = stream(seed, "fresh halves", node=nodes, step=step).permutation(samples)
    return {FIRST_HALF: order[:, :half], SECOND_HALF: order[:, half : 2 * half]}
