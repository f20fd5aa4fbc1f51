"""Messages made for each receiver, on matrix graphs or, some receivers at a time, on list graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.attacks.base import PerReceiver, is_finite_row
from bymi.core.linalg import all_finite
from bymi.core.list_graph import ListGraph
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import Stream


def tailor_by_matrices(
    attack: PerReceiver,
    vectors: Tensor,
    within: Tensor,
    outside: Tensor,
    honest: Tensor,
    receivers: Tensor,
    shared: Stream,
) -> Tensor:
    """One message per receiver [K], from what all nodes hold [M, D]; the weights are those of all `honest` nodes."""
    own = vectors.index_select(0, honest)
    if not all_finite(own):
        finite = is_finite_row(own)
        own, within = torch.where(finite[:, None], own, torch.zeros_like(own)), within * finite
    return attack.tailor(own, within, outside, shared).index_select(0, torch.searchsorted(honest, receivers))


def tailor_by_lists(
    attack: PerReceiver, vectors: Tensor, graph: ListGraph, receivers: Tensor, members: Tensor, shared: Stream
) -> Tensor:
    """One message per receiver [K], from what all nodes hold [M, D]; `members` [M]: mask of the attackers."""
    once, place = receivers.unique(return_inverse=True)
    if not len(once):
        return vectors[:0]
    messages = [_messages_for(attack, vectors, graph, some, members, shared) for some in once.split(LIMITS.tailored_receivers)]
    return torch.cat(messages).index_select(0, place)


def _messages_for(
    attack: PerReceiver, vectors: Tensor, graph: ListGraph, receivers: Tensor, members: Tensor, shared: Stream
) -> Tensor:
    """Messages for some receivers, from the nodes that any of these receives from."""
    lists, weight = graph.lists.of(receivers), graph.weight[receivers]
    heard, column = torch.cat([lists.index[lists.mask], receivers]).unique(return_inverse=True)
    held = vectors.index_select(0, heard)
    finite = is_finite_row(held)
    held = torch.where(finite[:, None], held, torch.zeros_like(held))
    place = torch.zeros_like(lists.index).masked_scatter(lists.mask, column[: -len(receivers)])
    among = weight.new_zeros(len(receivers), len(heard)).scatter_add(1, place, weight)
    byzantine = members[heard]
    outside, own = (among * byzantine).sum(1), held[column[-len(receivers) :]]
    return attack.tailor(own, among * (finite & ~byzantine), outside, shared, held)
