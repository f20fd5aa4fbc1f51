"""A Flower strategy that identifies Byzantine clients on the server and leaves them out of the average.

Extra `flower`. The server is trusted; bymi's decentralised method needs none.
"""

from __future__ import annotations

from collections.abc import Iterable
from logging import INFO
from typing import Any, Literal

import torch
from torch import Tensor

from bymi.detection import ArrayVerdict, identify

try:
    from flwr.app import ArrayRecord, Message, MetricRecord
    from flwr.common.logger import log
    from flwr.serverapp.strategy import FedAvg
except ImportError:
    raise ImportError("bymi.flower needs Flower: pip install 'bymi[flower]'") from None

FIRST, SECOND = "first", "second"
"""Names of the two ArrayRecords in a client's reply."""


class ByMI(FedAvg):  # type: ignore[misc]  # flwr has no types here
    """FedAvg over the clients that `bymi.identify` does not flag.

    A client splits its samples into two random halves, trains the model that it was sent on each half by itself, and replies
    with both models: ArrayRecords `first` and `second`, beside the MetricRecord that FedAvg expects. What is noise differs
    between the halves; what is wrong with a client is the same in both. The new model is the mean of both models over all
    clients that are kept, weighted by `weighted_by_key`; without a kept client the round has no result.

    A reply without the two records, or with other names or shapes than most replies have, is left out before any
    test, and one with NaN or Inf is flagged. `verdicts` has the verdict of every round; its names are node ids.
    """

    def __init__(
        self, *, profile: Literal["hardened", "published"] = "hardened", fdr_level: float = 0.2, **fedavg: Any
    ) -> None:
        super().__init__(**fedavg)
        self.profile, self.fdr_level = profile, fdr_level
        self.verdicts: dict[int, ArrayVerdict] = {}

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean model of the clients that are kept, and their metrics."""
        answered = [reply for reply in replies if not reply.has_error()]
        usable = _alike([reply for reply in answered if _is_complete(reply, self.weighted_by_key)])
        log(INFO, "aggregate_train: %d of %d replies can be used", len(usable), len(answered))
        if len(usable) < 3:
            return None, None
        first, second = (torch.stack([_row(reply, name) for reply in usable]) for name in (FIRST, SECOND))
        names = [str(reply.metadata.src_node_id) for reply in usable]
        verdict = identify(first, second, profile=self.profile, fdr_level=self.fdr_level, names=names)
        self.verdicts[server_round] = verdict
        kept = (~verdict.flagged).nonzero().flatten()
        log(INFO, "aggregate_train: flagged %s", ", ".join(names[at] for at in verdict.flagged.nonzero().flatten()) or "nobody")
        if not len(kept):
            return None, None
        contents = [usable[at].content for at in kept.tolist()]
        weight = torch.tensor([_weight(content, self.weighted_by_key) for content in contents], dtype=torch.float64)
        model = (weight / weight.sum()) @ ((first[kept].double() + second[kept].double()) / 2)
        return _unflatten(model, contents[0][FIRST]), self.train_metrics_aggr_fn(contents, self.weighted_by_key)


def _is_complete(reply: Message, key: str) -> bool:
    """Whether a reply has two ArrayRecords of the same form and a positive weight."""
    records, metrics = reply.content.array_records, reply.content.metric_records
    if {FIRST, SECOND} - set(records) or len(metrics) != 1 or _form(records[FIRST]) != _form(records[SECOND]):
        return False
    value = next(iter(metrics.values())).get(key)
    return isinstance(value, int | float) and 0 < value < float("inf")


def _alike(replies: list[Message]) -> list[Message]:
    """The replies of the most frequent form: same arrays with the same shapes and types, same keys of metrics."""

    def form(reply: Message) -> tuple[Any, ...]:
        return _form(reply.content[FIRST]), tuple(sorted(next(iter(reply.content.metric_records.values()))))

    forms = [form(reply) for reply in replies]
    usual = max(forms, key=forms.count, default=None)
    return [reply for reply, found in zip(replies, forms, strict=True) if found == usual]


def _form(record: ArrayRecord) -> tuple[Any, ...]:
    return tuple((name, tuple(array.shape), array.dtype) for name, array in record.items())


def _row(reply: Message, name: str) -> Tensor:
    """All arrays of a record as one row."""
    return torch.cat([torch.from_numpy(array.numpy().copy()).flatten() for array in reply.content[name].values()])


def _weight(content: Any, key: str) -> float:
    return float(next(iter(content.metric_records.values()))[key])


def _unflatten(row: Tensor, like: ArrayRecord) -> ArrayRecord:
    """A row as arrays with the names, shapes and types of `like`."""
    state, start = {}, 0
    for name, array in like.items():
        values = torch.from_numpy(array.numpy().copy())
        state[name] = row[start : start + values.numel()].reshape(values.shape).to(values.dtype)
        start += values.numel()
    return ArrayRecord(state)
