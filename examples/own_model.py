"""Own model on own data, hardened profile: 24 nodes learn which of three numbers is the largest; five of them attack."""

import networkx as nx
import torch

import bymi

torch.manual_seed(0)  # the same initial model every time: another one is another run
inputs = bymi.stream(0, "inputs", node=torch.arange(25)).normal(80, 6).float()  # node 24 is for testing
targets = inputs[:, :, :3].argmax(2)
run = bymi.train(
    torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)),
    torch.nn.functional.cross_entropy,
    [(inputs[node, : 50 + node], targets[node, : 50 + node]) for node in range(24)],  # of any sizes
    **{"graph": nx.complete_graph(24), "attack": "gradient", "byzantine": range(5), "profile": "hardened"},
    **{"steps": 150, "optimisation": {"step_size": 0.3, "max_local_step": 0.6, "order": "adapt-then-combine"}},
    evaluate=lambda net: {"accuracy": float((net(inputs[24]).argmax(1) == targets[24]).double().mean())},
    out="runs",  # the same call reads its folder in there, or goes on if it was interrupted
)
print(f"found {run.summary['found']:.0%} of the attackers, accuracy {run.summary['accuracy']:.2f}, see {run.folder}")
