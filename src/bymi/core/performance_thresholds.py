"""Sizes of temporaries, and sizes from which rounds are computed in another form: one value for the whole library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Limits:
    """Bounds that change time, memory and rounding, never what is computed. Counts are of numbers, not of bytes.

    They were chosen by measurement and are no settings of a run. Tests lower them, to see each form on small runs.
    """

    # Graphs as neighbour lists.
    lists_from: int = 1000  # nodes from which a graph is stored as lists, if these are short
    nodes_per_place: float = 4  # with fewer nodes per place of the longest list, matrices take no more memory and less time

    # Temporaries of rules and detection.
    set_products: int = 1 << 21  # gathered vectors in products of sets: 16 MB
    points_dim: int = 64  # coordinates up to which detection decomposes d x d covariances, not n x n products
    rule_points_dim: int = 128  # the same for rules
    direct_dim: int = 64  # coordinates up to which distances come from differences: as fast, and without cancellation
    hardened_receivers: int = 64  # receivers whose products the hardened detection holds at a time
    hardened_receivers_cuda: int = 128  # the same on a GPU, whose kernels are started one by one
    published_receivers: int = 256  # the same for the published detection
    tried_receivers: int = 32  # receivers per batch of trials, over lists
    tailored_receivers: int = 256  # receivers for which messages of their own are made at a time
    replies: int = 1 << 25  # replies handled at a time: 128 MB in float32
    replies_cuda: int = 1 << 28  # the same on a GPU, whose kernels are started one by one: 1 GB, less where memory is short
    read_cuda: int = 1 << 27  # replies that a GPU compares at a time, with several copies in float64
    replies_alone: int = 1 << 20  # replies to one query from which a CPU handles it alone, within its cache
    remote_vectors: int = 1 << 23  # own vectors of receivers in other processes
    copied_models: int = 1 << 28  # parameters of models copied for a batched call

    captured: int = 1 << 22  # inputs up to which the decision of a rule is recorded as a CUDA graph
    captured_vectors: int = 1 << 24  # the same for work on the vectors of all nodes in every round
    looked_at: tuple[str, ...] = ("cpu",)  # devices whose values a loop looks at in every turn; for others the host would wait

    # Samples.
    many_nodes: int = 1000  # nodes from which samples of the linear model are copied block by block
    block_of_nodes: int = 128  # nodes per block, whose samples fit a CPU's cache
    drawn_rounds: int = 8  # rounds whose mini-batches are drawn together

    # Rows of large graphs that are sharded by coordinate over processes, instead of sent to their receivers.
    sharded_rows: int = 1 << 24  # rows of all nodes from which they are
    sharded_dim: int = 128  # coordinates up to which they are not
    sharded_heard: float = 1.5  # rows received by all shards, per node, above which that is less traffic
    slice_turn: int = 1 << 23  # received at a time
    slice_sets: int = 256  # receivers per shard whose products are computed at a time

    # Traffic between processes.
    routed_rows: int = 1 << 24  # rows of all nodes that travel at a time
    answers: int = 1 << 22  # answers per topic that a shard receives in one turn; a rank holds several times as many
    models: int = 1 << 23  # of all models that a rank has in memory at a time
    moments: int = 1 << 23  # in the moments of all shards that a process holds at a time

    # Metrics.
    theory_size: int = 512  # nodes or coordinates up to which the constants of the convergence theory are computed


LIMITS = Limits()
