"""Messages made for each receiver by itself, by matrices or on a graph so large that nobody sees all of it at once."""

from __future__ import annotations

import torch
from torch import Tensor

from bymi.attacks.base import PerReceiver, is_finite_row
from bymi.core.linalg import all_finite
from bymi.core.list_graph import ListGraph
from bymi.core.streams import Stream

_RECEIVERS = 256  # for whom messages are made at a time


def tailor_by_matrices(
    attack: PerReceiver,
    vectors: Tensor,
    within: Tensor,
    outside: Tensor,
    honest: Tensor,
    receivers: Tensor,
    shared: Stream,
) -> Tensor:
    """One message for each of the receivers [K], from what all nodes hold [M, D]; weights are those of all `honest` nodes."""
    own = vectors.index_select(0, honest)
    if not all_finite(own):
        sane = is_finite_row(own)
        own, within = torch.where(sane[:, None], own, torch.zeros_like(own)), within * sane
    return attack.tailor(own, within, outside, shared).index_select(0, torch.searchsorted(honest, receivers))


def tailor_by_lists(
    attack: PerReceiver, vectors: Tensor, graph: ListGraph, receivers: Tensor, members: Tensor, shared: Stream
) -> Tensor:
    """One message for each of the receivers [K], from what all nodes hold [M, D]; `members` [M] are the attackers."""
    once, place = receivers.unique(return_inverse=True)
    if not len(once):
        return vectors[:0]
    told = [_some(attack, vectors, graph, some, members, shared) for some in once.split(_RECEIVERS)]
    return torch.cat(told).index_select(0, place)


def _some(attack: PerReceiver, vectors: Tensor, graph: ListGraph, some: Tensor, members: Tensor, shared: Stream) -> Tensor:
    """For some of them, with the nodes that any of these hears."""
    lists, weight = graph.lists.of(some), graph.weight[some]
    heard, column = torch.cat([lists.at[lists.there], some]).unique(return_inverse=True)
    held = vectors.index_select(0, heard)
    sane = is_finite_row(held)
    held = torch.where(sane[:, None], held, torch.zeros_like(held))
    place = torch.zeros_like(lists.at).masked_scatter(lists.there, column[: -len(some)])
    among = weight.new_zeros(len(some), len(heard)).scatter_add(1, place, weight)
    liars = members[heard]
    outside, own = (among * liars).sum(1), held[column[-len(some) :]]
    return attack.tailor(own, among * (sane & ~liars), outside, shared, held)
